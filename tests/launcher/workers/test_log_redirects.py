"""Outputs go where each option says, as with torchrun, and the lines really get there."""

import asyncio
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.wait import until_async
from tests.launcher.workers.testbed import WorkerTestbed
from turnout.launcher.cli.value_types import BadValue
from turnout.launcher.cli.value_types import parse_streams as choice
from turnout.launcher.settings import Std
from turnout.launcher.settings import Streams as Choice
from turnout.launcher.workers.worker_output import (
    Outputs,
    Tails,
    error_file,
    make_attempt,
    make_run_folder,
    streams_of,
)
from turnout.launcher.workers.worker_spec import MAX_ERROR_LINES, CommandKind, SpawnSpec, Stream, error_text

FILE = Stream("/a/1/stdout.log")
SHOWN = Stream("/a/1/stdout.log", "[default1]:")
ALL = Choice(Std.ALL)


@pytest.mark.parametrize(
    ("text", "rank0", "rank1"),
    [
        ("0", Std.NONE, Std.NONE),
        ("3", Std.ALL, Std.ALL),
        ("1:2", Std.NONE, Std.ERR),
        ("0:1,1:2,12:3", Std.OUT, Std.ERR),
    ],
)
def test_outputs_are_chosen_for_all_or_for_some(text, rank0, rank1):
    assert (choice(text).of(0), choice(text).of(1)) == (rank0, rank1)


@pytest.mark.parametrize("text", ["", "4", "-1", "0:4", "0:1,", "a:1", "0:1;1:2"])
def test_what_chooses_no_outputs_is_refused(text):
    with pytest.raises(BadValue, match=r"RANK:0\.\.3,\.\.\. is needed"):
        choice(text)


@pytest.mark.contract("DL-37")
@pytest.mark.parametrize(
    ("streams", "attempt", "out"),
    [
        pytest.param(Outputs(), "/a", Stream(), id="shown as it comes"),
        pytest.param(Outputs(redirects=choice("1")), "/a", FILE, id="to a file"),
        pytest.param(Outputs(redirects=choice("2")), "/a", Stream(), id="the other one to a file"),
        pytest.param(Outputs(redirects=choice("0:3")), "/a", Stream(), id="another process to a file"),
        pytest.param(Outputs(tee=choice("3")), "/a", SHOWN, id="to a file and shown"),
        pytest.param(Outputs(redirects=choice("3"), tee=choice("1:1")), "/a", SHOWN, id="both are one file"),
        pytest.param(Outputs(only=(0,)), "/a", Stream("/dev/null"), id="another process is shown"),
        pytest.param(Outputs(only=(1,)), "/a", Stream(), id="this process is shown"),
        pytest.param(Outputs(tee=ALL, only=(0,)), "/a", FILE, id="another is shown, this one kept"),
        pytest.param(Outputs(redirects=ALL, tee=ALL), "", Stream(), id="nothing is kept"),
        pytest.param(
            Outputs(tee=ALL, template="$role_name $rank/${local_rank}@$hostname $else: "),
            "/a",
            Stream("/a/1/stdout.log", "default 5/1@host $else: "),
            id="a prefix of the user's",
        ),
        pytest.param(
            Outputs(tee=ALL, role="r", out_needles=("x",), err_needles=("y",)),
            "/a",
            Stream("/a/1/stdout.log", "[r1]:", "/a/filtered_stdout.log", ("x",)),
            id="some lines are gathered",
        ),
    ],
)
def test_an_output_goes_where_the_options_say(streams, attempt, out):
    assert streams_of(streams, attempt, 1, rank=5, hostname="host")[0] == out


def test_stderr_has_a_file_of_its_own():
    streams = Outputs(redirects=choice("2"), err_needles=("y",))
    assert streams_of(streams, "/a", 0, rank=0, hostname="")[1] == Stream("/a/0/stderr.log")
    assert (error_file("/a", 3), error_file("", 3)) == ("/a/3/error.json", "")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        pytest.param(b"", "", id="empty"),
        pytest.param(b"not json\nat all", "not json\nat all", id="no JSON"),
        pytest.param(b"[1]", "[1]", id="JSON of another kind"),
        pytest.param(b'{"message": {"message": "m", "extraInfo": 3}}', "m", id="half of it"),
        pytest.param(b'{"message": {"errorCode": 1}}', "", id="no message"),
        pytest.param(b"\xff\xfe", "\ufffd\ufffd", id="no text"),
        pytest.param(b"\n".join([b"l"] * 99), "\n".join(["l"] * MAX_ERROR_LINES), id="too long"),
    ],
)
def test_an_error_file_is_told_whatever_is_in_it(raw, text):
    assert error_text(raw) == text


def test_the_folders_are_those_of_torchrun(tmp_path):
    run = make_run_folder(str(tmp_path / "logs"), "job/1")
    assert Path(run).parent == tmp_path / "logs"
    assert Path(run).name.startswith("job_1_")
    attempt = make_attempt(run, 2, 3)
    (Path(attempt) / "0" / "stdout.log").write_text("of a try before")
    assert make_attempt(run, 2, 3) == attempt == f"{run}/attempt_2"
    assert sorted(path.relative_to(run).as_posix() for path in Path(run).rglob("*")) == [
        *("attempt_2", "attempt_2/0", "attempt_2/1", "attempt_2/2")
    ]


def test_without_a_folder_nothing_is_kept():
    assert make_run_folder(os.devnull, "job") == ""
    assert make_attempt("", 0, 3) == ""


CONNECTION = """
    import os, sys, time
    rank = os.environ["RANK"]
    print(f"out {rank}")
    print(f"err {rank}", file=sys.stderr)
    sys.stdout.write("10%\\r20%\\r\\nbad \\udcff\\nlast without end")
"""


def logs_in(folder):
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.log")}


@pytest.mark.asyncio
async def test_lines_are_kept_repeated_and_gathered(tmp_path, capfd):
    testbed = WorkerTestbed(tmp_path, env=os.environ | {"PYTHONIOENCODING": "utf-8:surrogateescape"})
    streams = Outputs(tee=choice("0:3,1:1"), redirects=choice("2:3"), out_needles=("out", "last"), err_needles=("err",))
    attempt = await asyncio.to_thread(make_attempt, str(tmp_path), 0, 4)
    orders = []
    for rank in range(4):
        out, err = streams_of(streams, attempt, rank, rank=rank, hostname="h")
        orders.append(testbed.program(CONNECTION, local_rank=rank, stdout=out, stderr=err, env={"RANK": str(rank)}))
    await testbed.run(*orders)
    shown = capfd.readouterr()
    for rank in (0, 1):
        lines = [f"out {rank}", "10%", "20%", "bad \ufffd", "last without end"]
        assert re.findall(rf"\[default{rank}\]:(.*)\n", shown.out) == lines
    assert "out 2" not in shown.out
    assert "out 3\n" in shown.out
    assert sorted(shown.err.splitlines()) == ["[default0]:err 0", "err 1", "err 3"]
    logs = logs_in(Path(attempt))
    assert sorted(logs) == [
        *("0/stderr.log", "0/stdout.log", "1/stdout.log", "2/stderr.log", "2/stdout.log"),
        *("filtered_stderr.log", "filtered_stdout.log"),
    ]
    assert logs["2/stdout.log"].read_bytes() == b"out 2\n10%\r20%\r\nbad \xff\nlast without end"
    assert sorted(logs["filtered_stdout.log"].read_text().splitlines()) == [
        f"[default{rank}]:{text}" for rank in (0, 1) for text in ("last without end", f"out {rank}")
    ]
    assert logs["filtered_stderr.log"].read_text() == "[default0]:err 0\n"
    await testbed.processes.close()


@pytest.mark.asyncio
async def test_lines_are_repeated_while_a_process_runs_and_before_its_failure(tmp_path, capfd):
    testbed = WorkerTestbed(tmp_path)
    tee = Stream(str(tmp_path / "log"), "p:")
    await testbed.start(testbed.program("import signal; print('now', flush=True); signal.pause()", stdout=tee))
    records = []
    await until_async(lambda: records.append(capfd.readouterr().out) or "".join(records) == "p:now\n")
    await testbed.stop()
    await testbed.start(testbed.program("import sys; print('why'); sys.exit(1)", stdout=tee))
    await testbed.ended()
    assert capfd.readouterr().out == "p:why\n"
    await testbed.processes.close()


class FaultyOutput(io.StringIO):
    """An output that fails to write while `error` is set."""

    error: OSError | None = None

    def write(self, text):
        if self.error is not None:
            raise self.error
        return super().write(text)


class Repeating:
    """Repeats the lines of a file on `out`, those with an x also in a filter's file. `events`: what was logged."""

    def __init__(self, folder, out, filtered="filtered.log"):
        self.path, self.events = folder / "stdout.log", []
        shown, silent = Stream(str(self.path), "p:", str(folder / filtered), ("x",)), Stream()
        orders = [SpawnSpec(0, ("train.py",), {}, CommandKind.SCRIPT, stdout=shown, stderr=silent)]
        self.tails = Tails(orders, out, None, lambda event, fields: self.events.append((event, dict(fields))))

    async def add(self, text):
        with self.path.open("a") as file:
            file.write(text)
        await self.tails.catch_up()


@pytest.mark.asyncio
async def test_an_output_that_fails_is_logged_once_and_used_again_later(tmp_path):
    out = FaultyOutput()
    repeating = Repeating(tmp_path, out)
    await repeating.add("one\n")
    out.error = OSError(28, "No space left on device")
    await repeating.add("two\n")
    await repeating.add("three x\n")
    out.error = None
    await repeating.add("four\n")
    await repeating.tails.close()
    assert out.getvalue() == "p:one\np:four\n"
    assert (tmp_path / "filtered.log").read_text() == "p:three x\n"
    assert repeating.events == [("output_lost", {"why": "output: No space left on device"})]


@pytest.mark.asyncio
async def test_a_filter_file_that_fails_keeps_no_line_from_the_output(tmp_path):
    out = io.StringIO()
    repeating = Repeating(tmp_path, out, filtered="no-folder/filtered.log")
    await repeating.add("one x\n")
    await repeating.add("two x")
    await repeating.tails.close()
    assert out.getvalue() == "p:one x\np:two x\n"
    path = tmp_path / "no-folder/filtered.log"
    assert repeating.events == [("output_lost", {"why": f"{path}: No such file or directory"})]


@pytest.mark.asyncio
async def test_without_an_output_of_the_agent_lines_are_only_filtered(tmp_path):
    repeating = Repeating(tmp_path, None)
    await repeating.add("one x\n")
    await repeating.tails.close()
    assert ((tmp_path / "filtered.log").read_text(), repeating.events) == ("p:one x\n", [])


@pytest.mark.asyncio
async def test_characters_that_the_output_does_not_have_are_replaced(tmp_path):
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    repeating = Repeating(tmp_path, out)
    await repeating.add("loss \u2192 0\n")
    await repeating.tails.close()
    assert (out.buffer.getvalue(), repeating.events) == (b"p:loss ? 0\n", [])


def test_a_full_disk_for_repeated_lines_leaves_the_agents_exit_code_0(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('one')\n")
    options = ["--standalone", "--nproc-per-node=1", "--no-fork", "--tee=1", f"--log-dir={tmp_path}", str(script)]
    with open("/dev/full", "w") as full:
        argv = [sys.executable, "-m", "turnout.launcher", *options]
        ended = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (ended.returncode, "output_lost" in ended.stderr) == (0, True), ended.stderr
