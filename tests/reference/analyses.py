"""Compute the analyses of trained models by loops over sentences, words and heads in plain Python."""

import math
import random
from collections import Counter

CLASSES = ("vertical", "diagonal", "shift forward", "shift backward", "soft diagonal", "heterogeneous")


def entropy(p):
    """Return the entropy of a distribution in nats."""
    return -sum(x * math.log(x) for x in p if x > 0)


def indicative(pairs, groups, minimum=5, most=10):
    """Return the most indicative tokens of each group, by pointwise mutual information (PMI).

    Args:
        pairs: a (token, group) for every occurrence.
        groups: number of groups.
        minimum: occurrences that a token must have.
        most: the largest number of tokens per group.

    Returns:
        for each group a list [(token, PMI in nats, count in the group, count in all), ...].
    """
    joint, tokens, of_group = (
        Counter(pairs),
        Counter(token for token, _ in pairs),
        Counter(group for _, group in pairs),
    )
    lists = []
    for group in range(groups):
        found = []
        for token, total in tokens.items():
            if total >= minimum and joint[token, group]:
                p_joint, p_token, p_group = (
                    joint[token, group] / len(pairs),
                    total / len(pairs),
                    of_group[group] / len(pairs),
                )
                found.append((token, math.log(p_joint / (p_token * p_group)), joint[token, group], total))
        lists.append(sorted(found, key=lambda entry: (-round(entry[1], 9), -entry[2], entry[0]))[:most])
    return lists


def information(pairs, groups, minimum=5, draws=200):
    """Return the mutual information of tokens and groups in nats, less that of groups drawn at random.

    Args:
        pairs, groups, minimum: as for `indicative`.
        draws: how often the group of each occurrence is drawn anew from the groups of all.
    """

    def mean_pmi(pairs):
        joint, tokens, of_group = (
            Counter(pairs),
            Counter(token for token, _ in pairs),
            Counter(group for _, group in pairs),
        )
        return sum(
            count / len(pairs) * math.log(count * len(pairs) / (tokens[token] * of_group[group]))
            for (token, group), count in joint.items()
        )

    totals = Counter(token for token, _ in pairs)
    kept = [(token, group) for token, group in pairs if totals[token] >= minimum]
    if not kept:
        return 0.0
    drawing, of_all = random.Random(1), [group for _, group in kept]
    chance = [mean_pmi([(token, drawing.choice(of_all)) for token, _ in kept]) for _ in range(draws)]
    return mean_pmi(kept) - sum(chance) / draws


def pearson(xs, ys):
    """Return Pearson's correlation coefficient of two lists of numbers."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    covariance = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return covariance / math.sqrt(sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys))


def pattern(weights, causal=False, cross=False):
    """Return the class of one attention map of a sentence without padding, or None if the sentence is short.

    Args:
        weights: T rows of S weights.
        causal: whether query t sees only keys up to t.
        cross: whether this is cross-attention.
    """
    queries, keys = len(weights), len(weights[0])
    if min(queries, keys) < 5:
        return None
    seen = {t: [s for s in range(keys) if not causal or s <= t] for t in range(queries)}
    seen = {t: of for t, of in seen.items() if len(of) >= 3}

    def above(attended, uniform):
        mass, chance = sum(attended) / len(attended), sum(uniform) / len(uniform)
        return (mass - chance) / (1 - chance)

    def score(is_of_class):
        attended, uniform = [], []
        for t, visible in seen.items():
            center = t * (keys - 1) / (queries - 1) if cross else t
            of_class = [s for s in visible if is_of_class(s, center)]
            if of_class:
                attended.append(sum(weights[t][s] for s in of_class))
                uniform.append(len(of_class) / len(visible))
        return above(attended, uniform) if attended else 0.0

    received = {
        s: sum(weights[t][s] for t in seen)
        for s in range(keys)
        if sum(s in of for of in seen.values()) >= len(seen) / 2
    }
    two = sorted(received, key=received.get)[-2:]
    scores = [score(lambda s, center: s in two)]
    scores += [score(lambda s, center, shift=shift: s == round(center) + shift) for shift in (0, 1, -1)]
    if max(scores) >= 0.5:
        return CLASSES[scores.index(max(scores))]
    return "soft diagonal" if score(lambda s, center: abs(s - center) <= 2) >= 0.5 else "heterogeneous"
