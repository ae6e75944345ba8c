"""A Python for tests in which torch and fairseq are imported already: a command starts in 0.1 s, without the
plugin.

A fairseq command spends 4 to 6 seconds of processor time on imports. `server.py` imports once what every
command imports (not the plugin) and forks a process for each command. `client.py` takes the place of the
interpreter: it sends its arguments, environment, folder and standard streams to the server, forwards signals,
and ends as the command ends.

`Preloaded` starts a server and makes a folder of programs (`python`, `fairseq-train`, `modular-fairseq`, ...)
that use it. The server ends with the process that started it, and commands end with the server.

A command differs from one of a fresh interpreter in these points:

- Its process group is its own, not the client's, and its line in `ps` is the server's. A client that is
  killed leaves a moment later, so a test of kills takes the real interpreter (the fixture `real_commands`).
- All commands of one server hash strings alike.
- fairseq's configurations are composed by `tests/quick_composition.py`, with hydra's result.
- It has the limits (`ulimit`) and the locale of the server, and no open files but the standard streams.
- A program that `modular_fairseq_cli.lifetime` ties to its parent is run as `python -m`, and its client is
  tied instead. It ends with its parent, but processes that it has forked stay if it is killed itself. It
  finds modules in the present folder, too.

The real interpreter runs instead if a call has options of Python other than -m and -c, or if the environment
sets how Python itself works (PYTHONHASHSEED, PYTHONWARNINGS, ...).
"""

import os
import shlex
import subprocess
import tempfile
import uuid
from pathlib import Path

from tests.places import PYTHON

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
        programs: folder of all programs, to stand first on PATH.
        python: path of the program that takes the place of `sys.executable`.
    """

    def __init__(self) -> None:
        """Start a server. Raises RuntimeError, with what the server said, if it does not start."""
        self._folder = tempfile.TemporaryDirectory(prefix="preloaded-")
        self.programs = Path(self._folder.name)
        self.python = self.programs / "python"
        address = f"modular-fairseq-tests-{uuid.uuid4()}"  # an abstract socket: no file, no limit of a path
        settings = f"ADDRESS, REAL_PYTHON = {address!r}, {PYTHON!r}"
        source = (HERE / "client.py").read_text(encoding="utf-8")
        self._client = self.programs / "client.py"
        self._client.write_text(source.replace('ADDRESS = REAL_PYTHON = ""', settings), encoding="utf-8")
        self._write_program(self.python, "")
        self._write_program(self.programs / "python3", "")
        for name in COMMANDS:
            program = Path(PYTHON).with_name(name)
            if program.is_file():
                self._write_program(self.programs / name, shlex.quote(str(program)))
        self.process = subprocess.Popen(
            [PYTHON, HERE / "server.py", str(os.getpid()), address, self.python],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        said = self.process.stdout.readline()
        if said != "ready\n":
            self.process.kill()
            said += self.process.stdout.read()
            self._folder.cleanup()
            raise RuntimeError(f"tests/preloaded/server.py did not start: {said}")
        self.process.stdout.close()

    def _write_program(self, path: Path, first_arguments: str) -> None:
        python, client = (shlex.quote(str(part)) for part in (PYTHON, self._client))
        path.write_text(f'#!/bin/sh\nexec {python} -ISB {client} {first_arguments} "$@"\n', encoding="utf-8")
        path.chmod(0o755)

    def close(self) -> None:
        """End the server and its commands, and remove the programs."""
        self.process.kill()
        self.process.wait()
        self._folder.cleanup()
