"""Folders of one process alone: what a killed process has left is removed by the next one, and nothing else is."""

import os
import subprocess
import sys
import time

import pytest

from turnout.launcher.checkpoint.arena.socket_dir import YOUNG_S, private_folder

OWNER = """
import sys
from turnout.launcher.checkpoint.arena.socket_dir import private_folder
folder = private_folder(sys.argv[1])
print(folder.name, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owned(tmp_path):
    """A folder and its process, which lives as long as the test, or shorter."""
    command = ("setpriv", "--pdeathsig", "KILL", sys.executable, "-c", OWNER, str(tmp_path))
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    name = process.stdout.readline().strip()
    yield name, process
    process.kill()
    process.communicate()


def aged(folder):
    then_s = time.time() - 2 * YOUNG_S
    os.utime(folder, (then_s, then_s))


@pytest.mark.parametrize(("killed", "old", "stays"), [
    pytest.param(True, True, False, id="its process was killed"),
    pytest.param(False, True, True, id="its process lives"),
    pytest.param(True, False, True, id="it is so young that its process may not hold it yet"),
])  # fmt: skip
def test_what_the_next_process_removes(tmp_path, owned, killed, old, stays):
    name, process = owned
    if killed:
        process.kill()
        process.wait()
    if old:
        aged(name)
    made = private_folder(tmp_path)
    assert os.path.exists(name) is stays
    made.cleanup()


def test_a_folder_that_only_has_such_a_name_stays(tmp_path):
    strange = tmp_path / "turnout-abcd1234"
    strange.mkdir()
    (strange / "mine").write_text("mine")
    aged(strange)
    private_folder(tmp_path).cleanup()
    assert (strange / "mine").read_text() == "mine"


def test_a_process_that_ends_leaves_nothing(tmp_path):
    private_folder(tmp_path).cleanup()
    assert list(tmp_path.iterdir()) == []
