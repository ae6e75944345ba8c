"""Import what every command imports, then fork a process for each command that a client asks for.

python tests/preloaded/server.py SOCKET PYTHON    # PYTHON: what commands shall find as sys.executable
"""

import array
import ast
import atexit
import contextlib
import gc
import logging
import os
import runpy
import select
import signal
import socket
import sys
import threading


def preload() -> None:
    """Import the libraries that every command imports."""
    import hydra.core.global_hydra  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch
    import yaml  # noqa: F401

    torch.set_num_threads(1)  # a thread pool would not survive the fork
    import fairseq.checkpoint_utils
    import fairseq.models
    import fairseq.options
    import fairseq.sequence_generator
    import fairseq.tasks
    import fairseq.trainer  # noqa: F401


def receive(client: socket.socket) -> tuple[list[str], str, dict[str, str], list[int]]:
    """Return the arguments, the folder, the environment and the three streams of a command."""
    streams = array.array("i")
    header, ancillary, _, _ = client.recvmsg(8, socket.CMSG_SPACE(3 * streams.itemsize))
    streams.frombytes(ancillary[0][2])
    size, parts = int.from_bytes(header, "big"), []
    while size:
        parts.append(client.recv(size))
        size -= len(parts[-1])
    arguments, folder, environment = ast.literal_eval(b"".join(parts).decode("utf-8", "surrogateescape"))
    return arguments, folder, environment, list(streams)


def watch(client: socket.socket, command: int) -> None:
    """Tell the client how the command ends; kill the command and its children if the client ends first."""
    handle = os.pidfd_open(command)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(client, select.POLLIN | select.POLLHUP)
    ready = {descriptor for descriptor, _ in poll.poll()}
    if handle not in ready:
        os.killpg(command, signal.SIGKILL)
    _, status = os.waitpid(command, 0)
    if handle in ready:
        client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def become(arguments: list[str], folder: str, environment: dict[str, str], streams: list[int]) -> None:
    """Turn this process into the command: its streams, folder, environment and signals."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for wanted, descriptor in enumerate(streams):
        os.dup2(descriptor, wanted)
    for descriptor in streams:
        if descriptor > 2:
            os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=stream is sys.stderr or stream.isatty())
        if environment.get("PYTHONUNBUFFERED"):
            stream.reconfigure(write_through=True)
    if "SACREBLEU" in environment:  # which sacrebleu reads when it is imported
        for name in [name for name in sys.modules if name.partition(".")[0] == "sacrebleu"]:
            del sys.modules[name]
    import torch

    if threads := environment.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    else:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    paths = [os.path.abspath(path) for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = paths


def configure_logging(program: str) -> None:
    """Leave the root logger as the program would find it: the first call of `basicConfig` wins.

    These commands call it before they import fairseq; for others, an import of fairseq does.
    """
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    name = os.path.basename(program).rpartition(".")[2].removeprefix("fairseq-").replace("-", "_")
    if name not in ("train", "preprocess", "validate", "eval_lm", "interactive", "hydra_validate"):
        logging.basicConfig(level=logging.DEBUG)


def run(arguments: list[str]) -> None:
    """Run `python ARGUMENTS` in this process."""
    kind, *rest = arguments
    configure_logging(rest[0] if kind == "-m" else kind)
    if kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    elif kind == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, os.path.dirname(os.path.abspath(kind)))
        sys.argv = arguments
        runpy.run_path(kind, run_name="__main__")


def end(arguments: list[str]) -> None:
    """Run the command and end this process as Python does, but leave its memory to the system."""
    status = 0
    try:
        run(arguments)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            status = status or 120
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


def serve(path: str, python: str) -> list[str]:
    """Answer clients for ever; return, in the process of a command, its arguments."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path + ".new")
    listener.listen(64)
    os.rename(path + ".new", path)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers are not waited for
    while True:
        client, _ = listener.accept()
        if os.fork():
            client.close()
            continue
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        arguments, folder, environment, streams = receive(client)
        command = os.fork()
        if command:
            for descriptor in streams:
                os.close(descriptor)
            with contextlib.suppress(OSError):  # it was faster
                os.setpgid(command, command)
            client.sendall(str(command).encode())
            watch(client, command)
        os.setpgid(0, 0)
        client.close()
        become(arguments, folder, environment, streams)
        sys.executable = python
        return arguments


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file
    preload()
    gc.collect()
    gc.freeze()
    end(serve(sys.argv[1], sys.argv[2]))
