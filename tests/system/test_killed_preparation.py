"""Data preparation is killed and continued; two scripts work at once."""

import os
import random
import signal
import subprocess
import time

from tests.prepared_corpora import all_files, command
from tests.processes import processes_of, wait_for


def test_two_scripts_at_once_fetch_an_archive_once(scripts_root, talks, talks_archive, tmp_path):
    """Both write what one alone writes.

    The second run has an address without files, so it must wait for what the first run fetches.
    """
    running = []
    for name, url in (("one", talks_archive.parent), ("two", tmp_path / "nowhere")):
        args = command(
            scripts_root, "iwslt14-de-en", "--bpe-merges", 200, "--workers", 1, "--out", tmp_path / name
        )
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "IWSLT14_URL": f"file://{url}"}
        running.append(subprocess.Popen(args, env=environment, stderr=subprocess.PIPE, text=True))
        wait_for((tmp_path / "archives/.de-en.tgz.lock").exists, running[0])
        time.sleep(0.2)
    said = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], said
    assert all_files(tmp_path / "one") == all_files(tmp_path / "two") == all_files(talks[0])
    assert sorted(path.name for path in (tmp_path / "archives").iterdir()) == [
        ".de-en.tgz.lock",
        "de-en.tgz",
        "de-en.tgz.sha256",
    ]


def test_a_run_that_is_killed_again_and_again_ends_equal(scripts_root, talks, talks_archive, tmp_path):
    """The signal goes to the process group, as from a terminal, so workers and fairseq-preprocess get it."""
    out = tmp_path / "out"
    args = command(scripts_root, "iwslt14-de-en", "--out", out, "--bpe-merges", 200, "--workers", 2)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "IWSLT14_URL": f"file://{talks_archive.parent}"}
    rng = random.Random(seed := os.getpid())
    print(f"the delays before the kills were drawn with the seed {seed}")
    for attempt in range(5):
        process = subprocess.Popen(args, env=environment, start_new_session=True, stderr=subprocess.DEVNULL)
        if attempt == 4:  # the last time while fairseq-preprocess runs
            wait_for(lambda: list(out.glob("bin.part*")), process)
        time.sleep(rng.uniform(0.05, 2.0))
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert processes_of(tmp_path) == []
    result = subprocess.run(args, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert all_files(out) == all_files(talks[0])
    assert not list(out.glob("*.part*"))
