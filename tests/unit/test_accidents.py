"""Test what a full disk, a closed pipe and similar accidents do to a process."""

import atexit
import errno
import io
import logging
import os
import re
import resource
import signal
import stat
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils, models, tasks
from fairseq.file_io import PathManager
from omegaconf import OmegaConf
from torch.multiprocessing import ProcessExitedException, ProcessRaisedException

from modular_fairseq_cli.errors import find_usage_error
from modular_fairseq_cli.processes import discard_unread, nobody_reads


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some of the quota"),
        (errno.EROFS, "make it writable, or choose another folder"),
        (errno.EIO, "look at the disk"),
        (errno.EFBIG, "raise the limit of the size of files (ulimit -f)"),
    ],
)
def test_a_disk_that_cannot_be_written_is_a_usage_error(number, remedy):
    reason = os.strerror(number)
    what = "read or written" if number == errno.EIO else "written"
    assert str(find_usage_error(OSError(number, reason, "run/x.pt"))) == (
        f"run/x.pt could not be {what} ({reason}); {remedy}, and give the command again"
    )
    assert str(find_usage_error(OSError(number, reason, "x.part", None, "x.pt"))).startswith("x.pt could not")
    of_torch = RuntimeError("unexpected pos 1024 vs 918")
    of_torch.__context__ = OSError(number, reason, "run/x.pt")
    assert str(find_usage_error(of_torch)).startswith("run/x.pt could not be")
    assert str(find_usage_error(OSError(number, reason))).startswith("a file could not")
    with pytest.raises(OSError) as caught, open("/dev/full", "w") as file:  # `write` does not name the file
        file.write("line")
        file.flush()
    assert str(find_usage_error(caught.value)).startswith(
        "/dev/full could not be written (No space left on device)"
    )
    assert find_usage_error(PermissionError(errno.EACCES, "Permission denied", "x.pt")) is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            RuntimeError(
                "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
                "[127.0.0.1]:167. This is typically caused by a remote worker crashing."
            ),
            r"Connection closed by peer \[127.0.0.1\]:167",
        ),
        (torch.distributed.DistNetworkError("Failed to recv, got 0 bytes"), "Failed to recv, got 0 bytes"),
        (
            torch.distributed.DistBackendError(
                "NCCL error: remote process exited or there was a network error"
            ),
            "NCCL error: remote process exited or there was a network error",
        ),
        (
            ProcessExitedException("process 1 terminated with signal SIGKILL", 1, 2, -9, "SIGKILL"),
            "process 1 terminated with signal SIGKILL",
        ),
    ],
)
def test_the_loss_of_a_worker_is_a_usage_error(error, reason):
    expected = rf"another worker of this training has ended, or cannot be reached \({reason}\); see its log"
    assert re.match(expected, str(find_usage_error(error)))


def test_workers_that_cannot_meet_are_no_lost_workers():
    used = torch.distributed.DistNetworkError(
        "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, "
        "code: -98, name: EADDRINUSE, message: address already in use"
    )
    assert str(find_usage_error(used)).startswith("the port 29500 is used by another program")
    wrong = torch.distributed.DistBackendError("NCCL error: invalid usage. Duplicate GPU detected : rank 0")
    assert find_usage_error(wrong) is None


def test_a_usage_error_of_a_spawned_worker_is_found():
    def spawned(last):
        text = f"\n\n-- Process 1 terminated with the following error:\nTraceback (most...):\n  x\n{last}\n"
        return find_usage_error(ProcessRaisedException(text, 1, 2))

    assert str(spawned("modular_fairseq_cli.errors.UsageError: --x is wrong; give 1")) == (
        "--x is wrong; give 1"
    )
    assert spawned("KeyError: 'UsageError: x'") is None
    assert find_usage_error(RuntimeError("shapes do not fit by peer")) is None


@pytest.fixture
def pipe():
    """Yield a function that closes the reading end of a pipe, and a stream that writes to the pipe."""
    reads, writes = os.pipe()
    with open(writes, "w", encoding="utf-8") as stream:
        yield lambda: os.close(reads), stream


def test_a_pipe_without_a_reader_is_known(pipe, monkeypatch):
    close, stream = pipe
    monkeypatch.setattr(sys, "stdout", stream)
    discard_unread()
    assert stat.S_ISFIFO(os.fstat(stream.fileno()).st_mode)
    assert not nobody_reads(stream)
    close()
    assert nobody_reads(stream)
    discard_unread()
    assert not nobody_reads(stream)
    stream.write("x")
    stream.flush()
    assert not nobody_reads(io.StringIO())


def test_a_log_that_nobody_reads_ends_with_one_warning(pipe, capsys, monkeypatch):
    close, stream = pipe
    at_exit = []
    monkeypatch.setattr(atexit, "register", lambda *call: at_exit.append(call))
    log, handler = logging.Logger("x"), logging.StreamHandler(stream)
    log.addHandler(handler)
    log.info("a line")
    assert capsys.readouterr().err == ""
    close()
    for _ in range(3):
        log.info("a line")
    assert capsys.readouterr().err == (
        "modular_fairseq: warning: nobody reads the log any more; the command goes on\n"
    )
    assert at_exit == [(discard_unread,)]
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def test_a_log_goes_on_if_nobody_reads_the_messages_either(pipe, monkeypatch):
    close, stream = pipe
    monkeypatch.setattr(atexit, "register", lambda *call: None)
    monkeypatch.setattr(sys, "stderr", stream)
    stream.reconfigure(line_buffering=True)
    log = logging.Logger("x")
    log.addHandler(logging.StreamHandler(stream))
    close()
    for _ in range(3):
        log.info("a line")
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def test_other_errors_of_a_log_are_shown(capsys):
    handler = logging.StreamHandler(io.StringIO())
    handler.emit(logging.LogRecord("x", logging.INFO, "x", 1, "%d", ("no number",), None))
    assert "--- Logging error ---" in capsys.readouterr().err


def test_a_command_whose_output_nobody_reads_ends_in_silence(pipe, monkeypatch, capsys):
    close, stream = pipe
    monkeypatch.setattr(sys, "stdout", stream)
    for error, shown in ((BrokenPipeError(errno.EPIPE, "Broken pipe"), "Traceback"), (None, "")):
        if error is None:
            close()
            error = BrokenPipeError(errno.EPIPE, "Broken pipe")
        sys.excepthook(type(error), error, None)
        assert ("BrokenPipeError" in capsys.readouterr().err) == bool(shown)


def test_a_checkpoint_that_could_not_be_written_is_begun_again(tmp_path, monkeypatch):
    write, tries = torch.save, []

    def save(obj, file):
        tries.append(file.tell())
        if len(tries) < 3:
            file.write(b"x" * 10_000)
            raise OSError(errno.EIO, "Input/output error")
        write(obj, file)

    monkeypatch.setattr(torch, "save", save)
    monkeypatch.setattr("modular_fairseq.patches.checkpoints.PAUSE", 0)
    path = tmp_path / "checkpoint.pt"
    checkpoint_utils.torch_persistent_save({"model": torch.ones(2)}, str(path))
    expected = io.BytesIO()
    write({"model": torch.ones(2)}, expected)
    assert tries == [0, 0, 0] and torch.load(path)["model"].tolist() == [1, 1]
    assert path.stat().st_size <= expected.tell() + 100


@pytest.mark.parametrize("size", [2, 100_000], ids=["at the end", "in torch.save"])
def test_a_checkpoint_that_cannot_be_written_is_named(size, tmp_path, monkeypatch, caplog):
    """Small files fail when they are flushed; for large ones torch raises an error of its own."""
    tries, write = [], torch.save
    monkeypatch.setattr(torch, "save", lambda *args: tries.append(1) or write(*args))
    monkeypatch.setattr("modular_fairseq.patches.checkpoints.PAUSE", 0)
    path = tmp_path / "checkpoint.pt"
    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            checkpoint_utils.torch_persistent_save({"model": torch.ones(size)}, str(path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert str(find_usage_error(caught.value)).startswith(f"{path} could not be written (File too large")
    assert len(tries) == 3 and not caplog.records and list(tmp_path.iterdir()) == []


def test_other_errors_of_writing_a_checkpoint_are_raised_at_once(tmp_path, monkeypatch):
    tries = []

    def save(*args):
        tries.append(args)
        raise RuntimeError("shapes")

    monkeypatch.setattr(torch, "save", save)
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits for another try"))
    with pytest.raises(RuntimeError, match="shapes"):
        checkpoint_utils.torch_persistent_save({"model": 1}, str(tmp_path / "checkpoint.pt"))
    assert len(tries) == 1


def test_a_copy_onto_a_file_that_it_must_not_replace_is_left_to_fairseq(tmp_path, monkeypatch):
    """fairseq asks the package iopath, if it is installed; this does not replace the file."""
    asked = []
    iopath = SimpleNamespace(_path_handlers={}, copy=lambda **given: asked.append(given))
    monkeypatch.setattr("fairseq.file_io.IOPathManager", iopath)
    source, target = tmp_path / "a.pt", tmp_path / "b.pt"
    source.write_bytes(b"a")
    target.write_bytes(b"b")
    PathManager.copy(str(source), str(target))
    assert asked == [{"src_path": str(source), "dst_path": str(target), "overwrite": False}]
    assert target.read_bytes() == b"b"
    PathManager.copy(str(source), str(target), overwrite=True)
    assert len(asked) == 1 and target.read_bytes() == b"a"


def test_a_copy_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def copyfile(source, target):
        Path(target).write_bytes(b"x")
        raise OSError(errno.ENOSPC, "No space left on device", target)

    monkeypatch.setattr("shutil.copyfile", copyfile)
    (tmp_path / "a.pt").write_bytes(b"a")
    with pytest.raises(OSError, match="No space left"):
        PathManager.copy(str(tmp_path / "a.pt"), str(tmp_path / "b.pt"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_a_checkpoint_that_has_no_model_for_fairseq_is_a_usage_error(tmp_path):
    with pytest.raises(OSError, match="Model file not found") as missing:
        checkpoint_utils.load_model_ensemble(["none/x.pt"])
    assert str(find_usage_error(missing.value)).startswith("none/x.pt does not exist; give a checkpoint")
    path, history = str(tmp_path / "x.pt"), [{"num_updates": 1, "lr_scheduler_state": {}}]
    torch.save({"model": {}, "optimizer_history": history, "extra_state": {"epoch": 1}}, path)
    with pytest.raises(RuntimeError, match="Neither args nor cfg") as unknown:
        checkpoint_utils.load_model_ensemble([path])
    assert str(find_usage_error(unknown.value)).startswith(f"{path} has no options of a model (cfg);")
    start = ValueError("--finetune-from-model x does not exist")  # fairseq/checkpoint_utils.py:245
    assert str(find_usage_error(start)) == f"{start}; give a checkpoint that fairseq-train saved"
    assert find_usage_error(OSError("another")) is None
    assert find_usage_error(OSError("Model file not found: y")).args[0].startswith("a checkpoint does not")


@pytest.mark.parametrize("cfg", [Namespace(task="nothing", arch="nothing"), {"_name": "nothing"}])
@pytest.mark.parametrize("kind", ["task", "model"])
def test_a_task_or_model_that_is_not_registered_is_a_usage_error(kind, cfg):
    cfg = cfg if isinstance(cfg, Namespace) else OmegaConf.create(cfg)
    with pytest.raises((AssertionError, KeyError)) as caught:
        tasks.setup_task(cfg) if kind == "task" else models.build_model(cfg, None)
    assert f"the command names the {kind} " in str(find_usage_error(caught.value))
    assert "nothing" in str(find_usage_error(caught.value))
    assert find_usage_error(KeyError("another")) is None


def test_the_checkpoint_of_a_task_that_is_not_registered_is_named(tmp_path):
    path, history = str(tmp_path / "x.pt"), [{"num_updates": 1, "lr_scheduler_state": {}}]
    state = {"model": {}, "optimizer_history": history, "extra_state": {"epoch": 1}}
    torch.save({**state, "cfg": {"task": "nothing", "model": {}}}, path)
    with pytest.raises(Exception, match="nothing") as caught:
        checkpoint_utils.load_model_ensemble([path])
    assert str(find_usage_error(caught.value)).startswith(f"{path} names the task nothing, which")
