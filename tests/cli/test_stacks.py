"""`turnout stacks --path DIR`: what ranks left there becomes two pictures, text and JSON, and the odd rank is named."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

from turnout.cli.__main__ import main
from turnout.launcher.health.stack_traces.parse import write

WRITTEN = ["cpp_stack", "cpp_stack.svg", "py_stack", "py_stack.svg", "stacks.json", "stacks.txt"]


def standing_in(function):
    """A dump of faulthandler: a process whose main thread stands in this function, and a thread that waits."""
    return (
        'Thread 0x01 (most recent call first):\n  File "/usr/lib/python3.11/threading.py", line 3 in wait\n\n'
        f'Current thread 0x02 (most recent call first):\n  File "train.py", line 7 in {function}\n'
        '  File "train.py", line 9 in <module>\n'
    )


def left(folder, ranks, world):
    for rank, raw in ranks.items():
        (folder / f"{rank:05}-{world:05}.stacktrace").write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    return main(["stacks", "--path", str(folder)])


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".stacktrace")


@pytest.mark.contract("DL-115", "DL-120")
def test_the_stacks_of_a_folder_are_merged(tmp_path, capsys):
    crowd = {rank: standing_in("all_reduce") for rank in range(7)}
    assert left(tmp_path, crowd | {7: write("py-spy", standing_in("sleep"), "S")}, 8) == 0
    out = capsys.readouterr().out
    assert "rank 7 stands apart: sleep@train.py:7" in out
    assert "ranks 0-6 stand in one place: all_reduce@train.py:7" in out
    assert files(tmp_path) == WRITTEN
    assert "<module>@train.py@0-7|;all_reduce@train.py@0-6|7 1" in (tmp_path / "py_stack").read_text().splitlines()
    assert "Python: 16 threads" in (tmp_path / "stacks.txt").read_text()
    assert json.loads((tmp_path / "stacks.json").read_bytes())["outliers"] == "7"
    drawn = ElementTree.parse(tmp_path / "py_stack.svg").getroot()
    assert "sleep@train.py@7|0-6 (1 of 8 ranks, line 7)" in [each.text for each in drawn.iter() if "title" in each.tag]


@pytest.mark.contract("DL-115", "DL-120")
def test_the_guides_viewer_is_the_same_command(tmp_path):
    left(tmp_path, {0: standing_in("all_reduce")}, 1)
    code = "import sys; from turnout.cli.__main__ import stacktrace_viewer; sys.exit(stacktrace_viewer())"
    done = subprocess.run([sys.executable, "-c", code, "--path", tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("rank 0 stands in one place: all_reduce@train.py:7\n")
    assert files(tmp_path) == WRITTEN


@pytest.mark.contract("DL-115", "DL-120")
def test_c_frames_are_in_a_picture_of_their_own(tmp_path):
    native = 'Process 5: python\n\nThread 5 (idle): "MainThread"\n    poll (libc.so.6)\n    step (train.py:3)\n'
    assert left(tmp_path, {0: native}, 1) == 0
    assert (tmp_path / "cpp_stack").read_text() == "poll@libc.so.6@0| 1\n"
    assert (tmp_path / "py_stack").read_text() == "step@train.py@0| 1\n"


def test_a_rank_without_a_readable_file_is_reported_as_silent(tmp_path, capsys):
    assert left(tmp_path, {0: standing_in("wait"), 1: "Error: Permission Denied", 3: standing_in("wait")}, 4) == 0
    out = capsys.readouterr().out
    assert "ranks 1-2 of 4: no stack" in out
    assert "rank 1: no stack is in it" in out


def test_merged_again_the_files_are_the_same(tmp_path):
    assert left(tmp_path, {0: standing_in("wait")}, 2) == 0
    first = {name: (tmp_path / name).read_bytes() for name in WRITTEN}
    assert left(tmp_path, {}, 2) == 0
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == first


@pytest.mark.parametrize(
    ("names", "message"),
    [
        pytest.param([], "no RANK-WORLD.stacktrace file", id="an empty folder"),
        pytest.param(["notes.txt", "1-2.stacktrace"], "no RANK-WORLD.stacktrace file", id="only files of others"),
        pytest.param(["00000-00002.stacktrace", "00001-00004.stacktrace"], "2 and 4 ranks", id="two worlds"),
        pytest.param(["00004-00004.stacktrace"], "00004-00004.stacktrace: there is no such rank", id="no such rank"),
        pytest.param(["00000-00000.stacktrace"], "no such rank or world", id="a world of nobody"),
        pytest.param(["00000-99999.stacktrace"], "no such rank or world", id="a world that is too large"),
    ],
)
def test_a_folder_that_is_wrong_fails_with_a_word_that_helps(names, message, tmp_path, capsys):
    for name in names:
        (tmp_path / name).write_text(standing_in("wait"))
    assert main(["stacks", "--path", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out
    assert files(tmp_path) == [name for name in names if not name.endswith(".stacktrace")]


def test_a_folder_that_is_not_there_is_a_failure(capsys):
    assert main(["stacks", "--path", "/nowhere/at/all"]) == 1
    assert "/nowhere/at/all" in capsys.readouterr().err
