"""Stack traces lie where their own user alone can read them, whoever came to the temporary folder first."""

import os
import stat

import pytest

from turnout.launcher.health.hang_monitor.stack_capture import StackFolder

FILES = {"00000-00002.stacktrace", "00001-00002.stacktrace"}


def file_names(folder):
    folder.replace_all({0: b"a", 1: b"b"}, 2)
    return {path.name for path in folder.path.iterdir()}


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def test_nobody_else_reads_the_folder_or_its_files(tmp_path):
    folder = StackFolder("", tmp_path)
    assert file_names(folder) == FILES
    assert folder.path == tmp_path / "turnout-stacks"
    assert (mode(folder.path), {mode(path) for path in folder.path.iterdir()}) == (0o700, {0o600})


def test_a_folder_of_an_older_version_is_closed_to_others(tmp_path):
    (tmp_path / "turnout-stacks").mkdir(mode=0o755)
    folder = StackFolder("", tmp_path)
    assert (file_names(folder), mode(folder.path)) == (FILES, 0o700)


def linked(at, elsewhere):
    at.symlink_to(elsewhere)


def of_a_file(at, elsewhere):
    at.write_text("mine")


def of_another_user(at, elsewhere):
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    at.mkdir(mode=0o777)
    os.chown(at, 12_345, 12_345)


@pytest.mark.parametrize("plant", [linked, of_a_file, of_another_user])
def test_what_somebody_else_made_under_its_name_is_not_used(tmp_path, plant):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    plant(tmp_path / "turnout-stacks", elsewhere)
    folder = StackFolder("", tmp_path)
    assert file_names(folder) == FILES
    assert folder.path.name.startswith("turnout-stacks-")
    assert (mode(folder.path), list(elsewhere.iterdir())) == (0o700, [])
    assert file_names(folder) == FILES, "and it stays there"


def test_a_folder_that_the_user_named_is_used_as_it_is(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    folder = StackFolder(str(shared))
    assert (file_names(folder), folder.path, mode(shared)) == (FILES, shared, 0o755)
