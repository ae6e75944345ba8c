"""Write a trained model for another inference engine, and compare the translations of both.

    modular-fairseq export DATA --path CHECKPOINT --to ctranslate2 --out DIR
    modular-fairseq export DATA --path CHECKPOINT --to ctranslate2 --out DIR --gates mean --quantization int8

CTranslate2 runs Transformers in C++, on CPUs and GPUs (https://opennmt.net/CTranslate2). It is installed by
`pip install modular_fairseq[export]`. DATA is the folder of binarized data that the model was trained with.

In inference, modular_transformer and a mixture without gates (--mae-gating uniform) are plain Transformers,
and the exported model is the same model. Gates of a mixture depend on their input, which no engine computes.
With --gates they are replaced by fixed head scales, which is another model:

    mean     each head has its mean scale over the part --gen-subset of DATA
    expert   each attention module has the expert that has the largest gate most often; the heads that it
             lacks are removed

Models with masks (dma), streams, independent mechanisms (tim) or without residual connections are refused.

The command then translates the part --gen-subset of DATA by the model and by what it has written, with a
beam of 5. It prints how many translations differ, BLEU of both and the time of both. BLEU is computed on the
tokens of DATA, after --remove-bpe. DIR gets these numbers as export.json.
"""

import argparse
import importlib.util
import json
import os
import shutil
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from fairseq.data.data_utils import post_process
from sacrebleu import BLEU

from modular_fairseq.analysis.model_and_data import MAX_TOKENS, Loaded, batches, load
from modular_fairseq.export.fixed_heads import check_plain, plain
from modular_fairseq.export.gates import GATES, has_learned_gates, measured_scales
from modular_fairseq.user_dir import add_user_dir, import_user_dir
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import write_file

BEAM = 5
LONGEST = 200  # tokens of a translation, as fairseq-generate has it by default
QUANTIZATIONS = ("float32", "float16", "bfloat16", "int16", "int8", "int8_float16", "int8_bfloat16")


@dataclass(frozen=True)
class Comparison:
    """The translations of a model and of what was exported.

    Attributes:
        sentences: number of sentences.
        differ: number of sentences with another translation.
        bleu, bleu_exported: BLEU of both.
        seconds, seconds_exported: wall time of both searches.
    """

    sentences: int
    differ: int
    bleu: float
    bleu_exported: float
    seconds: float
    seconds_exported: float

    def __str__(self) -> str:
        return (
            f"{self.differ} of {self.sentences} translations differ; BLEU {self.bleu:.2f} by the model, "
            f"{self.bleu_exported:.2f} as exported; {self.seconds:.1f} s and {self.seconds_exported:.1f} s"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="folder of binarized data, as for fairseq-generate")
    parser.add_argument("--path", required=True, metavar="FILE", help="checkpoint of the model")
    parser.add_argument("--to", required=True, choices=["ctranslate2"], help="the engine")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the exported model")
    parser.add_argument("--gates", choices=[*GATES], help="what replaces learned gates; see above")
    parser.add_argument(
        "--quantization",
        choices=QUANTIZATIONS,
        default="float32",
        help="type of the weights (default: %(default)s)",
    )
    parser.add_argument(
        "--gen-subset",
        default="valid",
        metavar="PART",
        help="part of the data for the comparison, and for --gates (default: %(default)s)",
    )
    parser.add_argument(
        "--remove-bpe",
        nargs="?",
        const="@@ ",
        metavar="MARK",
        help="join sub-words before BLEU is computed, as fairseq-generate does; sentencepiece is a MARK "
        "(without a value: '@@ ')",
    )
    parser.add_argument("--force", action="store_true", help="replace --out if it exists")
    add_user_dir(parser)


def run(args: argparse.Namespace) -> None:
    if importlib.util.find_spec("ctranslate2") is None:
        raise UsageError(
            "export needs the package ctranslate2, which is not installed; install it with pip install "
            "modular_fairseq[export]"
        )
    if os.path.lexists(args.out) and not args.force:
        raise UsageError(f"--out {args.out} exists; give another folder, or replace it with --force")
    import_user_dir(args)
    # The import needs CTranslate2.
    from modular_fairseq.export.to_ctranslate2 import save

    loaded = load(args.path, args.data, args.gen_subset)
    check_plain(loaded.model)
    has_gates = has_learned_gates(loaded.model)
    if has_gates and args.gates is None:
        raise UsageError(
            "the gates of the model depend on their input, which CTranslate2 does not compute; give --gates "
            "mean or --gates expert to replace them by fixed head scales"
        )
    if args.gates and not has_gates:
        raise UsageError("--gates has no effect, because the model has no learned gates; leave it out")
    read = batches(loaded.model, loaded.task, args.gen_subset, MAX_TOKENS, skip_invalid=True)
    scales = measured_scales(loaded.model, args.gates, read) if has_gates else {}
    exported = plain(loaded.model, scales)
    unfinished = f"{args.out}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    save(exported, loaded.task, unfinished, args.quantization)
    comparison = compare(loaded, args.gen_subset, unfinished, args.remove_bpe)
    record = {
        "checkpoint": loaded.about["checkpoint"],
        "gates": args.gates,
        "quantization": args.quantization,
        "subset": args.gen_subset,
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "parameters_exported": sum(p.numel() for p in exported.parameters()),
        **asdict(comparison),
    }
    write_file(os.path.join(unfinished, "export.json"), json.dumps(record, indent=1))
    if os.path.lexists(args.out):
        shutil.rmtree(args.out)
    os.replace(unfinished, args.out)
    kind = GATES[args.gates] if args.gates else "the same model"
    print(f"{args.out} is {kind}")
    print(comparison)


def compare(loaded: Loaded, subset: str, folder: str, mark: str | None) -> Comparison:
    """Translate a part of the data by a model and by its exported form.

    Args:
        loaded: the model and its data.
        subset: the part.
        folder: the exported model.
        mark: what joins sub-words, or None.
    """
    from ctranslate2 import Translator

    dataset, target = loaded.task.dataset(subset), loaded.task.target_dictionary
    start = time.perf_counter()
    ours = dict(_search(loaded, subset))
    seconds = time.perf_counter() - start
    sources = {i: loaded.task.source_dictionary.string(dataset.src[i]).split() for i in ours}
    references = {i: target.string(dataset.tgt[i]) for i in ours}
    translator = Translator(
        folder, device="cuda" if torch.cuda.is_available() else "cpu", intra_threads=torch.get_num_threads()
    )
    start = time.perf_counter()
    results = translator.translate_batch(
        [sources[i] for i in ours], beam_size=BEAM, max_decoding_length=LONGEST, max_batch_size=64
    )
    theirs = {i: " ".join(result.hypotheses[0]) for i, result in zip(ours, results, strict=True)}
    seconds_exported = time.perf_counter() - start

    def bleu(found: dict[int, str]) -> float:
        pairs = [(post_process(found[i], mark), post_process(references[i], mark)) for i in ours]
        hypotheses, wanted = (list(side) for side in zip(*pairs, strict=True))
        return BLEU(tokenize="none").corpus_score(hypotheses, [wanted]).score

    return Comparison(
        len(ours),
        sum(ours[i] != theirs[i] for i in ours),
        bleu(ours),
        bleu(theirs),
        seconds,
        seconds_exported,
    )


def _search(loaded: Loaded, subset: str) -> Iterator[tuple[int, str]]:
    """Yield the number of each sentence and its translation by the model."""
    model, task = loaded.model, loaded.task
    settings: dict[str, Any] = {"beam": BEAM, "max_len_a": 0, "max_len_b": LONGEST}
    model.make_generation_fast_(beamable_mm_beam_size=BEAM, need_attn=False)
    generator = task.build_generator([model], Namespace(**settings))
    for batch in batches(model, task, subset, MAX_TOKENS, skip_invalid=True):
        with torch.no_grad():
            found = task.inference_step(generator, [model], batch)
        for number, [best, *_] in zip(batch["id"].tolist(), found, strict=True):
            yield number, task.target_dictionary.string(best["tokens"])
