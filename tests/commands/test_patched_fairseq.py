"""Test that the patches mend the defects of fairseq in data, copies of checkpoints, and options."""

import random
import shutil
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import sentencepiece
import torch
from fairseq import options, tasks
from fairseq.data import RoundRobinZipDatasets, data_utils
from fairseq.file_io import PathManager

from modular_fairseq.training import compilation
from modular_fairseq.training.checkpoints import load_checkpoint
from modular_fairseq.training.gate_trainer import gate_trainer_of
from modular_fairseq_cli.errors import UsageError
from tests.compiling import compiling
from tests.fairseq_commands import (
    OPTIMIZE,
    TINY,
    call,
    run_preprocess,
    run_train,
    train_config,
    write_reversal_corpus,
)
from tests.places import PYTHON, ROOT
from tests.processes import PATIENCE
from tests.watched_trainer import COMBINED, WITH_MASKS, Watched


@pytest.mark.parametrize("sentences", [0, 1, 7, 8, 12, 17])
def test_no_sentence_is_left_out_of_the_batches(sentences):
    indices = np.arange(sentences)[::-1].copy()
    lengths = np.full(sentences, 10)
    batches = data_utils.batch_by_size(
        indices, lambda i: 10, lengths, max_tokens=80, required_batch_size_multiple=8
    )
    assert [i for batch in batches for i in batch] == indices.tolist()
    assert all(len(batch) <= 8 for batch in batches)


def test_a_sentence_beyond_the_size_of_a_batch_is_one_sentence():
    with pytest.raises(
        UsageError, match="^--max-tokens 8 is less than the length of the longest sentence; give"
    ):
        data_utils.batch_by_size(np.arange(3), lambda i: 9, np.full(3, 9), max_tokens=8)


AHEAD = """
import sys, threading, time, torch, modular_fairseq
from fairseq.data.iterators import BufferedIterator
class Batches:
    def __len__(self):
        return 10**9
    def __iter__(self):
        while True:
            torch.zeros(200, 200).add_(1)  # freed here: a thread below that frees it may abort, too
            yield 1
class Slow:  # to free, as a large model: meanwhile Python stops each thread that returns from torch
    def __del__(self, sleep=time.sleep):
        sleep(0.5)
slow = Slow()
several = [BufferedIterator(2, Batches()) for _ in range(8)]
for batches in several:
    next(batches)
    if sys.argv[1] == "taken":
        threading.Thread(target=lambda batches=batches: [None for _ in batches], daemon=True).start()
time.sleep(0.2)
sys.exit(3)
"""


@pytest.mark.parametrize("batches", ["taken", "waiting"])
def test_threads_that_make_batches_do_not_abort_the_process(batches):
    """Their batches are taken, so that most are inside of torch, or they wait for room.

    The process is one of Python's own. The preloaded one leaves out the end of Python, which aborts.
    """
    command = [PYTHON, "-c", AHEAD, batches]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (3, "")


KILLED_EARLY = """
import os, signal, time, modular_fairseq
from torch.utils.data import DataLoader
parent = os.getpid()
def kill_parent(number):
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        time.sleep(0.01)
    print("orphaned", flush=True)
next(iter(DataLoader([1, 2], num_workers=1, worker_init_fn=kill_parent)))
"""


FORKED_WHILE_READING = """
import gc, os, modular_fairseq
from torch.utils.data import DataLoader
batches = iter(DataLoader([1, 2], num_workers=1))
if child := os.fork():
    os.waitpid(child, 0)
    print(next(batches).item(), next(batches).item())
else:
    del batches  # as when Python collects the copy of a process that reads data, too
    gc.collect()
    os._exit(0)
"""


def test_a_process_that_reads_data_leaves_the_others_to_their_parent():
    command = [sys.executable, "-W", "ignore", "-c", FORKED_WHILE_READING]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 2\n", "")


def test_a_process_that_reads_data_ends_although_its_parent_was_killed_when_it_started():
    """It has the standard output of its parent, so that `run` waits for its end."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED_EARLY], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "orphaned\n")


def test_a_copy_that_is_killed_leaves_the_old_file(tmp_path, monkeypatch):
    new, last = tmp_path / "checkpoint2.pt", tmp_path / "checkpoint_last.pt"
    new.write_text("new and whole")
    last.write_text("old")

    def killed(source, target):
        with open(target, "w") as file:
            file.write("new and")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", killed)
        with pytest.raises(KeyboardInterrupt):
            PathManager.copy(str(new), str(last), overwrite=True)
    assert last.read_text() == "old"
    assert PathManager().copy(str(new), str(last), overwrite=True)  # static, as before
    assert last.read_text() == "new and whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint2.pt", "checkpoint_last.pt"]


@pytest.mark.parametrize(
    ("words", "expected", "said"),
    [
        (["--kl-weight", "1"], UsageError, "^--kl-weight has no effect without --criterion modular_cross_"),
        (["--qq-weight=1"], UsageError, "^--qq-weight has no effect without --criterion modular_cross_"),
        (["--kl-wieght", "1"], SystemExit, "^2$"),
    ],
)
def test_an_option_of_our_criterion_is_named_and_any_other_is_left_to_fairseq(words, expected, said):
    with pytest.raises(expected, match=said):
        options.parse_args_and_arch(options.get_training_parser(), ["data", "--arch", "transformer", *words])


def binarize_text(folder, suffix):
    """Binarize the train and valid files with the ending `suffix`, and return the folder bin."""
    prefixes = [
        part for split in ("train", "valid") for part in (f"--{split}pref", str(folder / f"{split}.{suffix}"))
    ]
    run_preprocess("--only-source", "--destdir", folder / "bin", *prefixes)
    return folder / "bin"


def test_a_language_model_reads_one_sentence_at_a_time(tmp_path):
    """--sample-break-mode eos and `build_dataset_for_inference` use np.compat.long, which numpy lacks."""
    write_reversal_corpus(tmp_path)
    data = binarize_text(tmp_path, "en")
    size = "--decoder-embed-dim 16 --decoder-ffn-embed-dim 16 --decoder-attention-heads 2 --decoder-layers 1"
    args = ["--task", "language_modeling", "--arch", "modular_transformer_lm", "--sample-break-mode", "eos"]
    common = [*size.split(), "--optimizer", "adam", "--lr", "5e-3", "--max-tokens", "64"]
    args += ["--tokens-per-sample", 32, "--max-epoch", 1, "--save-dir", tmp_path / "checkpoints"]
    run_train(data, *args, common=common)
    assert load_checkpoint(tmp_path / "checkpoints" / "checkpoint_last.pt")["extra_state"]["val_loss"] > 0

    task = tasks.setup_task(train_config(data, *args, common=common).task)
    task.load_dataset("valid")
    sentences = [line.split() for line in (tmp_path / "valid.en").read_text().splitlines()]
    ids = [[*map(task.dictionary.index, words), task.dictionary.eos()] for words in sentences]
    read = [task.dataset("valid")[i]["target"].tolist() for i in range(len(ids))]
    assert sorted(read) == sorted(ids)
    given = [torch.tensor(sentence) for sentence in ids]
    inferred = task.build_dataset_for_inference(given, [len(sentence) for sentence in ids])
    pad = task.dictionary.pad()
    assert [inferred[i]["target"].tolist() for i in range(len(ids))] == [[*words[:-1], pad] for words in ids]


def test_translation_in_buckets_of_length(reversal_data, tmp_path):
    cfg = train_config(reversal_data, "--arch", "modular_transformer", "--num-batch-buckets", 3)
    task = tasks.setup_task(cfg.task)
    task.load_dataset("train")
    dataset = task.dataset("train")
    lengths = {len(dataset[i]["source"]) for i in range(len(dataset))}
    assert 1 < len(lengths) <= 3
    assert {tokens for _, tokens in dataset.buckets} == set(dataset.bucketed_num_tokens.tolist())
    args = ["--arch", "modular_transformer", "--num-batch-buckets", 3, "--max-epoch", 1]
    run_train(reversal_data, *args, "--save-dir", tmp_path)
    assert load_checkpoint(tmp_path / "checkpoint_last.pt")["extra_state"]["val_loss"] > 0


MASKED_LM = [
    "--task",
    "masked_lm",
    "--criterion",
    "masked_lm",
    "--arch",
    "roberta_base",
    "--mask-whole-words",
]
OF_ROBERTA = (
    "--encoder-layers 1 --encoder-embed-dim 16 --encoder-ffn-embed-dim 16 --encoder-attention-heads 2"
)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """Make a folder with text in SentencePiece's pieces, its spm.model and bin/."""
    folder = tmp_path_factory.mktemp("pieces")
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefg", k=rng.randrange(3, 9))) for _ in range(40)]
    lines = [" ".join(rng.choices(words, k=rng.randrange(4, 12))) for _ in range(100)]
    (folder / "text").write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "spm"), vocab_size=40, minloglevel=2
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    for split, of_split in (("train", lines[:80]), ("valid", lines[80:])):
        pieces = "".join(" ".join(model.encode(line, out_type=str)) + "\n" for line in of_split)
        (folder / f"{split}.txt").write_text(pieces)
    binarize_text(folder, "txt")
    return folder


def test_whole_words_are_masked_or_none_of_their_pieces(pieces, tmp_path):
    args = [*MASKED_LM, "--bpe", "sentencepiece", "--sentencepiece-model", pieces / "spm.model"]
    args += ["--tokens-per-sample", 32, "--max-epoch", 1, "--save-dir", tmp_path]
    args += ["--random-token-prob", 0, "--leave-unmasked-prob", 0, "--mask-prob", 0.4]
    common = [*OF_ROBERTA.split(), "--optimizer", "adam", "--lr", "1e-3", "--max-tokens", "300"]
    run_train(pieces / "bin", *args, common=common)
    assert load_checkpoint(tmp_path / "checkpoint_last.pt")["extra_state"]["val_loss"] > 0

    task = tasks.setup_task(train_config(pieces / "bin", *args, common=common).task)
    task.load_dataset("valid")
    words = masked_words = 0
    for i in range(len(task.dataset("valid"))):
        item = task.dataset("valid")[i]
        masked = (item["net_input.src_tokens"] == task.mask_idx).tolist()
        tokens = item["net_input.src_tokens"].where(~torch.tensor(masked), item["target"])
        symbols = [task.source_dictionary[token] for token in tokens]
        is_special = [token < task.source_dictionary.nspecial for token in tokens]
        starts = [j for j, s in enumerate(symbols) if s.startswith("\u2581") or is_special[j]]
        for start, end in zip(starts, [*starts[1:], len(symbols)], strict=True):
            if end - start > 1:
                words += 1
                masked_words += masked[start]
                assert len(set(masked[start:end])) == 1
    assert 0 < masked_words < words


@pytest.mark.parametrize("bpe", [[], ["--bpe", "subword_nmt"]])
def test_masking_whole_words_is_refused_without_a_bpe_that_knows_them(pieces, bpe):
    cfg = train_config(pieces / "bin", *MASKED_LM, *bpe, common=OF_ROBERTA.split())
    with pytest.raises(UsageError, match="--mask-whole-words needs a --bpe that .* gpt2, .* sentencepiece"):
        tasks.setup_task(cfg.task).load_dataset("valid")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["mae_transformer"], True),
        (["modular_transformer"], False),
        (["mae_transformer", "--mae-training", "joint"], True),
        (["mae_transformer", "--mae-training", "joint_main"], False),
    ],
)
def test_what_learns_outside_the_main_optimizer_is_said_once(reversal_data, tmp_path, caplog, args, says):
    caplog.set_level("INFO", "modular_fairseq")
    run_train(reversal_data, "--arch", *args, "--max-epoch", 2, "--save-dir", tmp_path)
    model = load_checkpoint(tmp_path / "checkpoint_last.pt")["model"]
    gates = sum(
        tensor.numel()
        for name, tensor in model.items()
        if ".gate_network." in name and not name.rpartition(".")[2].startswith(("running", "num_batches"))
    )
    said = [text for _, _, text in caplog.record_tuples if text.startswith("num. params trained outside")]
    assert said == ([f"num. params trained outside the main optimizer: {gates:,}"] if says else [])


def test_gate_statistics_of_a_validation_begin_anew(reversal_data):
    watched = Watched(reversal_data)
    trainer = watched.trainer
    trainer.begin_valid_epoch(1)
    trainer.valid_step(watched.batches[0])
    assert gate_trainer_of(trainer).valid_monitor.sums
    trainer.begin_valid_epoch(2)
    assert not gate_trainer_of(trainer).valid_monitor.sums


def overflow(values):
    return values * float("inf")


@pytest.fixture
def compiled_quickly(monkeypatch):
    """Let --compile need no compiler, and leave no program behind."""
    monkeypatch.setattr(compilation, "missing", lambda device: None)
    compile_layers = partial(compilation.compile_layers, backend="eager")
    monkeypatch.setattr(compilation, "compile_layers", compile_layers)
    with compiling():
        yield


@pytest.mark.parametrize(
    ("direction", "arch", "args"),
    [
        ("forward", "transformer_tiny", []),
        ("backward", "transformer_tiny", []),
        ("forward", "mae_transformer_tiny_cpu", ["--mae-gate-interval", "1"]),
        ("backward", "mae_transformer_tiny_cpu", ["--mae-gate-interval", "1"]),
        ("backward", "dma_transformer_tiny_cpu", WITH_MASKS.split()),
        ("backward", "modular_transformer_tiny_cpu", COMBINED.split()),
        ("forward", "modular_transformer_tiny_cpu", ["--compile"]),
        ("forward", "modular_transformer_tiny_cpu", ["--amp", "--bf16"]),
        ("backward", "mae_transformer_tiny_cpu", ["--amp", "--bf16"]),
    ],
)
def test_a_training_names_the_module_in_which_its_numbers_overflow(
    reversal_data, tmp_path, caplog, compiled_quickly, direction, arch, args
):
    """fairseq's own hook in the backward pass ended in a StopIteration, also for its own models."""
    watched = Watched(reversal_data, *args, "--save-dir", str(tmp_path), arch=arch)
    watched.trainer.begin_epoch(1)
    overflows = watched.model.encoder.layers[0].fc2
    if direction == "forward":
        torch.nn.init.constant_(overflows.weight, float("inf"))
    else:
        overflows.register_forward_hook(
            lambda module, inputs, output: output.register_hook(overflow) and None
        )
    caplog.set_level("WARNING", "fairseq.nan_detector")
    with pytest.raises(FloatingPointError, match="gradients are Nan/Inf"):
        watched.trainer.train_step(watched.batches)
    found = [text for name, _, text in caplog.record_tuples if name == "fairseq.nan_detector"]
    first = next(text for text in found if direction in text)
    assert "detected in output of encoder.layers.0.fc2," in first


@pytest.mark.parametrize(
    ("words", "dictionary"),
    [
        ("--task language_modeling --arch modular_transformer_lm", "dict.txt"),
        ("--task masked_lm --arch modular_roberta", "dict.txt"),
        ("--task translation --arch modular_transformer", "file such as train.de-en.de.idx"),
        ("--task translation --arch modular_transformer -s de -t en", "dict.de.txt"),
    ],
)
def test_a_folder_without_binarized_data_is_one_sentence(tmp_path, words, dictionary):
    """It names the folder bin, if this has the data."""
    (tmp_path / "bin").mkdir()
    words = [*words.split(), "--max-tokens", "100", "--save-dir", tmp_path / "run"]
    says = f"^{tmp_path} has no {dictionary}; give the folder of binarized data, which .* calls bin$"
    with pytest.raises(UsageError, match=says):
        run_train(tmp_path, *words, common=())
    for name in ("dict.txt", "dict.de.txt", "valid.de-en.en.idx"):
        (tmp_path / "bin" / name).touch()
    with pytest.raises(
        UsageError, match=f"^{tmp_path} has no {dictionary}; give {tmp_path}/bin, which has it$"
    ):
        run_train(tmp_path, *words, common=())
    with pytest.raises(
        UsageError, match=f"^{tmp_path}/other is no folder; give the folder of binarized data"
    ):
        run_train(tmp_path / "other", *words, common=())


def test_a_part_of_a_translation_that_does_not_exist_is_one_sentence(reversal_data, tmp_path):
    words = ["--arch", "modular_transformer", *TINY, *OPTIMIZE, "--save-dir", tmp_path]
    with pytest.raises(
        UsageError, match=rf"^{reversal_data} has no part valid7 \(valid7.de-en.\*\); prepare"
    ):
        run_train(reversal_data, *words, "--valid-subset", "valid7")


def test_a_sentence_beyond_the_positions_is_one_sentence(reversal_data, tmp_path):
    words = ["--arch", "modular_transformer", *TINY, *OPTIMIZE, "--max-source-positions", "4", "--save-dir"]
    says = "^sample [0-9]+, counted from 0, has [5-9] and . tokens, and the model has 4 and 1,024 positions"
    with pytest.raises(UsageError, match=says):
        run_train(reversal_data, *words, str(tmp_path))
    run_train(
        reversal_data, *words, str(tmp_path), "--skip-invalid-size-inputs-valid-test", "--max-epoch", "1"
    )
    assert (tmp_path / "checkpoint_last.pt").is_file()


def test_a_line_beyond_the_positions_is_named_by_its_words(reversal_data):
    """fairseq-interactive makes a data set of some lines, which does not know their numbers."""
    task = tasks.setup_task(train_config(reversal_data, *OPTIMIZE, "--arch", "modular_transformer").task)
    lines = [task.source_dictionary.encode_line(line).long() for line in ("w1 w2", "w3 w1 w4 w1 w5 w9")]
    dataset = task.build_dataset_for_inference(lines, [len(line) for line in lines])
    says = "^the sentence that begins with 'w3 w1 w4 w1 w5' has 7 tokens, and the model has 4 positions; shor"
    with pytest.raises(UsageError, match=says):
        task.filter_indices_by_size(np.arange(2), dataset, (4, 1024))


def test_a_data_set_of_several_has_fairseqs_message_of_a_sentence_beyond_the_positions(reversal_data):
    task = tasks.setup_task(train_config(reversal_data, *OPTIMIZE, "--arch", "modular_transformer").task)
    task.load_dataset("valid")
    several = RoundRobinZipDatasets({"a-b": task.dataset("valid")})
    with pytest.raises(Exception, match=r"^Size of sample #\d+ is invalid \(=\{'a-b': "):
        task.filter_indices_by_size(several.ordered_indices(), several, {"a-b": (4, 1024)})


def test_data_that_are_too_long_altogether_are_one_sentence(reversal_data, tmp_path):
    """fairseq says that the data set is empty."""
    words = ["--arch", "modular_transformer", *TINY, *OPTIMIZE, "--max-source-positions", "2", "--save-dir"]
    says = "^every sample of the data is too long; the shortest has [0-9]+ tokens. Give a larger --max-tokens"
    with pytest.raises(UsageError, match=says):
        run_train(reversal_data, *words, str(tmp_path), "--skip-invalid-size-inputs-valid-test")


def test_interactive_leaves_out_a_line_that_is_too_long_and_goes_on(reversal_data, tmp_path):
    words = [
        "--arch",
        "modular_transformer",
        *TINY,
        *OPTIMIZE,
        "--max-source-positions",
        "9",
        "--max-epoch",
        "1",
    ]
    run_train(reversal_data, *words, "--save-dir", str(tmp_path))
    (tmp_path / "text").write_text(f"w1 w2\n{'w3 ' * 15}\nw4 w5\n")
    status, out, err = call(
        "interactive", reversal_data, "--path", tmp_path / "checkpoint_last.pt", "--input", tmp_path / "text",
        "--skip-invalid-size-inputs-valid-test",
    )  # fmt: skip
    assert status == 0, err
    assert [line.partition("\t")[0] for line in out.splitlines() if line.startswith("H-")] == ["H-0", "H-2"]


def test_a_model_learns_from_word_alignments_as_fairseqs_own(tmp_path):
    """In training, fairseq's decoder returns the attention weights that the criterion compares with them."""
    write_reversal_corpus(tmp_path)
    for split in ("train", "valid", "test"):
        lengths = [len(line.split()) for line in (tmp_path / f"{split}.de").read_text().splitlines()]
        pairs = (" ".join(f"{word}-{length - 1 - word}" for word in range(length)) for length in lengths)
        (tmp_path / f"{split}.align").write_text("".join(f"{line}\n" for line in pairs))
    prefixes = [word for split in ("train", "valid", "test") for word in (f"--{split}pref", tmp_path / split)]
    words = ["-s", "de", "-t", "en", "--align-suffix", "align", "--joined-dictionary", *prefixes]
    run_preprocess(*words, "--destdir", tmp_path / "bin")
    given = ["--load-alignments", "--dropout", 0, "--max-epoch", 1, "--alignment-lambda"]
    criterion = ["--criterion", "label_smoothed_cross_entropy_with_alignment", *given]
    last, archs = [], (("transformer", 1), ("modular_transformer", 1), ("transformer", 0))
    for number, (arch, weight) in enumerate(archs):
        folder = tmp_path / str(number)
        run_train(tmp_path / "bin", "--arch", arch, *criterion, weight, "--save-dir", folder)
        model = load_checkpoint(folder / "checkpoint_last.pt")["model"]
        last.append(model["decoder.layers.0.encoder_attn.q_proj.weight"])
    theirs, ours, without = last
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    assert (theirs - without).abs().max() > 1e-3
