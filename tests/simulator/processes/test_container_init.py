"""The first process of a container, by itself: what it leaves behind, and what it does without isolation."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from turnout.simulator.processes.pod_lifecycle import KILL, TERM
from turnout.simulator.processes.runtime.container_init import can_isolate
from turnout.simulator.processes.runtime.pod_worker import ContainerOrder, start_container

pytestmark = pytest.mark.asyncio


def order(folder, *argv, **more):
    root = folder / "root"
    root.mkdir(exist_ok=True)
    note = folder / "note"
    note.touch()
    env = {"PATH": os.environ["PATH"]}
    fixed = {"working_dir": "", "hostname": "me", "root": str(root), "termination_message_file": str(note)}
    return ContainerOrder(argv=argv, env=env, **fixed, **more)


def alive(mark):
    """How many processes hold this word in their command line."""
    found = 0
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += mark.encode() in file.read_bytes()
        except OSError:
            continue
    return found


@pytest.fixture
def mark(tmp_path):
    """A file by whose name a process is known."""
    (tmp_path / "mark").touch()
    return f"{tmp_path}/mark"


@pytest.fixture
def fifo(tmp_path):
    """A pipe that is read to its end once somebody has written to it."""
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


@pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "not"])
@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("kill -9 $$; sleep 9", 137)],
    ids=["done", "failed", "killed"],
)
async def test_its_exit_code_is_that_of_its_command(tmp_path, isolated, script, code):
    if isolated and "kill" in script:
        script = f"sh -c '{script}'; exit $?"  # process 1 of a namespace cannot kill itself
    child = await start_container(order(tmp_path, "sh", "-c", script, isolated=isolated), tmp_path / "log")
    assert await child.wait() == code


@pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "not"])
@pytest.mark.parametrize("sent_signal", [TERM, KILL])
async def test_whatever_it_started_ends_with_it(tmp_path, mark, fifo, isolated, sent_signal):
    script = f"trap 'exit 5' TERM; setsid tail -f {mark} & echo up > {fifo}; wait"
    child = await start_container(order(tmp_path, "sh", "-c", script, isolated=isolated), tmp_path / "log")
    assert await asyncio.to_thread(fifo.read_text) == "up\n"
    child.send_signal(sent_signal)
    assert await child.wait() == (5 if sent_signal == TERM else 137)
    assert alive(f"-f\0{mark}") == 0


@pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "not"])
async def test_one_whose_first_process_does_not_react_is_killed_whole(tmp_path, mark, fifo, isolated):
    script = f"setsid tail -f {mark} & echo up > {fifo}; wait"
    child = await start_container(order(tmp_path, "sh", "-c", script, isolated=isolated), tmp_path / "log")
    assert await asyncio.to_thread(fifo.read_text) == "up\n"
    os.kill(child._process.pid, signal.SIGSTOP)
    await child.kill()
    assert await child.wait() == 137
    for _ in range(1000):  # the kernel ends them right after
        if not alive(f"-f\0{mark}"):
            break
        await asyncio.to_thread(os.sched_yield)
    assert alive(f"-f\0{mark}") == 0


async def test_one_without_a_command_stays_until_it_is_told(tmp_path):
    child = await start_container(order(tmp_path), tmp_path / "log")
    child.send_signal(TERM)
    assert await child.wait() in (0, 143)  # before or after it has begun to listen


async def test_without_isolation_a_container_with_volumes_is_refused(tmp_path):
    child = await start_container(order(tmp_path, "true", isolated=False, needs_isolation=True), tmp_path / "log")
    assert await child.wait() == 128
    assert "needs mount namespaces" in (tmp_path / "note").read_text()


async def test_when_nobody_wants_it_any_more_it_ends(tmp_path, mark):
    child = await start_container(order(tmp_path, "tail", "-f", mark), tmp_path / "log")
    child._process.stdin.close()  # as the kernel does it when we are killed
    assert await child.wait() == 137
    assert alive(f"-f\0{mark}") == 0


async def test_it_is_known_whether_the_kernel_allows_namespaces():
    assert can_isolate() in (True, False)


# After setuid() a process may not write the map of its user namespace, as under Ubuntu's AppArmor profile for users.
AS_NOBODY = """
import os
from turnout.simulator.processes.runtime import container_init
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
print("can isolate:", container_init.can_isolate(), flush=True)
container_init.main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("needs_isolation", "code"),
    [
        pytest.param(False, 7, id="the command runs without isolation"),
        pytest.param(True, 128, id="a container with volumes is refused"),
    ],
)
async def test_a_user_namespace_that_cannot_be_mapped_is_none(tmp_path, needs_isolation, code):
    line = {"argv": ["sh", "-c", "exit 7"], "env": dict(os.environ), "isolated": True} | {
        "needs_isolation": needs_isolation, "working_dir": "", "hostname": "me", "root": str(tmp_path), "links": {},
        "binds": [], "termination_message_file": "/dev/null",
    }  # fmt: skip
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", AS_NOBODY, **pipes)
    process.stdin.write(json.dumps(line).encode() + b"\n")
    assert await process.stdout.readline() == b"can isolate: False\n"
    assert await process.wait() == code
