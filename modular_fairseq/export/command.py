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

The command then translates the part --gen-subset of DATA by the model and by what it has written, both on
the CPU with a beam of 5. It prints how many translations differ, BLEU of both with the p of a paired
bootstrap, and the time of both. BLEU is computed on the tokens of DATA, after --remove-bpe. DIR gets these
numbers as export.json.
"""

import argparse
import importlib.util
import os
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from fairseq import utils
from fairseq.data.data_utils import post_process
from fairseq.tasks import FairseqTask

from modular_fairseq.export.fixed_heads import check_plain, plain
from modular_fairseq.export.gates import GATES, constant_scales, gates_depend_on_input, measured_scales
from modular_fairseq.loading import MAX_TOKENS, Loaded, batches, load
from modular_fairseq.user_dir import add_user_dir, import_user_dir
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import write_json
from modular_fairseq_cli.scoring.significance import paired_bootstrap

BEAM = 5
RECORD = "export.json"
LONGEST = 200  # tokens of a translation, as fairseq-generate has it by default
QUANTIZATIONS = ("float32", "float16", "bfloat16", "int16", "int8", "int8_float16", "int8_bfloat16")


@dataclass(frozen=True)
class Comparison:
    """The translations of a model and of what was exported.

    Attributes:
        sentences: number of sentences.
        differ: number of sentences with another translation.
        bleu, bleu_exported: BLEU of both.
        p_value: the p of a paired bootstrap for the difference of the two (`paired_bootstrap`).
        signature: sacrebleu's signature of BLEU and of the bootstrap.
        seconds, seconds_exported: wall time of both searches.
        compute_type: the type in which CTranslate2 has computed. A CPU does not compute in every type.
    """

    sentences: int
    differ: int
    bleu: float
    bleu_exported: float
    p_value: float
    signature: str
    seconds: float
    seconds_exported: float
    compute_type: str

    def __str__(self) -> str:
        return (
            f"{self.differ} of {self.sentences} translations differ; BLEU {self.bleu:.2f} by the model, "
            f"{self.bleu_exported:.2f} as exported (paired bootstrap: p = {self.p_value:.3f}); "
            f"{self.seconds:.1f} s and {self.seconds_exported:.1f} s "
            f"(exported: computed in {self.compute_type})\nBLEU: {self.signature}"
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
    parser.add_argument("--force", action="store_true", help="replace --out if export has written it")
    add_user_dir(parser)


def run(args: argparse.Namespace) -> None:
    if importlib.util.find_spec("ctranslate2") is None:
        raise UsageError(
            "export needs the package ctranslate2, which is not installed; install it with pip install "
            "modular_fairseq[export]"
        )
    out = os.path.abspath(args.out)
    check_folder(out, args.force)
    try:
        post_process("", args.remove_bpe)
    except NotImplementedError:
        raise UsageError(
            f"--remove-bpe {args.remove_bpe!r} is no mark of sub-words that fairseq knows; use '@@ ' or "
            "sentencepiece"
        ) from None
    import_user_dir(args)
    # The import needs CTranslate2.
    from modular_fairseq.export.to_ctranslate2 import save

    loaded = load(args.path, args.data, args.gen_subset)
    check_plain(loaded.model)
    has_gates = gates_depend_on_input(loaded.model)
    scales = constant_scales(loaded.model)
    if has_gates and args.gates is None:
        raise UsageError(
            "the gates of the model depend on their input, which CTranslate2 does not compute; give --gates "
            "mean or --gates expert to replace them by fixed head scales"
        )
    if args.gates and not has_gates:
        why = "the gates of the model do not depend on their input" if scales else "the model has no gates"
        raise UsageError(f"--gates has no effect, because {why}; leave it out")
    if has_gates:
        read = batches(loaded.model, loaded.task, args.gen_subset, MAX_TOKENS, skip_invalid=True)
        scales = measured_scales(loaded.model, args.gates, read)
    exported = plain(loaded.model, scales)
    record = {
        "checkpoint": loaded.about["checkpoint"],
        "gates": args.gates,
        "quantization": args.quantization,
        "subset": args.gen_subset,
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "parameters_exported": sum(p.numel() for p in exported.parameters()),
    }
    try:
        os.makedirs(os.path.dirname(out), exist_ok=True)
        place = tempfile.TemporaryDirectory(prefix=".export-", dir=os.path.dirname(out))
    except OSError as error:
        raise UsageError(
            f"--out {args.out}: its folder cannot be made or written ({error.strerror}); give another folder"
        ) from None
    with place as temporary:
        made = os.path.join(temporary, "made")
        save(exported, loaded.task, made, args.quantization)
        comparison = compare(loaded, args.gen_subset, made, args.remove_bpe)
        write_json(os.path.join(made, RECORD), record | asdict(comparison))
        check_folder(out, args.force)  # another process may have made it meanwhile
        replace_folder(out, made, os.path.join(temporary, "old"))
    print(f"{args.out}: {GATES[args.gates] if args.gates else 'the model of the checkpoint'}\n{comparison}")


def replace_folder(folder: str, made: str, old: str) -> None:
    """Move a folder to `folder`, and what is there to `old`. If that fails, what was there is there again."""
    replaced = os.path.lexists(folder)
    if replaced:
        os.rename(folder, old)
    try:
        os.rename(made, folder)
    except OSError:
        if replaced:
            os.rename(old, folder)
        raise


def check_folder(out: str, force: bool) -> None:
    """Raise UsageError if a folder cannot be made, or if --force would delete what export has not written."""
    if not os.path.lexists(out):
        return
    if not force:
        raise UsageError(f"--out {out} exists; give another folder, or replace it with --force")
    is_ours = os.path.isdir(out) and not os.path.islink(out) and os.path.isfile(os.path.join(out, RECORD))
    if not is_ours:
        raise UsageError(
            f"--force replaces only what export has written, and --out {out} has no {RECORD}; give another "
            "folder"
        )


def compare(loaded: Loaded, subset: str, folder: str, mark: str | None) -> Comparison:
    """Translate a part of the data by a model and by its exported form.

    Args:
        loaded: the model and its data.
        subset: the part.
        folder: the exported model.
        mark: what joins sub-words, or None.

    Raises:
        UsageError: no sentence of the part is short enough for the model.
    """
    from ctranslate2 import Translator

    dataset, target = loaded.task.dataset(subset), loaded.task.target_dictionary
    model = loaded.model.cpu().float()
    longest = min(LONGEST, model.max_decoder_positions() - 1)
    start = time.perf_counter()
    ours = dict(_search(model, loaded.task, subset, longest))
    seconds = time.perf_counter() - start
    if not ours:
        raise UsageError(f"--gen-subset {subset} has no sentence that is short enough for the model")
    sources = [loaded.task.source_dictionary.string(dataset.src[i]).split() for i in ours]
    references = {i: target.string(dataset.tgt[i], escape_unk=True) for i in ours}
    translator = Translator(folder, device="cpu", intra_threads=torch.get_num_threads())
    start = time.perf_counter()
    results = translator.translate_batch(
        sources, beam_size=BEAM, max_decoding_length=longest, max_batch_size=64
    )
    theirs = {i: " ".join(result.hypotheses[0]) for i, result in zip(ours, results, strict=True)}
    seconds_exported = time.perf_counter() - start

    wanted, baseline, system = (
        [post_process(text[i], mark) for i in ours] for text in (references, ours, theirs)
    )
    [tested] = paired_bootstrap(wanted, baseline, [system], tokenize="none")
    return Comparison(
        sentences=len(ours),
        differ=sum(ours[i] != theirs[i] for i in ours),
        bleu=tested["bleu"]["baseline"],
        bleu_exported=tested["bleu"]["score"],
        p_value=tested["bleu"]["p_value"],
        signature=tested["bleu"]["signature"],
        seconds=seconds,
        seconds_exported=seconds_exported,
        compute_type=translator.compute_type,
    )


def _search(model: Any, task: FairseqTask, subset: str, longest: int) -> Iterator[tuple[int, str]]:
    """Yield the number of each sentence and its translation by the model, on the CPU."""
    model.make_generation_fast_(beamable_mm_beam_size=BEAM, need_attn=False)
    generator = task.build_generator([model], Namespace(beam=BEAM, max_len_a=0, max_len_b=longest))
    for batch in batches(model, task, subset, MAX_TOKENS, skip_invalid=True):
        with torch.no_grad():
            found = task.inference_step(generator, [model], utils.move_to_cpu(batch))
        for number, [best, *_] in zip(batch["id"].tolist(), found, strict=True):
            yield number, task.target_dictionary.string(best["tokens"])
