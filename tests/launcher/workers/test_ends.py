"""How processes end and are ended: at once when they fail, by force when they must, and with nothing left of them."""

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time

import pytest
import pytest_asyncio

from tests.kit.child_processes import children_of
from tests.kit.wait import until, until_async
from tests.launcher.agent.crew import command_of
from tests.launcher.workers.testbed import PYTHON, SECONDS, WorkerTestbed, running, zombies
from turnout.launcher.workers.worker_spec import CommandKind, StillRunning

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLEEP = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
DEAF = """
    import os, signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(os.getpid(), flush=True)
    time.sleep(600)
"""
# A child, one that leaves the session, and a grandchild whose parent has ended.
FAMILY = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    def child(*more, **how):
        code = "import time; time.sleep(600)"
        return subprocess.Popen([sys.executable, "-c", code], **how).pid
    pids = [child(), child(start_new_session=True)]
    pids.append(int(subprocess.check_output(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 & echo $!"])))
    print(os.getpid(), *pids, flush=True)
    if sys.argv[1:] == ["fail"]:
        sys.exit(4)
    if not sys.argv[1:]:
        time.sleep(600)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[True, False], ids=["forked", "spawned"])
async def testbed(request, tmp_path_factory):
    testbed = WorkerTestbed(tmp_path_factory.mktemp("ends"), fork=request.param)
    yield testbed
    await testbed.processes.close()


@pytest.fixture(autouse=True)
def _nothing_is_left():
    before = zombies()  # of other tests of this process
    yield
    assert set(zombies()) <= set(before)


async def test_nothing_to_do_is_done(testbed):
    assert await testbed.run() == ()


async def test_a_round_is_over_when_all_have_ended_well(testbed):
    ended = await testbed.run(*(testbed.program("print(1)", local_rank=rank) for rank in range(3)))
    assert sorted((each.local_rank, each.code, each.signal, each.has_failed) for each in ended) == [
        (rank, 0, "", False) for rank in range(3)
    ]


@pytest.mark.contract("PE-01")
@pytest.mark.parametrize(
    ("text", "code", "name"),
    [
        pytest.param("raise SystemExit(3)", 3, "", id="by its code"),
        pytest.param("1 / 0", 1, "", id="by an exception"),
        pytest.param("import os; os.kill(os.getpid(), 9)", -9, "SIGKILL", id="by SIGKILL"),
        pytest.param("import os; os.kill(os.getpid(), 15)", -15, "SIGTERM", id="by SIGTERM"),
        pytest.param("import os; os.kill(os.getpid(), 11)", -11, "SIGSEGV", id="by SIGSEGV"),
    ],
)
async def test_the_first_failure_is_told_while_the_others_run(testbed, text, code, name):
    orders = [testbed.program(SLEEP), testbed.program(text, local_rank=1), testbed.program(SLEEP, local_rank=2)]
    await testbed.start(*orders)
    (failed,) = await testbed.ended()
    assert (failed.local_rank, failed.code, failed.signal, failed.has_failed) == (1, code, name, True)
    assert len(testbed.processes.pids()) == 2
    first, *others = await testbed.stop()
    assert first == failed
    assert {(each.code, each.signal) for each in others} == {(-15, "SIGTERM")}
    assert len(testbed.processes.pids()) == 0


async def test_a_death_is_noticed_within_a_blink(testbed):
    await testbed.start(testbed.program(SLEEP))
    pid, delays_s = int(await testbed.line()), []
    for _ in range(5):
        killed_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        await testbed.ended()
        delays_s.append(time.monotonic() - killed_s)
        await testbed.stop()
        await testbed.start(testbed.program(SLEEP))
        pid = int(await testbed.line())
    await testbed.stop(signal.SIGKILL)
    assert min(delays_s) < 0.05


async def test_nobody_starts_a_round_over_another(testbed):
    await testbed.start(testbed.program(SLEEP))
    with pytest.raises(StillRunning, match="1 processes of the last round are alive"):
        await testbed.start(testbed.program(SLEEP))
    assert [each.signal for each in await testbed.stop()] == ["SIGTERM"]


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1], ids=lambda sig: sig.name)
async def test_a_process_hears_the_signal_and_has_its_time(testbed, sig):
    text = f"""
        import os, signal, sys
        def leave(*_):
            print("leaving", flush=True)
            sys.exit(5)
        signal.signal({int(sig)}, leave)
        print("ready", flush=True)
        while True:
            signal.pause()
    """
    await testbed.start(testbed.program(text))
    await testbed.line()
    (exited,) = await testbed.stop(sig)
    assert (exited.code, testbed.out()) == (5, "ready\nleaving\n")


async def test_a_stop_in_the_moment_of_the_start_ends_all(testbed):
    orders = [testbed.program(SLEEP, local_rank=rank) for rank in range(4)]
    began_s = time.monotonic()
    await testbed.start(*orders)
    assert {each.signal for each in await testbed.stop(grace_s=20.0)} == {"SIGTERM"}
    assert time.monotonic() - began_s < 15.0


@pytest.mark.parametrize("flag_s", [0.0, 0.4, 1.0])
async def test_who_ignores_sigterm_is_killed_when_its_time_is_up(tmp_path, flag_s):
    """Target 15: at most half a second after the flag says so, also between two rounds."""
    testbed = WorkerTestbed(tmp_path, shutdown_timeout_s=flag_s)
    await testbed.start(testbed.program(DEAF), testbed.program(DEAF, local_rank=1))
    pids = [int(await testbed.line(rank)) for rank in range(2)]
    began_s = time.monotonic()
    ended = await testbed.stop()
    took_s = time.monotonic() - began_s
    assert {each.signal for each in ended} == {"SIGKILL"}
    assert flag_s <= took_s <= flag_s + 0.5
    assert not any(running(pid) for pid in pids)
    assert [each.code for each in await testbed.run(testbed.program("print('next')"))] == [0]
    await testbed.processes.close()


async def test_a_second_stop_that_is_less_patient_wins(testbed):
    await testbed.start(testbed.program(DEAF))
    await testbed.line()
    patient = asyncio.create_task(testbed.stop(grace_s=25.0))
    await until_async(lambda: not patient.done())
    began_s = time.monotonic()
    assert [each.signal for each in await testbed.stop(signal.SIGKILL, 0.0)] == ["SIGKILL"]
    assert [each.signal for each in await patient] == ["SIGKILL"]
    assert time.monotonic() - began_s < 10.0


@pytest.mark.parametrize("how", ["run", "fail", "end"])
async def test_the_children_of_a_process_go_with_it_wherever_they_fled(testbed, how):
    """While it runs, after it has failed, and when it has ended well and left them behind."""
    await testbed.start(testbed.program(FAMILY, *([] if how == "run" else [how])))
    pids = [int(word) for word in (await testbed.line()).split()]
    if how != "run":
        await testbed.ended()
    assert [running(pid) for pid in pids] == [how == "run", True, True, True]
    await testbed.stop(grace_s=0.2)
    assert not any(running(pid) for pid in pids)
    (fields,) = testbed.entries("orphans_killed")
    assert set(fields["names"]) <= {"python", "python3", "python3.11", "setsid", "sleep"}  # setsid: on its way to sleep


async def test_a_bash_that_is_no_leader_of_python_is_stopped_with_its_pipeline(testbed):
    await testbed.start(testbed.order("bash", "-c", "echo $$; sleep 600 | cat", how=CommandKind.BARE))
    pid = int(await testbed.line())
    (exited,) = await testbed.stop(grace_s=5.0)
    assert exited.signal == "SIGTERM"
    assert not running(pid)


@pytest.mark.parametrize(
    ("left", "message"),
    [
        pytest.param(
            {
                "message": {
                    "message": "ValueError: fell",
                    "extraInfo": {"py_callstack": "T\n  File a\n    b()\nV", "timestamp": "1"},
                }
            },
            "ValueError: fell\n  File a\n    b()",
            id="as @record writes it",
        ),
        pytest.param({"message": "the old form"}, "the old form", id="as it was written once"),
        pytest.param(None, "", id="nothing"),
    ],
)
async def test_a_failure_is_told_with_its_error_file(testbed, left, message):
    file = testbed.root / "error.json"
    file.unlink(missing_ok=True)
    text = """
        import os, sys
        if sys.argv[1]:
            open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write(sys.argv[1])
        sys.exit(1)
    """
    argument = json.dumps(left) if left else ""
    order = testbed.program(text, argument, env={"TORCHELASTIC_ERROR_FILE": str(file)}, error_file=str(file))
    (exited,) = await testbed.run(order)
    assert (exited.code, exited.error, exited.error_file) == (1, message, str(file) if left else "")


async def test_when_the_parent_dies_its_processes_die_and_a_new_one_serves_next(tmp_path):
    testbed = WorkerTestbed(tmp_path)
    await testbed.start(testbed.program(FAMILY), testbed.program(DEAF, local_rank=1))
    pids = [int(word) for rank in range(2) for word in (await testbed.line(rank)).split()]
    parent = testbed.entries("parent_ready")[0]["pid"]
    os.kill(parent, signal.SIGKILL)
    await testbed.ended()
    ended = await testbed.stop()
    assert sorted((each.local_rank, each.signal) for each in ended) == [(0, "SIGKILL"), (1, "SIGKILL")]
    assert not any(running(pid) for pid in [*pids, parent])
    assert testbed.entries("parent_lost") == [{"pid": parent, "code": -9}]
    assert [each.code for each in await testbed.run(testbed.program("print('on')"))] == [0]
    assert (testbed.out(), testbed.why) == ("on\n", [])
    await testbed.processes.close()


async def test_an_end_that_a_parent_reported_before_it_died_is_known(tmp_path):
    """Between the report and the death the agent reads nothing; then it sends the dead parent an order."""
    testbed = WorkerTestbed(tmp_path)
    fifo = str(tmp_path / "fifo")
    os.mkfifo(fifo)
    await testbed.start(testbed.program("import sys; open(sys.argv[1]).read(); raise SystemExit(3)", fifo))
    parent = testbed.processes.warm_parent.parent
    sock = parent._writer.get_extra_info("socket")

    # Until stop() has sent its order, the event loop does nothing, and so the agent reads nothing.
    os.close(os.open(fifo, os.O_WRONLY))  # the process ends
    until(lambda: unread_bytes(sock), "the parent's report")
    os.kill(parent.pid, signal.SIGKILL)
    until(lambda: not running(parent.pid), "the parent's death")
    assert await parent.stop(signal.SIGTERM, SECONDS) is None

    assert [(each.code, each.signal) for each in await testbed.ended()] == [(3, "")]
    await testbed.processes.close()


def unread_bytes(sock):
    """The bytes that a socket holds for its reader."""
    return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)


@pytest.mark.parametrize("how", ["closed", "killed"])
async def test_what_the_agent_itself_started_outlives_a_parent(tmp_path, how):
    """Its checkpoint daemon has a session of its own, and is no child of a parent."""
    testbed = WorkerTestbed(tmp_path)
    await testbed.start(testbed.program(FAMILY))
    pids = [int(word) for word in (await testbed.line()).split()]
    daemon = await asyncio.create_subprocess_exec("sleep", "600", start_new_session=True)
    try:
        if how == "killed":
            os.kill(testbed.entries("parent_ready")[0]["pid"], signal.SIGKILL)
            await testbed.ended()
        await testbed.processes.close()
        assert not any(running(pid) for pid in pids)
        assert running(daemon.pid)
    finally:
        daemon.kill()
        assert await daemon.wait() == -signal.SIGKILL


def parents_of_this_process():
    """Pids of its children that are parents of training processes. They have another name once they have begun."""
    names = ("forkserver", "parent of training processes")
    commands = {pid: command_of(pid) for pid in children_of(os.getpid())}  # one may be reaped meanwhile: by a thread
    return [pid for pid, command in commands.items() if any(name in command for name in names)]


@pytest.mark.parametrize("then", ["close", "warm"])
async def test_while_a_lost_parent_is_replaced_the_agent_may_end_or_ask_for_one(tmp_path, then):
    """Once it left a parent that nobody closed: no one had a name for it yet."""
    testbed, others = WorkerTestbed(tmp_path), set(parents_of_this_process())
    request, ways = [], {"close": testbed.processes.close, "warm": testbed.processes.warm_parent.start}
    await testbed.run(testbed.program("print(1)"))

    def hear(event, fields):
        if event == "parent_lost":
            request.append(asyncio.create_task(ways[then]()))

    testbed.hear = hear
    os.kill(testbed.entries("parent_ready")[0]["pid"], signal.SIGKILL)
    await until_async(lambda: request and request[0].done())
    if then == "warm":
        assert len(set(parents_of_this_process()) - others) == 1
    await testbed.processes.close()
    assert set(parents_of_this_process()) <= others


async def test_a_parent_that_keeps_dying_is_done_without(tmp_path):
    testbed = WorkerTestbed(tmp_path)
    for _ in range(3):
        await testbed.start(testbed.program(SLEEP))
        os.kill(testbed.entries("parent_ready")[0]["pid"], signal.SIGKILL)
        assert [each.signal for each in await testbed.ended()] == ["SIGKILL"]
        await testbed.stop()
        await until_async(lambda: testbed.entries("parent_lost"))
    assert [each.code for each in await testbed.run(testbed.program("print(1)"))] == [0]
    assert testbed.why == ["forking is off"]
    await testbed.processes.close()


async def test_a_parent_that_does_not_answer_is_ended_with_all_below_it(tmp_path):
    testbed = WorkerTestbed(tmp_path, stuck_s=2.0)
    await testbed.start(testbed.program(DEAF))
    pid, parent = int(await testbed.line()), testbed.entries("parent_ready")[0]["pid"]
    os.kill(parent, signal.SIGSTOP)
    assert [each.signal for each in await testbed.stop(grace_s=0.1)] == ["SIGKILL"]
    assert not running(pid)
    assert not running(parent)
    await testbed.processes.close()


@pytest.mark.parametrize("forks", [True, False], ids=["forked", "spawned"])
@pytest.mark.parametrize("moment", ["idle", "training"])
async def test_nothing_outlives_a_killed_agent(tmp_path, forks, moment):
    program = tmp_path / "family.py"
    program.write_text("\n".join(line[4:] for line in FAMILY.splitlines()))
    agent = tmp_path / "agent.py"
    agent.write_text(
        f"""
import asyncio, os
from pathlib import Path
from tests.launcher.agent.crew import command_of
from tests.launcher.workers.testbed import WorkerTestbed
async def main():
    testbed = WorkerTestbed(Path({str(tmp_path)!r}), fork={forks})
    await testbed.start(testbed.order({str(program)!r}) if {moment == "training"} else testbed.program("print(1)"))
    await (testbed.line() if {moment == "training"} else testbed.ended())
    print("there", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    )
    with agent_process(agent) as process:
        assert await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), SECONDS) == b"there\n"
        below = _below(process.pid)
        assert len(below) == (1 + 1 + 3 if moment == "training" else 1)
        process.kill()
    await until_async(lambda: not any(running(pid) for pid in below), "all have ended", 5.0)
    _reap()


async def test_a_process_dies_with_its_parent_even_when_nobody_can_kill_it(tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text(
        f"""
import asyncio, os
from pathlib import Path
from tests.launcher.agent.crew import command_of
from tests.launcher.workers.testbed import WorkerTestbed
async def main():
    testbed = WorkerTestbed(Path({str(tmp_path)!r}))
    await testbed.start(testbed.program("import time; print('on', flush=True); time.sleep(600)"))
    await testbed.line()
    print(testbed.entries("parent_ready")[0]["pid"], flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
    )
    with agent_process(agent) as process:
        parent = int(await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), SECONDS))
        below = _below(process.pid)
        assert len(below) == 2
        os.kill(parent, signal.SIGSTOP)  # it will not hear that its agent is gone
        process.kill()
    assert all(running(pid) for pid in below)
    os.kill(parent, signal.SIGKILL)
    await until_async(lambda: not any(running(pid) for pid in below), "all have ended", 5.0)
    _reap()


def agent_process(script):
    return subprocess.Popen([PYTHON, script], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.getcwd()})


def _reap():
    """They are ours since the Processes of other tests made us adopt orphans."""
    for pid in zombies():
        os.waitpid(pid, 0)


def _below(root):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            chain = [int(entry)]
            while chain[-1] > 1 and chain[-1] != root:
                chain.append(_parent(chain[-1]))
            if chain[-1] == root and len(chain) > 1:
                found.append(chain[0])
    return found


def _parent(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return 0
