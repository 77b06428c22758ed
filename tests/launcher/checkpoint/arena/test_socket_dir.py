"""Folders of one process alone: what a killed process has left is removed by the next one, and nothing else is."""

import os
import subprocess
import sys

import pytest

from turnout.launcher.checkpoint.arena.arena_files import private_folder

OWNER = """
import sys
from turnout.launcher.checkpoint.arena.arena_files import private_folder
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


@pytest.mark.parametrize(("killed", "stays"), [
    pytest.param(True, False, id="its process was killed, a moment after it made it"),
    pytest.param(False, True, id="its process lives"),
])  # fmt: skip
def test_what_the_next_process_removes(tmp_path, owned, killed, stays):
    name, process = owned
    if killed:
        process.kill()
        process.wait()
    folder = private_folder(tmp_path)
    assert os.path.exists(name) is stays
    folder.cleanup()


def test_a_folder_that_only_has_such_a_name_stays(tmp_path):
    strange = tmp_path / "turnout-abcd1234"
    strange.mkdir()
    (strange / "mine").write_text("mine")
    private_folder(tmp_path).cleanup()
    assert (strange / "mine").read_text() == "mine"


def test_a_folder_whose_lock_is_not_there_yet_stays(tmp_path):
    """Its process makes it now: the lock file gets its name when it is locked, so nobody finds it free."""
    folder = private_folder(tmp_path)
    being_made = tmp_path / "turnout-abcd1234"
    being_made.mkdir()
    (being_made / "owner.new").touch()
    private_folder(tmp_path).cleanup()
    assert {path.name for path in tmp_path.iterdir()} == {os.path.basename(folder.name), being_made.name}
    folder.cleanup()


def test_a_process_that_ends_leaves_nothing(tmp_path):
    private_folder(tmp_path).cleanup()
    assert list(tmp_path.iterdir()) == []
