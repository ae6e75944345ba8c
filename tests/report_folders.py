"""Write folders in the form of `modular-fairseq analyze --out`, with random numbers."""

import json
import math
from pathlib import Path

import numpy as np

ENCODER, DECODER, CROSS = "encoder self-attention", "decoder self-attention", "cross-attention"
CLASSES = ["vertical", "diagonal", "shift forward", "shift backward", "soft diagonal", "heterogeneous"]
SENTENCE = (
    "das alte haus am see gehört einer familie die im sommer dort wohnt und im winter in der stadt arbeitet"
)
WORDS = SENTENCE.split()


def module_list(layers: int, heads: int, streams: int = 0) -> list[dict]:
    """Return the attention modules of an encoder and a decoder.

    With streams, every stream has the encoder's layers between the first and the last. Outside the streams
    the encoder has two layers, so the last one is encoder.layers.1.
    """
    modules = []
    for layer in range(1, layers + 1):
        inner = range(1, streams + 1) if streams and 1 < layer < layers else [None]
        for stream in inner:
            outside = min(layer - 1, 1) if streams else layer - 1
            name = (
                f"encoder.layers.{outside}" if stream is None else f"encoder.streams.{stream - 1}.{layer - 2}"
            )
            modules.append(
                {
                    "module": f"{name}.self_attn",
                    "kind": ENCODER,
                    "layer": layer,
                    "stream": stream,
                    "heads": heads,
                }
            )
    for layer in range(1, layers + 1):
        for name, kind in (("self_attn", DECODER), ("encoder_attn", CROSS)):
            modules.append(
                {
                    "module": f"decoder.layers.{layer - 1}.{name}",
                    "kind": kind,
                    "layer": layer,
                    "stream": None,
                    "heads": heads,
                }
            )
    return modules


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention(
    rng: np.random.Generator, heads: int, queries: int, keys: int, causal: bool, sharpness: float = 2.0
) -> np.ndarray:
    """Return random attention weights [H, T, S].

    A third of the heads follow a diagonal, a third look at the last key, and the others have no pattern.
    """
    scores = sharpness * rng.standard_normal((heads, queries, keys))
    distance = np.abs(np.arange(queries)[:, None] - np.arange(keys))
    for head in range(heads):
        if head % 3 == 0:
            scores[head] -= 0.7 * np.abs(distance - head // 3)
        elif head % 3 == 1:
            scores[head, :, -1] += 4
    if causal:
        scores = np.where(np.tri(queries, keys, dtype=bool), scores, -np.inf)
    return softmax(scores)


def write_analysis(
    folder: Path,
    layers: int = 2,
    heads: int = 4,
    sentences: int = 2,
    length: int = 8,
    *,
    arch: str = "mae_transformer_tiny_cpu",
    parts: str = "gates experts redundancy clusters competition patterns samples",
    streams: int = 0,
    language_model: bool = False,
    first_tokens: tuple[str, ...] = (),
    sharpness: float = 2.0,
    updates: int = 890,
    seed: int = 1,
) -> dict[str, np.ndarray]:
    """Write the folder of an analysis, and return the arrays of its samples.npz."""
    rng, parts = np.random.default_rng(seed), parts.split()
    modules = module_list(layers, heads, streams)
    if language_model:
        modules = [module for module in modules if module["kind"] == DECODER]
    tim_layers = [
        {
            "module": module["module"].removesuffix(".self_attn"),
            "layer": module["layer"],
            "stream": module["stream"],
        }
        for module in modules
        if module["kind"] != CROSS and module["layer"] > 1
    ]
    summary = {
        "format": 2,
        "checkpoint": "/models/averaged.pt",
        "data": "/data/bin",
        "subset": "valid",
        "arch": arch,
        "task": "translation",
        "updates": updates,
        "epoch": 5,
        "source_lang": "de",
        "target_lang": "en",
        "parameters": 1054768,
        "sentences": 500,
        "analyses": {
            name: globals()[f"_{name.replace('-', '_')}"](rng, modules, tim_layers)
            for name in parts
            if name != "samples"
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "analysis.json").write_text(json.dumps(summary))
    if "samples" not in parts:
        return {}
    arrays: dict[str, np.ndarray] = {}
    pairs = []
    for i in range(sentences):
        words = list(first_tokens) if i == 0 else []
        source = (words + [WORDS[(3 * i + 5 * j) % len(WORDS)] for j in range(length)])[
            : length - 1 - i % 3
        ] + ["</s>"]
        target = [f"{word}'" for word in source[:-1]] + ["</s>"]
        target_in = ["</s>", *target[:-1]]
        pairs.append(
            {
                "origin": f"valid {i}",
                "source": None if language_model else source,
                "target_in": target_in,
                "target": target,
            }
        )
        pairs[-1]["translated"] = False
        for module in modules:
            name, kind = module["module"], module["kind"]
            queries, keys = (
                len(source if kind == ENCODER else target_in),
                len(target_in if kind == DECODER else source),
            )
            maps = {"attention": attention(rng, heads, queries, keys, kind == DECODER, sharpness)}
            if "clusters" in parts:
                posteriors = softmax(2 * rng.standard_normal((heads, queries, 5)))
                maps["clusters"] = posteriors
                maps["mask"] = attention(rng, heads, queries, keys, kind == DECODER, 0.5)
            if "gates" in parts:
                maps["gates"] = softmax(rng.standard_normal((1 if kind == ENCODER else queries, heads)))
            arrays |= {f"{what}/{i}/{name}": values.astype(np.float16) for what, values in maps.items()}
        if "competition" in parts:
            for layer in tim_layers:
                tokens = source if layer["module"].startswith("encoder") else target_in
                arrays[f"competition/{i}/{layer['module']}"] = softmax(
                    1.5 * rng.standard_normal((len(tokens), 2))
                ).astype(np.float16)
    competition_layers = [layer["module"] for layer in tim_layers] if "competition" in parts else []
    samples = {"format": 2, "modules": modules, "competition_layers": competition_layers, "sentences": pairs}
    (folder / "samples.json").write_text(json.dumps(samples))
    np.savez_compressed(folder / "samples.npz", **arrays)
    return arrays


def _where(module: dict, *more: str) -> dict:
    return {key: module[key] for key in ("module", "layer", "stream", *more)}


def _shares(rng: np.random.Generator, size: int, spread: float = 0.6) -> list[float]:
    return softmax(spread * rng.standard_normal(size)).tolist()


def _tokens(rng: np.random.Generator, count: int = 6) -> list[dict]:
    pmi = sorted(rng.uniform(0.1, 2.5, count), reverse=True)
    return [
        {"token": str(word), "pmi": value, "count": 7, "total": 9}
        for word, value in zip(rng.choice(WORDS, count, False), pmi, strict=True)
    ]


def _plugin(rng: np.random.Generator, modules: list[dict], tim_layers: list[dict]) -> dict:
    """Return what an analysis of another plugin may have: a text, a table and a timeline of 6 points."""
    images = [
        {"label": label, "width": 6, "height": 4, "values": rng.integers(0, 256, 24).tolist()}
        for label in ("noisy", "clean")
    ]
    rows = {"speech": [0.0, 1.0, 1.0, 0.0, 0.0, 1.0], "c1": [0.5] * 6}
    return {
        "about": "What the table shows.",
        "table": [{"module": each["module"], "value": number / 8} for number, each in enumerate(modules)],
        "timelines": [{"title": "recording 1", "seconds": 0.1, "images": images, "rows": rows}],
    }


def _gates(rng: np.random.Generator, modules: list[dict], tim_layers: list[dict]) -> dict:
    rows = []
    for module in modules:
        shares, uniform = _shares(rng, module["heads"]), math.log(module["heads"])
        instances = "sentences" if module["kind"] == ENCODER else "positions"
        entropy = uniform * rng.uniform(0.8, 1)
        rows.append(_where(module, "kind") | {"entropy": entropy, "uniform": uniform, "instances": instances})
        rows[-1] |= {"count": 500, "shares": shares}
    every = [share for row in rows for share in row["shares"]]
    entropy, uniform = (sum(row[key] for row in rows) / len(rows) for key in ("entropy", "uniform"))
    rare = sum(share < 0.01 for share in every)
    shares = {"max_share": max(every), "min_share": min(every), "rare_experts": rare, "experts": len(every)}
    return {"entropy": entropy, "uniform": uniform, **shares, "modules": rows}


def _experts(rng: np.random.Generator, modules: list[dict], tim_layers: list[dict]) -> dict:
    rows = [
        _where(module)
        | {
            "side": "source" if module["kind"] == ENCODER else "target",
            "experts": [_tokens(rng) if expert else [] for expert in range(module["heads"])],
        }
        for module in modules
    ]
    return {"minimum_count": 5, "modules": rows}


def _single_expert(rng: np.random.Generator, modules: list[dict], tim_layers: list[dict]) -> dict:
    rows = [
        {"inference": "mixture", "scores": [30.25], "BLEU": 30.25, "deviation": None, "difference": 0.0},
        {
            "inference": "random",
            "scores": [28.5, 29.0],
            "BLEU": 28.75,
            "deviation": 0.35355,
            "difference": -1.5,
        },
    ]
    return {"options": "--beam 5", "rows": rows}


def _redundancy(rng: np.random.Generator, modules: list[dict], tim_layers: list[dict]) -> dict:
    types = []
    for kind in (ENCODER, DECODER, CROSS):
        of_kind = [module for module in modules if module["kind"] == kind]
        size = sum(module["heads"] for module in of_kind)
        pairs = rng.uniform(0.2, 0.9, (size, size))
        pairs = (pairs + pairs.T) / 2
        np.fill_diagonal(pairs, 1)
        rows = [
            _where(module, "heads")
            | {f"LR_{name}": rng.uniform(0.4, 0.7) for name in ("distance", "divergence")}
            for module in of_kind
        ]
        if not of_kind:
            continue
        types.append(
            {
                **{"type": kind, "LR_distance": 0.55, "HR_distance": 0.5},
                **{"LR_divergence": 0.85, "HR_divergence": 0.75, "rows": 4000, "modules": rows},
                "pairs_distance": pairs.tolist(),
            }
        )
    return {
        **{"LR_distance_all": 0.5512, "HR_distance_all": 0.4987},
        **{"LR_divergence_all": 0.8512, "HR_divergence_all": 0.7487},
        **{"LR_distance_encoder": 0.55, "HR_distance_encoder": 0.5},
        **{"LR_divergence_encoder": 0.8531, "HR_divergence_encoder": 0.7519},
        **{"sentences": 500, "types": types},
    }


def _clusters(rng: np.random.Generator, modules: list[dict], tim_layers: list[dict]) -> dict:
    def head() -> dict:
        usage, shares = _shares(rng, 5), _shares(rng, 5)
        return {
            "usage": usage,
            "shares": shares,
            "usage_entropy": 1.4,
            "posterior_entropy": 0.9,
            "tokens": [_tokens(rng, 5) for _ in range(5)],
        }

    return {
        "modules": [
            _where(module, "kind") | {"heads": [head() for _ in range(module["heads"])]} for module in modules
        ]
    }


def _competition(rng: np.random.Generator, modules: list[dict], tim_layers: list[dict]) -> dict:
    layers, tokens = [], []
    for i, where in enumerate(tim_layers):
        side = "source" if where["module"].startswith("encoder") else "target"
        percentiles = sorted(rng.uniform(0.2, 0.69, 5) / (1 + 0.2 * (i % 5)))
        layers.append(where | {"side": side, "entropy": float(np.mean(percentiles)), "uniform": math.log(2)})
        layers[-1] |= {
            "percentiles": dict(zip(("5", "25", "50", "75", "95"), percentiles, strict=True)),
            "mean": _shares(rng, 2),
        }
        rows = []
        for word in dict.fromkeys(WORDS):
            low, mean, high = sorted(rng.uniform(0, 1, 3))
            rows.append(
                {
                    "token": word,
                    "count": 40,
                    "min": [low, 1 - high],
                    "mean": [mean, 1 - mean],
                    "max": [high, 1 - low],
                }
            )
        tokens.append({"module": where["module"], "tokens": rows})
    correlation = []
    for side in ("source", "target"):
        names = [row["module"] for row in layers if row["side"] == side]
        if names:
            matrix = np.corrcoef(rng.standard_normal((len(names), 20))) if len(names) > 1 else np.ones((1, 1))
            correlation.append({"side": side, "layers": names, "matrix": matrix.tolist()})
    return {"mechanisms": 2, "layers": layers, "correlation": correlation, "tokens": tokens}


def _pictures(rng: np.random.Generator, modules: list[dict], tim_layers: list[dict]) -> dict:
    """Return the analysis of three pictures of 3 x 4 pixels in four colours, whose sides are two regions."""
    height, width, count = 3, 4, 3
    layers = []
    for where in tim_layers:
        c = softmax(rng.standard_normal((count, height * width, 2))).round(4)
        layers.append(
            {
                **{"module": where["module"], "layer": where["layer"]},
                "mean": c.mean(axis=0).T.round(4).tolist(),
                "single": c.transpose(0, 2, 1).tolist(),
                "regions": {"left": _shares(rng, 2), "right": _shares(rng, 2)},
                "eta_squared": float(rng.uniform(0.1, 0.9)),
            }
        )
    return {
        **{"height": height, "width": width, "count": count, "brightness": 0.25},
        "regions": {"left": [0, 2], "right": [2, 4]},
        "palette": [[0], [90], [180], [255]],
        "pictures": rng.integers(0, 4, (count, height * width)).tolist(),
        "heads": [{"module": each["module"], "layer": each["layer"], "eta_squared": 0.3} for each in layers],
        "layers": layers,
    }


def _patterns(rng: np.random.Generator, modules: list[dict], tim_layers: list[dict]) -> dict:
    rows = []
    for module in modules:
        heads = [rng.multinomial(500, softmax(2 * rng.standard_normal(6))) for _ in range(module["heads"])]
        shares = (sum(heads) / sum(heads).sum()).tolist()
        heads = [{"counts": counts.tolist(), "class": CLASSES[int(counts.argmax())]} for counts in heads]
        rows.append(_where(module, "kind") | {"heads": heads, "shares": shares})
    return {"classes": CLASSES, "sentences": 500, "modules": rows}
