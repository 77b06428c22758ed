"""Training processes are asked for their calls: what they answer, why they do not, and what else may lie there."""

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tests.launcher.workers.testbed import WorkerTestbed
from turnout.launcher.health.flight_recorder.model import MOST_BYTES, Record
from turnout.launcher.health.flight_recorder.parse import write
from turnout.launcher.health.hang_monitor.recorder_client import answer, ask
from turnout.launcher.health.hang_monitor.recorder_server import ear, told
from turnout.launcher.health.hang_monitor.shared_counters import PROGRESS
from turnout.launcher.health.hang_monitor.step_counters import StepCounters

ROOT = Path(__file__).parents[4]
TORCH_S = 90.0  # an import of torch on a busy machine
ANSWERS = """
import os
import sys
import time
import torch
import torch.distributed as dist

def refuses():
    raise RuntimeError("not now")

core, names = torch._C._distributed_c10d, ("_dump_fr_trace_json", "_dump_nccl_trace_json")
if sys.argv[1] == "lacks":
    [delattr(core, name) for name in names if hasattr(core, name)]
elif sys.argv[1] == "refuses":
    core._dump_fr_trace_json = refuses
elif sys.argv[1] == "older":
    newest, core._dump_fr_trace_json = core._dump_fr_trace_json, lambda: newest()
elif sys.argv[1] == "off":
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
if sys.argv[1] != "alone":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(4))
    dist.distributed_c10d._world.pg_backend_config[dist.group.WORLD] = "cpu:gloo,cuda:another"
if os.fork() == 0:
    time.sleep(3_600)
print("ready", flush=True)
time.sleep(3_600)
"""
WAYS = ("calls", "older", "alone", "lacks", "refuses", "off")


@pytest.fixture(scope="module")
def answers():
    """Ask each process twice; give its answers and its files."""
    with tempfile.TemporaryDirectory() as folder:
        yield asyncio.run(asked(Path(folder)))


async def asked(root):
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    testbed, watched = WorkerTestbed(root, preload=("torch",), env=env), StepCounters(root, len(WAYS))
    script, found = testbed.script(ANSWERS), {}
    try:
        await testbed.start(
            *(
                testbed.order(script, way, local_rank=rank, env={PROGRESS: str(watched.paths[rank])})
                for rank, way in enumerate(WAYS)
            )
        )
        for rank, way in enumerate(WAYS):
            assert await testbed.line(rank, TORCH_S) == "ready\n"
            path = watched.paths[rank]
            twice = [(await asyncio.to_thread(ask, path), answer(path, "")) for _ in range(2)]
            modes = [os.stat(each).st_mode & 0o777 for each in (ear(path), told(path))]
            found[way] = twice, modes, sorted(root.glob("*.new"))
    finally:
        await testbed.processes.close()
        watched.close()
    return found


@pytest.mark.parametrize("way", ["calls", "older"])
def test_a_process_answers_each_time_though_its_fork_has_the_same_pipe(answers, way):
    twice, modes, left = answers[way]
    assert [refused for refused, _ in twice] == ["", ""]
    assert [(each.rank, each.world, each.whole) for _, each in twice] == [(0, 1, True)] * 2
    (group,) = twice[1][1].groups
    assert (group.name, group.backend, group.ranks, group.begun) == ("0", "gloo", "0", 1)
    assert (modes, left) == ([0o600, 0o600], [])


@pytest.mark.parametrize(
    ("way", "why"),
    [
        ("alone", "it has no process group"),
        ("lacks", "its torch has no Flight Recorder that can be read"),
        ("refuses", "its torch does not tell: "),
        ("off", "its Flight Recorder is off: TORCH_FR_BUFFER_SIZE says how many calls it keeps"),
    ],
)
def test_a_process_that_has_nothing_on_record_says_why(answers, way, why):
    for refused, record in answers[way][0]:
        assert (refused, record.groups) == ("", ())
        assert record.why.startswith(why)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "says"),
    [
        pytest.param("pass", "1 False\n", id="without torch"),
        pytest.param("import torch", "2 True\n", id="with torch"),
    ],
)
def test_a_process_has_a_thread_of_ours_only_with_torch(tmp_path, program, says):
    watched = StepCounters(tmp_path, 1)
    ours = "'turnout.launcher.health.hang_monitor.recorder_server' in sys.modules"
    shows = f"import sys, threading; print(threading.active_count(), {ours})"
    env = os.environ | {"PYTHONPATH": str(ROOT), PROGRESS: str(watched.paths[0])}
    command = [
        sys.executable,
        "-m",
        "turnout.launcher.health.hang_monitor.launch",
        sys.executable,
        "-c",
        f"{program}; {shows}",
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TORCH_S, check=True)
    watched.close()
    assert done.stdout == says


@pytest.fixture
def path(tmp_path):
    """Give the pipe of a process that does not exist: it is heard, but never answered."""
    os.mkfifo(ear(tmp_path / "progress"))
    file = os.open(ear(tmp_path / "progress"), os.O_RDWR)
    yield tmp_path / "progress"
    os.close(file)


RECORD = Record(0, 2, True)


def planted(path, content):
    Path(told(path)).write_bytes(content)


def linked(path):
    planted(path.with_name("elsewhere"), write(RECORD))
    os.symlink(told(path.with_name("elsewhere")), told(path))


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        pytest.param(lambda path: planted(path, write(RECORD)), "", id="an answer"),
        pytest.param(
            lambda path: planted(path, b"x" * (MOST_BYTES + 1)), "no more than 131072 are read", id="too much"
        ),
        pytest.param(lambda path: planted(path, b"{}"), "its record is not what we write", id="something else"),
        pytest.param(linked, "its answer cannot be read", id="a link"),
        pytest.param(lambda path: os.mkfifo(told(path)), "its answer is no file", id="a pipe that nobody writes"),
        pytest.param(lambda path: os.mkdir(told(path)), "its answer is no file", id="a folder"),
        pytest.param(lambda path: None, "it did not answer: Python's lock is held", id="nothing"),
    ],
)
def test_what_lies_where_an_answer_is_looked_for(path, plant, why):
    plant(path)
    record = answer(path, "")
    assert (why in record.why) if why else record == RECORD


def test_an_answer_of_before_is_none(path):
    planted(path, write(RECORD))
    assert ask(path) == ""
    assert answer(path, "").why.startswith("it did not answer")


def test_an_answer_that_is_there_is_not_waited_for(path):
    def answers():
        with open(ear(path), "rb", buffering=0) as asked:
            asked.read(1)
        planted(path, write(RECORD))

    process = threading.Thread(target=answers)
    process.start()
    assert ask(path) == ""
    process.join()
    assert answer(path, "") == RECORD


def no_pipe(path):
    path.unlink()
    path.write_bytes(b"")


def full(path):
    pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        while os.write(pipe, bytes(4_096)):
            pass
    except BlockingIOError:
        os.close(pipe)


@pytest.mark.parametrize(
    ("harm", "refused"),
    [
        pytest.param(Path.unlink, "it has no thread of ours that could tell", id="no pipe"),
        pytest.param(no_pipe, "what it listens to is no pipe", id="a file in its place"),
        pytest.param(full, "it cannot be asked: ", id="a pipe that nobody empties"),
    ],
)
def test_a_process_that_cannot_be_asked_is_told_at_once(path, harm, refused):
    harm(Path(ear(path)))
    assert ask(path).startswith(refused)
    assert answer(path, ask(path)).why.startswith(refused)


def test_a_process_that_is_gone_cannot_be_asked(tmp_path):
    os.mkfifo(ear(tmp_path / "progress"))
    assert ask(tmp_path / "progress").startswith("it has no thread of ours")
