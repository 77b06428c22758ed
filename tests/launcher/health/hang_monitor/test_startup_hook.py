"""Training processes that are no forks are seen too, also behind the guide's wrapper, and nothing else changes."""

import asyncio
import configparser
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from setuptools import find_packages

from tests.launcher.workers.testbed import WorkerTestbed
from turnout.launcher.health.hang_monitor.prepare_process import traceable_environment
from turnout.launcher.health.hang_monitor.progress import PROGRESS, StepCounters
from turnout.launcher.health.hang_monitor.stack_capture import capture_stacks
from turnout.launcher.workers.worker_spec import CommandKind

WRAPPER = (sys.executable, "-m", "turnout.launcher.health.hang_monitor.prepare_process")
TORCH_S = 120.0  # two imports of torch on a busy machine
ROOT = Path(__file__).parents[4]
PLAIN = """
import os, sys, time
import torch

weight = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(25):
    weight.sum().backward()
    optimizer.step()
print(sys.argv[1:], os.environ["PYTHONPATH"], os.environ.get("TURNOUT_PROCESS"), os.environ["THEIRS"], flush=True)
time.sleep(3_600)
"""
THEIRS = "import os\nos.environ['THEIRS'] = 'run'\n"  # a sitecustomize of the user's


@pytest.fixture
def watched(tmp_path):
    agents = StepCounters(tmp_path, 2)
    yield agents
    agents.close()


def wrapped(*command, **more):
    env = os.environ | {"PYTHONPATH": str(ROOT)} | more.pop("env", {})
    return subprocess.run(
        [*WRAPPER, *command], env=env, capture_output=True, text=True, timeout=30, check=False, **more
    )


async def fresh_and_wrapped(root, watched, paths):
    """One script in two ways: what both print, and, while they live, what is seen of them, and their stacks."""
    testbed = WorkerTestbed(root, fork=False, env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"})
    testbed.file("site/sitecustomize.py", THEIRS)
    script, env = testbed.script(PLAIN), [{PROGRESS: str(path)} for path in watched.paths]
    try:
        await testbed.start(
            testbed.order(script, "a", "b", local_rank=0, env=env[0]),
            testbed.order(*WRAPPER, sys.executable, script, "a", "b", local_rank=1, env=env[1], how=CommandKind.BARE),
        )
        lines, pids = [await testbed.line(rank, TORCH_S) for rank in (0, 1)], testbed.processes.pids()
        return (
            lines,
            watched.progress(),
            await capture_stacks({rank: (pids[rank], watched.paths[rank]) for rank in (0, 1)}, ""),
        )
    finally:
        await testbed.processes.close()


@pytest.mark.slow
@pytest.mark.contract("DL-112")
def test_a_fresh_plain_process_is_seen_with_and_without_the_wrapper(tmp_path, watched):
    paths = f"{tmp_path / 'site'}{os.pathsep}{ROOT}"
    lines, progress, stacks = asyncio.run(fresh_and_wrapped(tmp_path, watched, paths))
    assert [each.beats for each in progress] == [25, 25]
    assert [each.shown for each in stacks.values()] == [True, True], stacks
    assert lines == [f"['a', 'b'] {paths} None run\n"] * 2


def test_what_a_process_starts_itself_is_not_taken_for_it(watched):
    child = [sys.executable, "-c", "import sys; print('turnout' in sys.modules)"]
    parent = f"import subprocess, sys; print('turnout' in sys.modules, flush=True); subprocess.run({child})"
    done = wrapped(sys.executable, "-c", parent, env={PROGRESS: str(watched.paths[0])})
    assert done.stdout == "True\nFalse\n", done.stderr


def test_a_process_that_ends_is_in_no_step_however_long_that_takes(watched):
    forks = "import os; os.fork() or exit(); os.wait()"
    assert wrapped(sys.executable, "-c", forks, env={PROGRESS: str(watched.paths[0])}).returncode == 0
    progress = watched.progress()[0]
    assert (progress.phase, progress.turns) == ("ending", 1)


@pytest.mark.parametrize("name", ["turnout.py", "turnout/__init__.py"])
def test_with_a_users_module_of_our_name_a_process_is_left_alone(tmp_path, watched, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    env = {PROGRESS: str(watched.paths[0])}
    assert traceable_environment(env, str(tmp_path / "train.py")) == env
    assert traceable_environment(env, str(ROOT / "train.py")).keys() == {PROGRESS, "PYTHONPATH", "TURNOUT_PROCESS"}
    assert traceable_environment({}, str(ROOT / "train.py")) == {}


@pytest.mark.contract("DL-122")
def test_py_spy_comes_with_its_extra_and_the_hook_with_the_wheel():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert "py-spy>=0.4" in setup["options.extras_require"]["launcher"].splitlines()
    assert "turnout.launcher.health.hang_monitor.startup_hook" in find_packages(str(ROOT)), (
        "Python imports it from its folder"
    )


@pytest.mark.contract("DL-112")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        pytest.param(("sh", "-c", "exit 7"), 7, id="its exit code"),
        pytest.param(("sh", "-c", "kill -TERM $$"), -signal.SIGTERM, id="the signal that ends it"),
        pytest.param(("no-such-program",), 127, id="a program that is not there"),
        pytest.param(("/",), 126, id="one that cannot be run"),
        pytest.param((), 2, id="none at all"),
    ],
)
def test_the_wrapper_ends_as_the_program(command, code):
    assert wrapped(*command).returncode == code
