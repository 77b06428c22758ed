"""Ctrl-C in the middle of `make test` leaves no process, no file in memory and no lock."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("interrupted.py")
PRIVATE = 'mount -t tmpfs none /dev/shm && exec "$@"'


@pytest.mark.real
@pytest.mark.root
@pytest.mark.debian("util-linux")
def test_ctrl_c_leaves_no_process_and_no_file_in_memory(tmp_path, control_plane):
    # control_plane is asked for so that missing binaries are told in the usual way.
    namespaces = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "sh", "-c", PRIVATE, "sh")
    command = [*namespaces, sys.executable, SCRIPT, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["began"], report["log"]
    assert (report["code"], report["processes"], report["memory"]) == (2, [], []), report["log"]
