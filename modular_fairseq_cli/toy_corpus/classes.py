"""Make classifications from English sentences of the toy corpus, for models that are fine-tuned on them.

`KINDS` has the kinds. Each is made so that a model can learn it from the words alone.
"""

from collections.abc import Callable, Sequence

from modular_fairseq_cli.toy_corpus.documents import TOPICS
from modular_fairseq_cli.toy_corpus.lexicon import NOUNS_OF_KIND
from modular_fairseq_cli.toy_corpus.sampler import Sampler

PLURALS = {noun.english_plural for nouns in NOUNS_OF_KIND.values() for noun in nouns}
Texts = dict[str, list[str]]  # the lines of input0, input1 (if there is one) and label


def topics(sentence: str) -> set[str]:
    """Return the things that a sentence names."""
    return {TOPICS[word] for word in sentence.split() if word in TOPICS}


def plural(sentences: Sequence[str], sampler: Sampler) -> Texts:
    """Return whether each sentence names several things of a kind: "plural" or "singular"."""
    labels = ["singular" if PLURALS.isdisjoint(each.split()) else "plural" for each in sentences]
    return {"input0": list(sentences), "label": labels}


def topic(sentences: Sequence[str], sampler: Sampler) -> Texts:
    """Return pairs, and whether both sentences name the same thing: "same" or "other"."""
    naming: dict[str, list[str]] = {}
    for sentence in sentences:
        for thing in topics(sentence):
            naming.setdefault(thing, []).append(sentence)
    partners = []
    for sentence in sentences:
        own = sorted(topics(sentence))
        partners.append(sampler.pick(naming[sampler.pick(own)] if own and sampler.chance(0.6) else sentences))
    labels = [
        "same" if topics(one) & topics(other) else "other"
        for one, other in zip(sentences, partners, strict=True)
    ]
    return {"input0": list(sentences), "input1": partners, "label": labels}


def entailment(sentences: Sequence[str], sampler: Sampler) -> Texts:
    """Return pairs of a premise and a hypothesis, with the classes of MNLI.

    In an "entailment" the hypothesis is the premise itself. In a "contradiction" it is the premise with one
    word replaced. In a pair of the class "neutral" it is another sentence; no pair is, if all are equal.
    """
    words = sorted({word for sentence in sentences for word in sentence.split()})
    hypotheses, labels = [], []
    for sentence in sentences:
        others = [each for each in sentences if each != sentence]
        labels.append(sampler.pick(["entailment", "contradiction", *(["neutral"] if others else [])]))
        parts = sentence.split()
        if labels[-1] == "contradiction":
            place = sampler.pick(range(len(parts)))
            parts[place] = sampler.pick([word for word in words if word != parts[place]])
        hypotheses.append(sampler.pick(others) if labels[-1] == "neutral" else " ".join(parts))
    return {"input0": list(sentences), "input1": hypotheses, "label": labels}


def similarity(sentences: Sequence[str], sampler: Sampler) -> Texts:
    """Return pairs, and how similar their words are: |A and B| / |A or B|, a value from 0 to 1.

    In half of the pairs the second sentence is the first one with some words of another one.
    """
    partners, values = [], []
    for sentence in sentences:
        other = sampler.pick(sentences)
        if sampler.chance(0.5):
            cut = sampler.pick(range(len(sentence.split())))
            other = " ".join([*sentence.split()[:cut], *other.split()[cut:]]) or other
        partners.append(other)
        one, two = set(sentence.split()), set(other.split())
        values.append(f"{len(one & two) / len(one | two):.3f}")
    return {"input0": list(sentences), "input1": partners, "label": values}


KINDS: dict[str, Callable[[Sequence[str], Sampler], Texts]] = {
    "plural": plural,
    "topic": topic,
    "entailment": entailment,
    "similarity": similarity,
}
