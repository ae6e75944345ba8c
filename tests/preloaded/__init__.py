"""A Python for tests in which torch and fairseq are imported already: a command starts in 0.1 s.

A fairseq command spends 4 to 6 seconds of processor time on imports. `server.py` imports once what every
command imports (not the plugin) and forks a process for each command. `client.py` takes the place of the
interpreter: it sends its arguments, environment, folder and standard streams to the server, forwards signals,
and ends as the command ends. A command that is killed is really killed: the server watches the client and
kills the command with it.

`Preloaded` starts a server and makes a folder of programs (`python`, `fairseq-train`, `modular-fairseq`, ...)
that use it. A call with options of Python other than -m and -c runs the real interpreter.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
COMMANDS = (
    "fairseq-eval-lm",
    "fairseq-generate",
    "fairseq-hydra-train",
    "fairseq-interactive",
    "fairseq-preprocess",
    "fairseq-score",
    "fairseq-train",
    "fairseq-validate",
    "modular-fairseq",
)


class Preloaded:
    """A running server and its programs.

    Attributes:
        python: path of the program that takes the place of `sys.executable`.
        programs: folder of all programs, to stand first on PATH.
    """

    def __init__(self, folder: Path) -> None:
        """Start a server. Its socket and programs are in `folder`, a path of at most 90 characters."""
        self.programs = folder / "bin"
        self.programs.mkdir(parents=True)
        self.python = self.programs / "python"
        socket = folder / "socket"
        settings = f"SOCKET, REAL_PYTHON = {str(socket)!r}, {sys.executable!r}"
        source = (HERE / "client.py").read_text(encoding="utf-8")
        source = source.replace('SOCKET = REAL_PYTHON = ""', settings)
        self.python.write_text(f"#!{sys.executable} -ISB\n{source}", encoding="utf-8")
        self.python.chmod(0o755)
        real_programs = Path(sys.executable).parent
        for name in COMMANDS:
            if (real_programs / name).is_file():
                text = f'#!/bin/sh\nexec {self.python} {real_programs / name} "$@"\n'
                (self.programs / name).write_text(text, encoding="utf-8")
                (self.programs / name).chmod(0o755)
        (self.programs / "python3").symlink_to("python")
        self.process = subprocess.Popen(
            [sys.executable, HERE / "server.py", socket, self.python],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        deadline = time.monotonic() + 120
        while not socket.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("tests/preloaded/server.py did not start; its message is above.")
            time.sleep(0.05)

    def close(self) -> None:
        """End the server. Commands that still run are killed."""
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.programs.parent, ignore_errors=True)
