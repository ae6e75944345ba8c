"""Arrange English sentences of the toy corpus in documents, as a text for language models.

A document is about a thing: each of its sentences names the thing. So the words before a sentence help to
predict it.
"""

from collections.abc import Iterable, Iterator

from modular_fairseq_cli.toy_corpus.lexicon import NOUNS_OF_KIND

LENGTH = 8  # sentences of a document; those that are left at the end make shorter ones
# The English forms of the nouns, and what each is a form of.
TOPICS = {
    form: noun.english
    for nouns in NOUNS_OF_KIND.values()
    for noun in nouns
    for form in (noun.english, noun.english_plural)
}


def arrange(sentences: Iterable[str]) -> Iterator[list[str]]:
    """Yield documents, each of which has `LENGTH` sentences or fewer.

    Args:
        sentences: English sentences. Each is put into the longest document about a thing that it names. A
            sentence that names nothing is put into the longest document.
    """
    unfinished: dict[str, list[str]] = {}
    for sentence in sentences:
        topics = [TOPICS[word] for word in sentence.split() if word in TOPICS] or [*unfinished] or [""]
        topic = max(topics, key=lambda each: len(unfinished.get(each, [])))
        document = unfinished.setdefault(topic, [])
        document.append(sentence)
        if len(document) == LENGTH:
            yield unfinished.pop(topic)
    yield from unfinished.values()
