"""Break the package in one place at a time and see that a test notices.

    python tests/system/mutations.py                  # all mutations, one after the other
    python tests/system/mutations.py --tree CHECKOUT  # another version
    python tests/system/mutations.py --only 3 7

Each of `MUTATIONS` replaces one piece of text in a copy of the tree and runs the test files that cover it.
A line for each says whether a test failed. The exit code is 1 if no test notices a mutation, if its text does
not occur exactly once, or if the tests fail without it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[2]


class Mutation(NamedTuple):
    """A change that makes `file` wrong, and the names of the test files of which one must notice it."""

    kind: str
    file: str
    old: str
    new: str
    tests: str


MODULES, MODELS = "modular_fairseq/modules", "modular_fairseq/models"
TRAINING, RUNS = "modular_fairseq/training", "modular_fairseq/runs"
PATCHES, SCORING = "modular_fairseq/patches", "modular_fairseq_cli/scoring"
MUTATIONS = [
    Mutation(
        "arithmetic",
        f"{MODULES}/gates.py",
        "return mean, self.shares @ (x - mean).square()",
        "return mean, self.shares @ x.square()",
        "test_mixture",
    ),
    Mutation(
        "training",
        f"{TRAINING}/gate_sgd.py",
        "(sentences if per_sentence else tokens)",
        "(tokens if per_sentence else sentences)",
        "test_bcd",
    ),
    Mutation(
        "arithmetic",
        f"{MODULES}/attention.py",
        "scores.masked_fill(blind, 0.0), dim",
        "scores, dim",
        "test_attention",
    ),
    Mutation(
        "arithmetic",
        f"{MODULES}/attention.py",
        "dim=-1, dtype=at_least_float32",
        "dim=-1",
        "test_attention",
    ),
    Mutation(
        "arithmetic",
        f"{MODULES}/gate_inputs.py",
        "keep = max(x.size(0) - self.window + 1, 0)",
        "keep = 0",
        "test_mixture",
    ),
    Mutation(
        "searching",
        f"{MODULES}/key_values.py",
        "target.size(0) != self._memory.size(0) or ",
        "",
        "test_attention",
    ),
    Mutation(
        "searching",
        "modular_fairseq/search/beam_search.py",
        "generator.max_len - 1",
        "generator.max_len",
        "test_beam_search",
    ),
    Mutation(
        "searching",
        "modular_fairseq/search/beam_search.py",
        "        and not generator.match_source_len\n",
        "",
        "test_beam_search",
    ),
    Mutation(
        "searching",
        f"{MODELS}/decoder.py",
        "not any_followed",
        "True",
        "test_translation",
    ),
    Mutation(
        "training",
        f"{TRAINING}/g_steps.py",
        "SEED_OFFSET = 0x9E3779B9",
        "SEED_OFFSET = 0",
        "test_bcd",
    ),
    Mutation(
        "training",
        f"{TRAINING}/g_steps.py",
        "            self.skipped_in_a_row = 0\n            loss_sum",
        "            loss_sum",
        "test_bcd",
    ),
    Mutation(
        "resuming",
        f"{TRAINING}/checkpoints.py",
        "found.update(name.encode())",
        "pass",
        "test_checkpoints",
    ),
    Mutation(
        "arithmetic",
        f"{MODULES}/mutual_information.py",
        "weights = -others.unsqueeze(2)",
        "weights = others.unsqueeze(2)",
        "test_mutual_information",
    ),
    Mutation(
        "arithmetic",
        f"{MODULES}/mutual_information.py",
        "(diagonal - sums.log()",
        "(diagonal + sums.log()",
        "test_mutual_information",
    ),
    Mutation(
        "arithmetic",
        f"{MODULES}/semantic_mask.py",
        ".masked_fill_(overlap <= SMALLEST_OVERLAP, 0.0)",
        "",
        "test_semantic_mask",
    ),
    Mutation(
        "arithmetic",
        f"{MODULES}/expert_mixture.py",
        "logits - exponential.log()",
        "logits + exponential.log()",
        "test_mixture",
    ),
    Mutation(
        "arithmetic",
        f"{MODULES}/independent_mechanisms.py",
        "torch.softmax(scores, dim=-2,",
        "torch.softmax(scores, dim=-3,",
        "test_mechanisms",
    ),
    Mutation(
        "arithmetic",
        f"{MODULES}/streams.py",
        "        return _sum(outputs)\n",
        "        return outputs[-1]\n",
        "test_streams",
    ),
    Mutation(
        "arithmetic",
        f"{TRAINING}/averaging.py",
        "names = names if more_is_better else names[::-1]",
        "names = names[::-1]",
        "test_averaging",
    ),
    Mutation(
        "refusal",
        f"{MODELS}/mae_options.py",
        "if not 0 < dropped < heads:",
        "if not 0 < dropped <= heads:",
        "test_translation",
    ),
    Mutation(
        "refusal",
        f"{MODELS}/dma.py",
        "if not 1e-3 <= options.dma_centroid_gradient <= 1e3:",
        "if not 1e-3 <= options.dma_centroid_gradient:",
        "test_disentangled",
    ),
    Mutation(
        "refusal",
        f"{MODELS}/multistream.py",
        "elif layers < 2 + k or (layers - 2) % k:",
        "elif layers < 2 + k:",
        "test_composition",
    ),
    Mutation(
        "refusal",
        f"{MODELS}/tim.py",
        'if choice.options.tim_layers == "middle" and depth < 4:',
        'if choice.options.tim_layers == "middle" and depth < 3:',
        "test_mechanisms test_composition",
    ),
    Mutation(
        "refusal",
        f"{MODELS}/checks.py",
        "idle = not mechanism.is_used(options)",
        'idle = not mechanism.is_used(options) and mechanism.name != "dma"',
        "test_disentangled",
    ),
    Mutation(
        "refusal",
        f"{TRAINING}/averaging.py",
        "if not torch.equal(second.agreeing[name], value):",
        "if False:",
        "test_averaging test_disentangled test_disentangled_commands",
    ),
    Mutation(
        "refusal",
        f"{PATCHES}/literals.py",
        "    return ast.literal_eval(node)",
        "    return eval(ast.unparse(node))",
        "test_literal_options",
    ),
    Mutation(
        "resuming",
        f"{RUNS}/run.py",
        "return state is not None and training_ended(state, *limits)",
        "return False",
        "test_ablation test_killed_ablation",
    ),
    Mutation(
        "resuming",
        f"{RUNS}/greedy/trial.py",
        "elif not diverged and (",
        "elif False and (",
        "test_ablation",
    ),
    Mutation(
        "resuming",
        f"{TRAINING}/checkpoints.py",
        "or 0 < max_epoch < epoch",
        "or 0 < max_epoch <= epoch",
        "test_ablation test_killed_ablation",
    ),
    Mutation(
        "resuming",
        "modular_fairseq_cli/lifetime.py",
        'if sys.platform != "linux" or LIBC.prctl(1, signal.SIGKILL):',
        "if False:",
        "test_killed_table",
    ),
    Mutation(
        "resuming",
        f"{PATCHES}/checkpoints.py",
        "os.replace(part, dst_path)",
        "shutil.copyfile(src_path, dst_path)",
        "test_patched_fairseq",
    ),
    Mutation(
        "resuming",
        f"{PATCHES}/data.py",
        "kept < len(indices)",
        "kept < len(indices) - 1",
        "test_patched_fairseq",
    ),
    Mutation(
        "scoring",
        f"{SCORING}/spread.py",
        "Spread(average(values), stdev(values)",
        "Spread(average(values), stdev(values) / len(values) ** 0.5",
        "test_scoring test_tables",
    ),
    Mutation(
        "scoring",
        f"{SCORING}/metrics.py",
        'token if token == "@-@" else',
        "",
        "test_scoring",
    ),
    Mutation(
        "scoring",
        f"{SCORING}/translations.py",
        'or ("moses" if text.tokenized else "none")',
        'or "none"',
        "test_scoring",
    ),
    Mutation(
        "statistics",
        f"{SCORING}/intervals.py",
        "max(n * float(of_sentences.var(ddof=1)) - both, 0.0)",
        "0.0",
        "test_intervals",
    ),
    Mutation(
        "statistics",
        f"{SCORING}/intervals.py",
        "m * score(whole) - (m - 1) * without",
        "m * score(whole) - m * without",
        "test_intervals",
    ),
    Mutation(
        "statistics",
        f"{SCORING}/intervals.py",
        "float(values.std(ddof=1)) / math.sqrt(n)",
        "float(values.std()) / math.sqrt(n)",
        "test_intervals",
    ),
    Mutation(
        "statistics",
        "modular_fairseq_cli/curves.py",
        "set.intersection(*map(set, curves))",
        "set.union(*map(set, curves))",
        "test_curves",
    ),
    Mutation(
        "statistics",
        f"{RUNS}/evidence/verdicts.py",
        'sign = 1 if self.claim.expected == "above" else -1',
        "sign = 1",
        "test_evidence",
    ),
    Mutation(
        "statistics",
        f"{RUNS}/evidence/verdicts.py",
        "p * (tests - rank)",
        "p * tests",
        "test_evidence",
    ),
    Mutation(
        "statistics",
        "modular_fairseq/analysis/tokens.py",
        " - float(np.mean([mean_pmi(each) for each in drawn]))",
        "",
        "test_analyses",
    ),
    Mutation(
        "data",
        "modular_fairseq_cli/corpora/texts.py",
        '("train", slice(-last))',
        '("train", slice(last))',
        "test_data_prep",
    ),
    Mutation(
        "kernels",
        f"{MODELS}/layers.py",
        "x = self.fc2(self.activation_dropout_module(x))",
        "x = self.fc2(self.activation_dropout_module(x)) * 1.0",
        "test_kernel_ceilings",
    ),
    Mutation(
        "kernels",
        f"{MODULES}/expert_mixture.py",
        "return None if scale is None else scale.transpose(1, 2).unsqueeze(-1)",
        "return None if scale is None else scale.transpose(1, 2).unsqueeze(-1).clone()",
        "test_kernel_ceilings",
    ),
    Mutation(
        "kernels",
        f"{MODULES}/semantic_mask.py",
        "return overlap.log()",
        "return overlap.log() + 0.0",
        "test_kernel_ceilings",
    ),
    Mutation(
        "kernels",
        f"{MODELS}/layers.py",
        "            x = weigh(x, competition)",
        "            x = weigh(x, competition).clone()",
        "test_kernel_ceilings",
    ),
    Mutation(
        "kernels",
        f"{MODELS}/layers.py",
        "        x, _ = self._attend_to_self(x, encoder_padding_mask, attn_mask, masks=masks)",
        "        assert x.sum().item() == x.sum().item()\n"
        "        x, _ = self._attend_to_self(x, encoder_padding_mask, attn_mask, masks=masks)",
        "test_kernel_ceilings",
    ),
    Mutation(
        "compiling",
        f"{MODULES}/once.py",
        "    if torch.compiler.is_compiling():\n        return compute()\n",
        "",
        "test_compilation",
    ),
    Mutation(
        "compiling",
        f"{MODULES}/gate_statistics.py",
        "self._sums = new if self._sums is None else self._sums + new\n            return",
        "self._sums = new\n            return",
        "test_compilation",
    ),
    Mutation(
        "arithmetic",
        "modular_fairseq/export/fixed_heads.py",
        ".repeat_interleave(module.head_dim)",
        ".repeat(module.head_dim)",
        "test_export",
    ),
    Mutation(
        "arithmetic",
        "modular_fairseq/export/gates.py",
        "known = (~padding).double().cpu()",
        "known = torch.ones_like(padding).double().cpu()",
        "test_export",
    ),
    Mutation(
        "arithmetic",
        "modular_fairseq/criterions/modular_cross_entropy.py",
        "features = net_output[0][:, self.ignore_prefix_size :].flatten(0, 1)",
        "features = net_output[0].transpose(0, 1)[:, self.ignore_prefix_size :].flatten(0, 1)",
        "test_modular_cross_entropy",
    ),
]


def files_of(tree: Path, stems: str) -> list[str]:
    """Return the paths of the test files with these names, in whichever folder of tests/ they are."""
    paths = sorted((tree / "tests").rglob("test_*.py"))
    return [str(path.relative_to(tree)) for path in paths if path.stem in stems.split()]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--tree", type=Path, default=HERE, help="the checkout to break a copy of; default: this one"
    )
    parser.add_argument(
        "--only", type=int, nargs="+", metavar="NUMBER", help="only these mutations, counted from 1"
    )
    args = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "tree")
        left_out = shutil.ignore_patterns(".venv", ".git", ".*_cache", "site", "work")
        shutil.copytree(args.tree, copy, ignore=left_out)
        environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"  # two changes of a file may fall into one second

        def test(stems: str) -> tuple[int, str]:
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files_of(copy, stems)]
            done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
            return done.returncode, done.stdout.strip().splitlines()[-1]

        passing: dict[str, bool] = {}  # without a mutation
        for number, mutation in enumerate(MUTATIONS, 1):
            if args.only and number not in args.only:
                continue
            if mutation.tests not in passing:
                passing[mutation.tests] = test(mutation.tests)[0] == 0
            start, path = time.monotonic(), copy / mutation.file
            text = path.read_text(encoding="utf-8")
            if text.count(mutation.old) != 1:
                said, noticed = f"its text occurs {text.count(mutation.old)} times", False
            else:
                path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
                status, said = test(mutation.tests)
                path.write_text(text, encoding="utf-8")
                noticed = status == 1 and passing[mutation.tests]
                said += "" if passing[mutation.tests] else " (these tests fail without the mutation)"
            missed += not noticed
            seconds = time.monotonic() - start
            answer = "noticed" if noticed else "NOT NOTICED"
            line = f"{number:2} {answer:12}{mutation.kind:12}{seconds:4.0f} s  {mutation.file}: {said}"
            print(line, flush=True)
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
