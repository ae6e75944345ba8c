"""Look for processes that a test has started."""

import subprocess
import time


def nothing_is_left_of(folder, seconds=5):
    """Wait until no command line names a folder. Fail if one still does after some seconds."""
    end = time.monotonic() + seconds
    while str(folder) in (shown := subprocess.run(["ps", "-efww"], capture_output=True, text=True).stdout):
        assert time.monotonic() < end, shown
        time.sleep(0.1)
