"""Test `modular_fairseq_cli`: it needs no other package of the project, and its command line, locks and files
work.
"""

import ast
import errno
import fcntl
import math
import os
import re
import socket
import threading
import time
import types

import pytest

from modular_fairseq_cli import __version__, fairseq_log, files, main
from modular_fairseq_cli.errors import UsageError
from tests.places import ROOT

FORBIDDEN = {"torch", "fairseq", "fairseq_cli", "modular_fairseq", "omegaconf", "hydra"}


def test_no_import_of_the_ground_names_what_it_must_do_without():
    """Imports inside functions count, too, although they run only when the function is called."""
    for path in (ROOT / "modular_fairseq_cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            named += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert FORBIDDEN.isdisjoint(name.partition(".")[0] for name in named), (
                f"{path}, line {node.lineno}"
            )


def test_every_command_is_a_module_with_what_main_calls():
    """The modules are found, but not imported. A wrong name would otherwise show only when the command is
    called.
    """
    for name, (module, summary) in main.COMMANDS.items():
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        text = path.read_text(encoding="utf-8")
        assert "\ndef add_arguments(" in text and "\ndef run(" in text, name
        assert summary


def test_the_version_is_said_in_one_place(capsys):
    import modular_fairseq

    with pytest.raises(SystemExit) as error:
        main.main(["--version"])
    assert error.value.code == 0 and capsys.readouterr().out == f"modular-fairseq {__version__}\n"
    assert modular_fairseq.__version__ is __version__
    texts = (path.read_text(encoding="utf-8") for path in ROOT.glob("[ms]*/**/*.py"))
    assert sum(f'"{__version__}"' in text for text in texts) == 1
    assert f'"{__version__}"' not in (ROOT / "setup.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(("word", "right"), [("tabel", "table"), ("xyz", ", ".join(main.COMMANDS))])
def test_an_unknown_command_is_refused_in_one_sentence(capsys, word, right):
    with pytest.raises(SystemExit) as error:
        main.main([word, "--help"])
    assert error.value.code == 2
    assert capsys.readouterr().err == (
        f"modular-fairseq: error: there is no command {word}; give {right}, or see modular-fairseq --help\n"
    )


def code_of(fail, monkeypatch, *arguments, stage="run"):
    """Return the exit code of a command in which one stage, the import or a function, calls `fail`."""
    command = types.ModuleType("stand_in")
    command.add_arguments = lambda parser: parser.add_argument("--number", type=int)
    command.run = lambda args: None

    def import_module(name):
        return fail() if stage == "import" else command

    if stage != "import":
        setattr(command, stage, lambda *_: fail())
    monkeypatch.setattr(main, "importlib", types.SimpleNamespace(import_module=import_module))
    monkeypatch.setitem(main.COMMANDS, "stand-in", ("stand_in", "summary"))
    with pytest.raises(SystemExit) as error:
        main.main(["stand-in", *arguments])
    code = error.value.code
    return 1 if isinstance(code, str) else code  # Python prints a string and exits with 1


def interrupt():
    raise KeyboardInterrupt


def refuse():
    raise UsageError("the data is missing")


@pytest.mark.parametrize("stage", ["import", "add_arguments", "run"])
def test_a_refusal_ends_with_1_and_ctrl_c_with_130_at_any_stage(monkeypatch, stage):
    assert code_of(refuse, monkeypatch, stage=stage) == 1
    assert code_of(interrupt, monkeypatch, stage=stage) == 130


@pytest.mark.parametrize("arguments", [["--numbr", "1"], ["--number", "one"], ["more"]])
def test_a_command_line_that_cannot_be_parsed_ends_with_2(monkeypatch, arguments):
    assert code_of(refuse, monkeypatch, *arguments) == 2


def test_help_lists_the_exit_codes(capsys):
    with pytest.raises(SystemExit):
        main.main(["--help"])
    codes = re.findall(r"^ {2}(\d+) ", capsys.readouterr().out.partition("exit codes:\n")[2], re.MULTILINE)
    assert codes == ["0", "1", "2", "130"]


def test_user_dir_without_the_plugin_is_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="user-dir: error: the package modular_fairseq is not installed"):
        main.main(["user-dir"])


def test_a_lock_that_is_held_is_refused_by_its_sentence(tmp_path, monkeypatch):
    with files.only_one(tmp_path):
        with pytest.raises(UsageError, match=f"^{tmp_path}: another process works in it; wait for it, or"):
            files.only_one(tmp_path).__enter__()
        slept = []
        clock = types.SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
        monkeypatch.setattr(files, "time", clock)
        with pytest.raises(UsageError, match="^busy$"):
            files.lock(tmp_path / ".lock", "busy", seconds=0.35).__enter__()
        assert slept == [0.1] * 4
    with files.only_one(tmp_path):
        pass


def test_to_look_at_a_lock_changes_nothing(tmp_path):
    path = tmp_path / ".lock"
    assert not files.is_locked(path) and not path.exists()
    with files.only_one(tmp_path):
        assert files.is_locked(path)
    path.chmod(0o444)
    assert not files.is_locked(path)
    with open(path) as looks:  # another process looks at this moment, and then goes away
        fcntl.flock(looks, fcntl.LOCK_SH)
        threading.Timer(0.2, fcntl.flock, (looks, fcntl.LOCK_UN)).start()
        path.chmod(0o644)
        with files.only_one(tmp_path):
            pass


@pytest.mark.parametrize("name", ["a file", "a folder"])
def test_a_lock_is_waited_for_and_that_is_said_once(tmp_path, name, monkeypatch):
    path = tmp_path / "file" if name == "a file" else tmp_path
    order, said, waits = [], [], threading.Event()
    monkeypatch.setattr(files, "say", lambda text: said.append(text) or waits.set())

    def second():
        with files.lock(path, seconds=math.inf, waiting="waiting for the first"):
            order.append("second")

    with files.lock(path):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(timeout=60)
        time.sleep(0.3)  # it tries again meanwhile
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert said == ["waiting for the first"]


def test_a_file_system_without_locks_locks_nothing(tmp_path, monkeypatch):
    def flock(*args):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    with files.only_one(tmp_path), files.only_one(tmp_path):
        pass


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    files.write_file(path, "ä\n")
    assert path.read_bytes() == "ä\n".encode()
    with pytest.raises(TypeError):
        files.write_file(path, 3)
    assert path.read_bytes() == "ä\n".encode() and list(tmp_path.iterdir()) == [path]


def test_links_stay_links_and_pipes_stay_pipes(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    files.write_file(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").read_text() == "text"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    files.write_file(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo() and os.read(reader, 9) == b"text"
    os.close(reader)


def test_a_pipe_without_a_name_is_written_to():
    reader, writer = os.pipe()
    files.write_file(f"/dev/fd/{writer}", "text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)
    os.close(writer)


def test_json_keeps_file_names_that_are_not_utf_8(tmp_path):
    content = {"ä": os.fsdecode(b"caf\xe9.pt")}
    files.write_json(tmp_path / "file", content)
    assert files.read_json(tmp_path / "file") == content
    assert "ä" in (tmp_path / "file").read_text(encoding="utf-8")


def test_compact_json_has_a_line_for_each_key(tmp_path):
    content = {"text": "ends with {},", "list": [{"a": 1.5}, None], "ä": {"c": {}, "d": os.fsdecode(b"\xe9")}}
    files.write_json(tmp_path / "file", content, compact=True)
    assert files.read_json(tmp_path / "file") == content
    first, second, third = (tmp_path / "file").read_text(encoding="utf-8").splitlines()
    assert (first, second) == ('{"text":"ends with {},",', '"list":[{"a":1.5},null],')
    assert third.startswith('"ä":{"c":{},')


def test_what_killed_processes_left_of_a_file_is_removed(tmp_path):
    folder = tmp_path / "a[1]"  # a pattern, which does not match itself
    folder.mkdir()
    path, host = folder / "file", socket.gethostname()
    dead = 2**22 + 1  # more than Linux's largest number of a process
    others = [f"file.{host}.{os.getpid()}.tmp", f"file.elsewhere.{dead}.tmp", f"other.{host}.{dead}.tmp"]
    for name in (*others, f"file.{host}.{dead}.tmp"):
        (folder / name).touch()
    assert files.temporary_beside(path) == str(folder / others[0])
    assert sorted(each.name for each in folder.iterdir()) == sorted(others)
    files.write_file(path, "text")
    assert path.read_text() == "text" and not (folder / others[0]).exists()


def test_what_a_process_of_another_user_writes_is_kept(tmp_path, monkeypatch):
    def kill(process, number):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    theirs = tmp_path / f"file.{socket.gethostname()}.1.tmp"
    theirs.touch()
    monkeypatch.setattr(os, "kill", kill)
    files.temporary_beside(tmp_path / "file")
    assert theirs.exists()


def test_json_is_read_or_refused_by_its_file(tmp_path):
    path = tmp_path / "a.json"
    assert files.read_json(path) is None
    path.write_text('{"a": 1}')
    assert files.read_json(path) == {"a": 1}
    path.write_text('{"a": ')
    with pytest.raises(UsageError, match=rf"^{path}: cannot be read \(.*\); remove it to repeat the step"):
        files.read_json(path)
    with pytest.raises(UsageError, match="; give another$"):
        files.read_json(path, "give another")


def test_digests_are_those_of_the_content(tmp_path):
    path = tmp_path / "abc"
    path.write_bytes(b"abc")
    assert files.digest(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert files.digest(path, "sha1") == "a9993e364706816aba3e25717850c26c9cd0d89d"


STAMP = "2026-01-01 10:00:00 | INFO |"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            'train_inner | {"epoch": 1, "update": 0.2, "ppl": "164.32", "num_updates": "50", "lr": "1e-05"}',
            "  epoch 1, update 50: training perplexity 164.32",
        ),
        (
            "train_inner | epoch 012:     50 / 178 loss=7.591, ppl=164.32, num_updates=1100, kl=inf",
            "  epoch 12, update 1100: training perplexity 164.32",
        ),
        (
            'valid | {"epoch": 3, "valid_ppl": "2.6", "valid_num_updates": "178"}',
            "  epoch 3, update 178: validation perplexity 2.6",
        ),
        ('valid | {"valid_ppl": "2.64"}', None),  # a line of fairseq-validate
        ('train | {"epoch": 1, "train_ppl": "21.74", "train_num_updates": "178"}', None),
        ('train_inner | {"epoch": 1, "ppl": "164', None),
        ("fairseq_cli.train | begin training", None),
    ],
)
def test_progress_is_told_from_either_format_of_the_log(line, said):
    assert fairseq_log.progress(f"{STAMP} {line}") == said


def test_numbers_of_a_line_that_are_not_finite_are_kept():
    split, numbers = fairseq_log.parse(f'{STAMP} valid | {{"valid_ppl": "inf", "valid_bleu": null}}')
    assert (split, numbers) == ("valid", {"ppl": math.inf})


@pytest.mark.parametrize(
    "line",
    [
        'test-known | {"epoch": 2, "test-known_ppl": "5.5"}',
        "test-known | epoch 002 | valid on 'test-known' subset | ppl 5.5",
    ],
)
def test_a_validation_set_may_have_a_hyphen_in_its_name(line):
    assert fairseq_log.parse(f"{STAMP} {line}") == ("test-known", {"epoch": 2, "ppl": 5.5})


def test_a_folder_is_made_or_refused_by_its_option(tmp_path):
    files.make_folder(tmp_path / "a/b")
    files.make_folder(tmp_path / "a/b")
    assert (tmp_path / "a/b").is_dir()
    (tmp_path / "file").touch()
    for option, name, why in (("--out", "file", "File exists"), ("OUT", "file/a", "Not a directory")):
        with pytest.raises(
            UsageError, match=f"^{option} {tmp_path}/{name}: cannot be made .{why}.; give ano"
        ):
            files.make_folder(tmp_path / name, option)
