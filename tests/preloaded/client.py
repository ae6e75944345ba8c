"""The program that stands for Python in tests: it has the server run the command, and ends as it ends."""

import array
import os
import signal
import socket
import sys

ADDRESS = REAL_PYTHON = ""  # set by __init__.py
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# What the server can do for a command; every other PYTHON... concerns the start of an interpreter.
SUPPORTED = ("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE")


def tied_module(arguments: list[str]) -> list[str]:
    """Return what follows -m, if this is the program of `modular_fairseq_cli.lifetime`; otherwise nothing."""
    of_lifetime = len(arguments) > 3 and arguments[0] == "-P" and arguments[1].endswith("/lifetime.py")
    return arguments[3:] if of_lifetime else []


def end_with(parent: int) -> None:
    """Have this process killed when its parent ends. The server then ends the command."""
    import ctypes  # which few clients need

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit(1)


def is_supported(arguments: list[str]) -> bool:
    if not arguments or any(name.startswith("PYTHON") and name not in SUPPORTED for name in os.environ):
        return False
    if arguments[0] in ("-m", "-Pm", "-c"):
        return len(arguments) > 1
    return not arguments[0].startswith("-") and os.path.isfile(arguments[0])


def receive(server: socket.socket) -> str:
    try:
        return server.recv(32).decode()
    except ConnectionError:
        return ""


def main() -> None:
    arguments = sys.argv[1:]
    if tied := tied_module(arguments):
        end_with(int(arguments[2]))
        arguments = ["-m", *tied]
    if arguments[:2] == ["-P", "-m"]:
        arguments = ["-Pm", *arguments[2:]]
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    supported = is_supported(arguments)
    if supported:
        try:
            server.connect(f"\0{ADDRESS}")
        except OSError:  # the server has ended
            supported = False
    if not supported:
        os.execv(REAL_PYTHON, [REAL_PYTHON, *sys.argv[1:]])
    umask = os.umask(0)
    os.umask(umask)
    ignored = [number for number in FORWARDED if signal.getsignal(number) == signal.SIG_IGN]
    message = repr((arguments, os.getcwd(), dict(os.environ), umask, list(map(int, ignored))))
    with open(os.memfd_create("command"), "wb") as file:
        file.write(message.encode("utf-8", "surrogateescape"))
        file.flush()
        descriptors = array.array("i", [0, 1, 2, file.fileno()])
        server.sendmsg([b"run"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    command = receive(server)
    if not command:
        sys.exit("tests/preloaded: the server has ended")
    for number in FORWARDED:
        if number not in ignored:
            signal.signal(number, lambda number, frame: os.kill(int(command), number))
    kind, _, number = (receive(server) or "exit 1").partition(" ")
    if kind == "signal":
        if int(number) != signal.SIGKILL:
            signal.signal(int(number), signal.SIG_DFL)
        os.kill(os.getpid(), int(number))
    os._exit(int(number))


main()
