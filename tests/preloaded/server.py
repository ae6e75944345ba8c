"""Import what every command imports, then fork a process for each command that a client asks for.

    python tests/preloaded/server.py PARENT ADDRESS PYTHON

The server ends with the process PARENT. PYTHON is what commands find as `sys.executable`.
"""

import array
import ast
import atexit
import contextlib
import ctypes
import gc
import logging
import os
import random
import runpy
import select
import signal
import socket
import sys
import threading
import types
from pathlib import Path

Command = tuple[list[str], str, dict[str, str], int, list[int]]
CONFIGURES_LOGGING = ("train", "preprocess", "validate", "eval_lm", "interactive", "hydra_validate")
ROOT = Path(__file__).resolve().parents[2]
LIBC = ctypes.CDLL(None)


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends."""
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


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
    import torch._dynamo  # noqa: F401  (optimizers import it when they are made)

    sys.path.insert(0, str(ROOT))
    from tests import quick_composition

    sys.path.pop(0)
    quick_composition.install()
    quick_composition.warm_up()


def receive(client: socket.socket) -> tuple[Command, list[int]]:
    """Return a command (arguments, folder, environment, umask, ignored signals) and its three streams."""
    descriptors = array.array("i")
    _, ancillary, _, _ = client.recvmsg(16, socket.CMSG_SPACE(4 * descriptors.itemsize))
    if not ancillary:  # the client has ended
        os._exit(0)
    descriptors.frombytes(ancillary[0][2])
    *streams, message = descriptors
    with open(message, "rb") as file:
        file.seek(0)
        return ast.literal_eval(file.read().decode("utf-8", "surrogateescape")), streams


def watch(client: socket.socket, command: int) -> None:
    """Tell the client how the command ends. If the client ends first, kill the command's process group."""
    handle = os.pidfd_open(command)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(client, select.POLLIN | select.POLLHUP)
    try:
        client.send(str(command).encode())
        ended = handle in {descriptor for descriptor, _ in poll.poll()}
    except OSError:
        ended = False
    if not ended:
        os.killpg(command, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    with contextlib.suppress(OSError):
        client.send((f"signal {-code}" if code < 0 else f"exit {code}").encode())
    os._exit(0)


def serve(address: str) -> tuple[Command, list[int]]:
    """Answer clients until the parent ends; return only in the process of a command, with its streams."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"\0{address}")
    listener.listen(64)
    print("ready", flush=True)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # nobody reads what the server says from now on
    os.dup2(silence, 2)
    os.close(silence)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # watchers are not waited for
    server = os.getpid()
    while True:
        client, _ = listener.accept()
        if os.fork():
            client.close()
            continue
        end_with(server)
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        command, streams = receive(client)
        watcher = os.getpid()
        process = os.fork()
        with contextlib.suppress(OSError):  # whoever is first
            os.setpgid(process, 0)
        if process:
            for descriptor in streams:
                os.close(descriptor)
            watch(client, process)
        end_with(watcher)
        client.close()
        return command, streams


def become(command: Command, streams: list[int]) -> None:
    """Give this process the streams, folder, environment and signals of the command, and new random seeds."""
    _, folder, environment, umask, ignored = command
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    for wanted, descriptor in enumerate(streams):
        os.dup2(descriptor, wanted)
        os.close(descriptor)
    os.umask(umask)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(
            line_buffering=stream is sys.stderr or stream.isatty(),
            write_through=bool(environment.get("PYTHONUNBUFFERED")),
        )
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [os.path.abspath(path) for path in paths if path]
    sys.dont_write_bytecode = bool(environment.get("PYTHONDONTWRITEBYTECODE"))
    if "SACREBLEU" in environment:  # which sacrebleu reads when it is imported
        for name in [name for name in sys.modules if name.partition(".")[0] == "sacrebleu"]:
            del sys.modules[name]
    import numpy
    import torch

    random.seed()
    numpy.random.seed()
    torch.seed()
    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))


def configure_logging(program: str) -> None:
    """Leave the root logger as the program would find it: the first call of `basicConfig` wins.

    Some of fairseq's commands call it before they import fairseq; for others, an import of fairseq does.
    """
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    name = os.path.basename(program).rpartition(".")[2].removeprefix("fairseq-").replace("-", "_")
    if name not in CONFIGURES_LOGGING:
        logging.basicConfig(level=logging.DEBUG)


def run(arguments: list[str]) -> None:
    """Run `python ARGUMENTS` in this process."""
    kind, *rest = arguments
    is_module = kind in ("-m", "-Pm")
    configure_logging(rest[0] if is_module else kind)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if is_module:
        if kind == "-m":
            sys.path.insert(0, os.getcwd())
        sys.argv = ["-m", *rest[1:]]
        runpy._run_module_as_main(rest[0])  # what the interpreter calls for -m
    elif kind == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    else:
        main.__file__ = os.path.abspath(kind)
        sys.path.insert(0, os.path.dirname(main.__file__))
        sys.argv = arguments
        with open(main.__file__, "rb") as file:
            exec(compile(file.read(), main.__file__, "exec"), vars(main))


def end(arguments: list[str]) -> None:
    """Run the command and end this process as Python does, but leave its memory to the system."""
    status, number = 0, 0
    try:
        run(arguments)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        status, number = 1, signal.SIGINT if isinstance(error, KeyboardInterrupt) else 0
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            status = status or 120
    if number:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    sys.path.pop(0)  # the folder of this file
    preload()
    gc.collect()
    gc.freeze()
    found, streams = serve(sys.argv[2])
    sys.executable = sys.argv[3]
    become(found, streams)
    end(found[0])
