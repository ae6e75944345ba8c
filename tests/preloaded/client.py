"""The program that stands for Python in tests: it has the command run by the server, and ends as it ends."""

import array
import os
import signal
import socket
import sys

SOCKET = REAL_PYTHON = ""  # set by __init__.py
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def main():
    arguments = sys.argv[1:]
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    supported = arguments and (arguments[0] in ("-m", "-c") or not arguments[0].startswith("-"))
    try:
        if supported:
            server.connect(SOCKET)
    except OSError:  # the server has ended
        supported = False
    if not supported:
        os.execv(REAL_PYTHON, [REAL_PYTHON, *arguments])
    message = repr((arguments, os.getcwd(), dict(os.environ))).encode("utf-8", "surrogateescape")
    streams = array.array("i", [0, 1, 2])
    header = len(message).to_bytes(8, "big")
    server.sendmsg([header], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    server.sendall(message)
    command = int(server.recv(32))
    for number in FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, frame: os.kill(command, number))
    status = int(server.recv(32) or b"1")
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
