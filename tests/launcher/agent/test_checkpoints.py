"""Whoever is killed, and whenever: all ranks go on from the newest step that all have sealed, and it is as it was."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tests.kit.wait import until
from tests.launcher.agent.crew import ENV, lines, running
from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.format.arena_layout import SlotState
from turnout.launcher.checkpoint.storage.posix_store import open_store
from turnout.launcher.checkpoint.storage.step_reader import verify
from turnout.launcher.errors import BadCheckpoint

pytestmark = pytest.mark.slow

SAVES = Path(__file__).with_name("scripts") / "saves.py"
WARM = ("--heartbeat-s", "0.5", "--silence-s", "5")
MOMENTS = ("between saves", "in mid-save", "while it is hashed", "while it is persisted", "while it loads", "any time")


@pytest.fixture
def job(crew, tmp_path):
    """Makes crews that save: job("2", "--max-restarts", "9")."""

    def make(nnodes, *more, **named):
        rounds = () if nnodes == "1" else ("--round-dir", str(tmp_path / "rounds"))
        return crew(nnodes, *rounds, *more, script=SAVES, quick=WARM, **named)

    return make


def started(job, round_, ranks):
    """The step after which every rank of that round began, once all have; it is one. And what was said of memory."""
    found = until(
        lambda: len(them := [each for each in lines(job, "starts") if each["round"] == round_]) == ranks and them,
        job.log_text,
    )
    assert len({(each["step"], each["restore"]) for each in found}) == 1, found
    return found[0]["step"], found[0]["restore"]


def saved(job, step, round_=0, ranks=2):
    """Wait until so many ranks have saved this step, or a later one, in this round or a later one."""

    def look():
        ranks_that_saved = {
            each["rank"] for each in lines(job, "saved") if each["step"] >= step and each["round"] >= round_
        }
        return len(ranks_that_saved) == ranks

    until(look, job.log_text)


def newest(job):
    """The newest round in which somebody trains."""
    return max(each["round"] for each in lines(job, "starts"))


def committed(job, step):
    """True if every byte of this step is in storage."""
    try:
        return verify(open_store(str(job.folder / "checkpoints")), step).step == step
    except BadCheckpoint:
        return False


def check_nothing_lost(job, ranks):
    """Each round began with the newest step that all ranks had sealed. Gives these steps, by round.

    A save that was told as done is sealed, and one that was not even begun is not: of what lies between both are right.
    """
    begun, done, starts = defaultdict(list), defaultdict(list), defaultdict(set)
    for file, by_place in (("begun", begun), ("saved", done)):
        for each in lines(job, file):
            by_place[each["round"], each["rank"]].append(each["step"])
    for each in lines(job, "starts"):
        starts[each["round"]].add(each["step"])
    minimum = maximum = [-1] * ranks
    for round_ in sorted(starts):
        (step,) = starts[round_]
        assert min(minimum) <= step <= min(maximum), (
            f"round {round_} began after {step}: {minimum}, {maximum}\n{job.log_text()}"
        )
        minimum = [max(done[round_, rank], default=step) for rank in range(ranks)]
        maximum = [max(begun[round_, rank], default=step) for rank in range(ranks)]
    return {round_: step for round_, (step,) in starts.items()}


def arenas(job):
    return sorted(job.memory.rglob("turnout-*.arena"))


def left(job):
    """List what lies in the memory of all agents."""
    return [path for path in job.memory.rglob("*") if path.parent != job.memory]


def kills(job, number, seed, seconds):
    """Each of so many rounds ends by a kill; the next one finishes."""
    agent = job.start("w0", arguments=(f"kills={number},{seed}", "disk=7"))
    until(lambda: (job.folder / f"pace-{number + 1}").exists(), job.log_text, seconds)
    job.finish()
    assert job.codes(agent) == [0]
    kill_records = lines(job, "kills")
    assert len(kill_records) == number
    assert {each["moment"] for each in kill_records} == set(MOMENTS)
    assert not lines(job, "broken"), "memory that was agreed on is there, and whole"
    gone_on_from = {step for step in check_nothing_lost(job, 2).values() if step >= 0}
    stored = {step for step in gone_on_from if committed(job, step)}
    # On a busy machine storage is slower than saves to it: then one may give its place to newer ones, which is told.
    overtaken = {int(step) for step in re.findall(r"save_overtaken step=(\d+)", agent.log.read_text())}
    assert gone_on_from <= stored | overtaken, (gone_on_from - stored, overtaken, job.log_text())
    assert stored
    assert left(job) == []


@pytest.mark.contract("CS-19")
def test_a_process_is_killed_at_any_moment(job):
    """DL-48: what the world goes on from is in storage, too; what was torn is never loaded, or the script says so."""
    kills(job("1", "--nproc-per-node", "2", "--max-restarts", "99"), 12, 5, seconds=90)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_a_thousand_kills(job, seed):
    kills(job("1", "--nproc-per-node", "2", "--max-restarts", "2000"), 250, seed, seconds=600)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.long)])
def test_one_of_several_workers_loses_its_process(job, size):
    """DL-65: all of them go on from memory, from one step, though storage has an older one."""
    job = job(str(size), "--max-restarts", "9")
    agents = gathered(job, size, "disk=1000")
    saved(job, 5, ranks=size)
    os.kill(life_of(job, "w1").pid, signal.SIGKILL)
    step, restore = started(job, 2, size)
    assert step == restore >= 4
    saved(job, step + 2, 2, size)
    job.finish()
    assert job.codes(*agents) == [0] * size
    check_nothing_lost(job, size)
    assert committed(job, step)
    assert left(job) == []


def gathered(job, size, *words):
    agents = [job.start("w0", arguments=words)]
    agents[0].until("coordinator_begun")
    agents += [job.start(f"w{at}", arguments=words) for at in range(1, size)]
    return agents


def life_of(job, name):
    return [life for life in job.lives() if life.name == name][-1]


@pytest.mark.parametrize(("victim", "empty"), [
    pytest.param("w1", False, id="a member, whose memory is still there", marks=pytest.mark.long),
    pytest.param("w0", False, id="the coordinator, whose memory is still there", marks=pytest.mark.long),
    pytest.param("w1", True, id="a member, whose memory is gone"),
])  # fmt: skip
def test_an_agent_is_killed_and_comes_back(job, tmp_path, victim, empty):
    """The Join tells the coordinator enough of the agent's memory; without it all ranks read storage."""
    job = job("2", "--max-restarts", "9")
    agents = {agent.name: agent for agent in gathered(job, 2, "disk=10")}
    saved(job, 12)
    until(lambda: committed(job, 10), job.log_text)
    agents[victim].kill()
    env = {}
    if empty:
        (tmp_path / "m").mkdir()
        env = {"TURNOUT_MEMORY_DIR": str(tmp_path / "m")}
    agents[victim] = job.start(victim, arguments=("disk=10",), env=env)
    step, restore = started(job, 2, 2)
    if empty:
        assert restore == -1
        assert step >= 10
        assert step in {each["step"] for each in lines(job, "saved")}
        named = {each["stored"] for each in lines(job, "starts") if each["round"] == 2}
        assert named == {step}, "one step was named for all, also for who had never heard of the folder"
    else:
        assert step == restore >= 12
        check_nothing_lost(job, 2)
    job.finish()
    assert job.codes(*agents.values()) == [0, 0]
    assert arenas(job) == ([] if not empty else arenas_of(job, victim)), "only what nobody found again is left"


@pytest.mark.contract("CS-19")
@pytest.mark.parametrize(("size", "disk"), [
    pytest.param(2, 5, id="storage has a newer step than its memory"),
    pytest.param(2, 10**6, id="storage has none that is newer", marks=pytest.mark.long),
    pytest.param(3, 5, id="two come back, and both read one step", marks=pytest.mark.long),
])  # fmt: skip
def test_who_comes_back_after_the_others_have_trained_on_and_ended(job, size, disk):
    """Its memory is of an older round than the last one, so storage is looked at first: hack.chaos, seed 6."""
    words = ("alike", f"disk={disk}")
    job = job(f"1:{size}")
    first, *lost = gathered(job, size, *words)
    job.world(size)
    saved(job, 6, ranks=size)
    for agent in lost:
        agent.kill()
    job.world(1)
    newest_step = max(each["step"] for each in lines(job, "begun") if each["name"] != "w0")
    newer = (newest_step // 5 + 2) * 5
    saved(job, newer, ranks=1, round_=newest(job))
    until(lambda: committed(job, newer) or disk > newer, job.log_text)
    job.finish()
    assert job.codes(first) == [0]
    last = newest(job)
    back = [job.start(agent.name, "--wanted", str(size - 1), arguments=words) for agent in lost]
    step, restore = started(job, newest_round(job, last + 1), size - 1)
    outdated = [each for agent in back for each in agent.entries("memory_outdated")]
    if disk > newer and restore >= 0:
        assert newest_step - 1 <= step == restore <= newest_step
        assert not outdated
    elif disk > newer:  # the one who stayed had sealed a step more, and wrote it to storage when it lost the others
        assert step == newest_step
        assert [(each["stored"], each["step"]) for each in outdated] == [(newest_step, newest_step - 1)]
    else:
        assert step >= newer
        assert restore == -1
        assert {(each["stored"], each["step"] <= newest_step) for each in outdated} == {(step, True)}
        assert len(outdated) == size - 1
        assert {each["stored"] for each in lines(job, "starts") if each["round"] > last} == {step}
    assert job.codes(*back) == [0] * (size - 1)
    assert left(job) == []


@pytest.mark.contract("DL-108")
def test_who_has_other_ranks_now_gets_the_shards_of_these(job):
    """DL-108: the map of the fabric changes, and with it who has which rank: own memory is none of that rank.

    Both agents die, and come back with their memory to leaves that have changed places. Each fetches its new rank's
    shard from the other, and the script finds every byte of it right.
    """
    job = job("2", "--max-restarts", "9")

    def ranks_by_path(leaves):
        return [job.start(name, "--path", f"spine/{leaf}", arguments=("disk=5",)) for name, leaf in leaves.items()]

    agents = ranks_by_path({"w0": "a", "w1": "b"})
    saved(job, 12)
    before = {life.name: life.rank for life in job.lives()}
    for agent in agents:
        agent.kill()
    until(lambda: not any(running(life.pid) for life in job.lives()), "training ends with its agents")
    back = ranks_by_path({"w0": "b", "w1": "a"})
    step, restore = started(job, newest_round(job, 2), 2)
    after = {life.name: life.rank for life in job.lives()[-2:]}
    assert (before, after) == ({"w0": 0, "w1": 1}, {"w0": 1, "w1": 0})
    assert step == restore >= 10
    assert all(f"step_fetched step={step}" in agent.log.read_text() for agent in back), job.log_text()
    assert not lines(job, "broken"), "a rank has been given what is not its own"
    job.finish()
    assert job.codes(*back) == [0, 0]


def all_started(job, ranks):
    """Give `started` of the first round, from the second on, that all ranks have begun."""

    def look():
        begun = Counter(each["round"] for each in lines(job, "starts") if each["round"] > 1)
        return min((round_ for round_, ranks_begun in begun.items() if ranks_begun == ranks), default=0)

    return started(job, until(look, job.log_text), ranks)


def newest_round(job, after):
    """The first round from that one on in which somebody trains."""
    return until(
        lambda: min((each["round"] for each in lines(job, "starts") if each["round"] >= after), default=0), job.log_text
    )


def test_the_daemon_is_killed(job):
    """The trainers go on in their round with the next daemon: no restart, and nothing that was sealed is lost."""
    job = job("1", "--nproc-per-node", "2", "--max-restarts", "0")
    agent = job.start("w0", arguments=("disk=5",))
    saved(job, 6)
    (daemon,) = job.daemons()
    os.kill(daemon, signal.SIGKILL)
    assert agent.until("daemon_lost")["exit"] == -signal.SIGKILL
    last = max(each["step"] for each in lines(job, "saved"))
    saved(job, last + 3)
    assert daemon not in job.daemons()
    assert newest(job) == 1
    job.finish()
    assert job.codes(agent) == [0]
    check_nothing_lost(job, 2)
    assert left(job) == []


@pytest.mark.contract("XD-06")
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.long), 2])
def test_what_was_saved_is_in_storage_when_a_drained_agent_has_ended(job, size):
    """XD-06: with SIGTERM all stop after one step, which is saved in memory only. It is committed in time."""
    job = job(str(size), "--drain-grace-s", "20")
    agents = gathered(job, size, "disk=0")
    saved(job, 5, ranks=size)
    began_s = time.monotonic()
    for agent in agents:
        agent.signal(signal.SIGTERM)
    assert job.codes(*agents) == [143] * size
    assert time.monotonic() - began_s < 20
    (stop,) = {each["step"] for each in lines(job, "stops")}
    assert committed(job, stop), job.log_text()
    assert len(arenas(job)) == size, "who comes next may have it from memory"


@pytest.mark.contract("XD-06")
def test_one_worker_is_evicted_with_its_memory(job, tmp_path):
    """XD-06: what it had sealed at the stop step is in storage when it has ended, and in the memory of who stays.

    Its successor has it from there: the job waits for it, since two are the least.
    """
    job = job("2", "--max-restarts", "9", "--drain-grace-s", "20")
    first, evicted = gathered(job, 2, "disk=0")
    saved(job, 5)
    evicted.signal(signal.SIGTERM)
    assert job.codes(evicted) == [143]
    (stop,) = {each["step"] for each in lines(job, "stops")}
    assert [path.parent.name for path in job.folder.rglob("rank-00001.safetensors")] == [f"step-{stop:010}"]
    (tmp_path / "elsewhere").mkdir()
    elsewhere = {"TURNOUT_MEMORY_DIR": str(tmp_path / "elsewhere")}
    successor = job.start("w1", arguments=("disk=0",), env=elsewhere)
    assert started(job, newest_round(job, 2), 2) == (stop, stop)
    assert f"step_fetched step={stop}" in successor.log.read_text()
    job.finish()
    assert job.codes(first, successor) == [0, 0]


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.long), 2])
def test_when_a_job_fails_the_newest_step_sealed_by_all_is_in_storage(job, size):
    """DL-48: all of it was in memory only, and one of the ranks had sealed one step more than the other."""
    job = job(str(size), "--max-restarts", "0", "--nproc-per-node", str(2 // size))
    agents = gathered(job, size, "disk=0", "fails=7")
    assert job.codes(*agents) == [1] * size
    assert max(each["step"] for each in lines(job, "saved") if each["rank"] == 1) == 7
    assert committed(job, 6), job.log_text()
    assert not committed(job, 7)


def test_the_memory_of_a_dead_run_is_given_back(job, crew):
    """An agent that is killed leaves its memory to its next life; another run under its name removes it."""
    first = job("1", "--rdzv-id", "one")
    agent = first.start("w0", arguments=("disk=0",))
    saved(first, 3, ranks=1)
    agent.kill()
    until(lambda: not first.daemons(), "the daemon ends, too")
    (arena,) = arenas(first)
    (sockets,) = first.memory_of("w0").glob("turnout-????????")
    os.utime(sockets, (0, 0))
    stranger = first.memory_of("w0") / f"turnout-{'0' * 32}.arena"
    stranger.write_bytes(b"\0" * 8192)  # of nobody that we know
    second = job("1", "--rdzv-id", "two")
    agent = second.start("w0", arguments=("disk=0",), env={"TURNOUT_MEMORY_DIR": str(first.memory_of("w0"))})
    saved(second, 3, ranks=1)
    assert started(second, 1, 1) == (-1, -1), "it is not its own"
    assert not arena.exists()
    assert not sockets.exists()
    second.finish()
    assert second.codes(agent) == [0]
    assert arenas(first) == [stranger]


def all_hashed(arena_path):
    """True if each sealed generation is hashed."""
    arena = Arena.open(arena_path)
    try:
        return SlotState.SEALED not in [slot.state for slot in arena.slots()]
    finally:
        arena.close()


def readable_steps(arena_path):
    """The steps of the generations that are sealed, hashed or not yet."""
    arena = Arena.open(arena_path)
    try:
        return {slot.record.step for slot in arena.slots() if slot.state in (SlotState.SEALED, SlotState.HASHED)}
    finally:
        arena.close()


def flip(arena_path, steps):
    """Change one bit of the newest hashed generation of one of these steps. Gives its step."""
    arena = Arena.open(arena_path)
    slots = [(at, slot) for at, slot in enumerate(arena.slots()) if slot.state is SlotState.HASHED]
    at, slot = max((each for each in slots if each[1].record.step in steps), key=lambda each: each[1].epoch)
    view = arena.map(at, slot.record.shard_bytes)
    view[slot.record.shard_bytes - 100] ^= 1
    del view
    arena.close()
    return slot.record.step


@pytest.mark.parametrize(
    "when", [pytest.param("before its agent looks", marks=pytest.mark.long), "after its agent has told what it holds"]
)
def test_memory_that_changed(job, when):
    """A changed generation is told and not restored: an older step that both have is, or storage's, if newer."""
    job = job("2", "--max-restarts", "9")
    agents = gathered(job, 2, "disk=3")
    saved(job, 12)
    agents[1].kill()
    if when.startswith("before"):
        agents[0].kill()
    else:
        agents[0].until("round_ended")
    until(lambda: not any(running(life.pid) for life in job.lives()), "all processes are stopped")
    (arena,) = arenas_of(job, "w0")
    until(lambda: all_hashed(arena), "what was sealed last is hashed")
    if when.startswith("before"):
        for daemon in job.daemons():  # it would wait for the others' shards of what it has written last
            os.kill(daemon, signal.SIGKILL)
        until(lambda: not job.daemons(), "the daemons end, too")
    (other,) = arenas_of(job, "w1")  # may lack the last step of w0: such a step is not read again
    broken = flip(arena, readable_steps(other))
    names = ["w0", "w1"] if when.startswith("before") else ["w1"]
    back = [job.start(name, arguments=("disk=3",)) for name in names]
    step, restore = all_started(job, 2)  # where it is found broken only now, a round ends for it
    assert 3 <= step == restore < broken or (restore == -1 and step >= 3 and step % 3 == 0)
    assert any(f"memory_corrupt step={broken}" in agent.log.read_text() for agent in job.agents), job.log_text()
    job.finish()
    assert job.codes(*back, *([] if len(back) == 2 else agents[:1])) == [0, 0]


def arenas_of(job, name):
    return sorted(job.memory_of(name).glob("turnout-*.arena"))


def test_a_memory_folder_too_long_for_a_socket(job, tmp_path):
    """107 bytes is what a socket's name may have: the socket lies elsewhere then, the memory where it was wanted."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    job = job("1", "--nproc-per-node", "2", "--max-restarts", "9")
    agent = job.start("w0", arguments=("disk=5",), env={"TURNOUT_MEMORY_DIR": str(folder)})
    saved(job, 3)
    assert len(list(folder.glob("turnout-*.arena"))) == 2
    os.kill(life_of(job, "w0").pid, signal.SIGKILL)
    step, restore = started(job, 2, 2)
    assert step == restore >= 2
    job.finish()
    assert job.codes(agent) == [0]
    assert list(folder.iterdir()) == []
    assert "TMPDIR" not in ENV or left(job) == []
