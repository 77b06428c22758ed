"""A worker is lost with all its memory: the one that takes its place has its shards from the memory of another."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from tests.kit.wait import until
from tests.launcher.agent.crew import command_of, running
from tests.launcher.agent.test_checkpoints import arenas, committed, gathered, job, lines, newest_round, started
from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.format.arena_layout import SlotState, newest_generation, offset_of

pytestmark = pytest.mark.slow

__all__ = ["job"]

FLASH = Path(__file__).parents[1] / "checkpoint/engine/scripts/flash.py"


def copied(job, step, ranks, round_=0):
    """Wait until so many ranks have said in this round, or later, that replica holders have this step, or later."""

    def look():
        found = [each for each in lines(job, "copied") if each["step"] >= step and each["round"] >= round_]
        return len({each["rank"] for each in found}) == ranks

    until(look, job.log_text)


def stored(job):
    return list((job.folder / "checkpoints").glob("step-*"))


def lose(job, agent):
    """Kill an agent, its daemon and its processes, and remove its memory: as when a node is lost."""
    theirs = [life.pid for life in job.lives() if life.name == agent.name]
    theirs += [pid for pid in job.daemons() if str(job.memory_of(agent.name)) in command_of(pid)]
    for pid in (agent.pid, *filter(running, theirs)):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(running, theirs)), "all of it ends")
    shutil.rmtree(job.memory_of(agent.name))


def newest_copy(job, name):
    """A step of which all copies are there: the last but one that this worker has told, since it copied another one."""
    records = [each for each in lines(job, "copied") if each["name"] == name]
    return sorted(each["step"] for each in records if each["round"] == records[-1]["round"])[-2]


@pytest.mark.contract("CS-19")
def test_workers_are_lost_with_their_memory(job):
    """Nothing was in storage, so each byte came over a socket: all are looked at.

    First one of three is lost, then the one that leads the job and its copies.
    """
    job = job("3", "--max-restarts", "0")
    agents = {agent.name: agent for agent in gathered(job, 3, "disk=0", "replicas=1")}
    copied(job, 5, ranks=3)
    assert not stored(job)
    for round_, victim in enumerate(("w2", "w0"), 2):
        minimum = newest_copy(job, victim)
        lose(job, agents[victim])
        agents[victim] = job.start(victim, arguments=("disk=0", "replicas=1"))
        step, restore = started(job, round_, 3)
        assert step == restore >= minimum, "and no restart was charged: there are none"
        assert f"step_fetched step={step}" in agents[victim].log.read_text()
        assert "step_fetched" not in agents["w1"].log.read_text()
        copied(job, step + 3, 3, round_)
        until(lambda since=round_: len([each for each in lines(job, "copied") if each["round"] == since]) > 12)
    job.finish()
    assert job.codes(*agents.values()) == [0] * 3
    assert arenas(job) == []


@pytest.mark.long
def test_a_copy_that_is_broken_when_it_is_needed(job):
    """A broken copy is not restored, and the world does not end: in the next round all read storage."""
    job = job("2", "--max-restarts", "0")
    agents = {agent.name: agent for agent in gathered(job, 2, "disk=3", "replicas=1")}
    copied(job, 8, ranks=2)
    until(lambda: committed(job, 3), job.log_text)
    lose(job, agents["w1"])
    until(lambda: waits_again(agents["w0"]), job.log_text)
    for path in arenas(job):
        if (arena := Arena.open(path)).identity.owner:
            break_all(arena)
        arena.close()
    agents["w1"] = job.start("w1", arguments=("disk=3", "replicas=1"))
    failed = agents["w1"].until("fetch_failed")
    assert "is not what was sent" in failed["detail"]
    step, restore = started(job, newest_round(job, failed["round"] + 1), 2)
    assert restore == -1
    assert step >= 3
    assert step % 3 == 0
    job.finish()
    assert job.codes(*agents.values()) == [0, 0]


def waits_again(agent):
    """True if this coordinator has ended a round, and has heard what all that are left hold."""
    events = [each["event"] for each in agent.events if each["event"] in ("round_ended", "round_waits")]
    return events[-2:] == ["round_ended", "round_waits"]


def break_all(arena):
    """Change a bit of each generation, behind its mapping."""
    for generation, slot in enumerate(arena.slots()):
        if slot.record is not None:
            at = offset_of(generation) + slot.record.shard_bytes - 100
            os.pwrite(arena.file, bytes([os.pread(arena.file, 1, at)[0] ^ 1]), at)


def replica_files(job):
    """The newest step that is kept whole for each worker by another one."""
    steps = {}
    for path in arenas(job):
        arena = Arena.open(path)
        slots, owner = arena.slots(), arena.identity.owner.partition("/")[0]
        if owner and (at := newest_generation(slots, hashed_only=True)) is not None:
            steps[owner] = max(steps.get(owner, -1), slots[at].record.step)
        arena.close()
    return steps


@pytest.mark.contract("DL-60")
@pytest.mark.parametrize(("kind", "size"), [
    pytest.param("fsdp", 2, id="FSDP, whose shards are copied"),
    pytest.param("fsdp", 4, id="FSDP of four workers", marks=pytest.mark.long),
    pytest.param("ddp", 2, id="DDP, of which each worker has all", marks=pytest.mark.long),
])  # fmt: skip
def test_replica_count_of_flash_checkpoint(crew, tmp_path, kind, size):
    """DL-60: the guide's loop over gloo, replica_count=2. A worker is lost with its memory; all goes on, bit by bit."""
    quick = ("--heartbeat-s", "0.5", "--silence-s", "5", "--round-dir", str(tmp_path / "rounds"))
    job = crew(str(size), script=FLASH, quick=quick)
    options = {"arguments": (kind, "100000", "0"), "env": {"OMP_NUM_THREADS": "1", "REPLICA_COUNT": "2"}}
    agents = [job.start("w0", **options)]
    agents[0].until("coordinator_begun")
    agents += [job.start(f"w{at}", **options) for at in range(1, size)]
    if kind == "fsdp":
        until(lambda: len(steps := replica_files(job)) == size and min(steps.values()) >= 5, job.log_text)
    else:
        until(lambda: len(lines(job, "log")) > 20, job.log_text)
    lose(job, agents[1])
    agents[1] = job.start("w1", **options)
    second_start = until(lambda: (found := starts(job)) and len(found) == 2 * size and found[size:], job.log_text)
    (step,) = {each["step"] for each in second_start}
    assert step >= 5
    saved = {each["rank"]: each["bits"] for each in lines(job, "log") if each["at"] == "saves" and each["step"] == step}
    if kind == "ddp":  # who is killed may not have said any more what all have alike
        saved |= dict.fromkeys(range(size), saved[0])
    assert {each["rank"]: each["bits"] for each in second_start} == saved
    assert f"step_fetched step={step}" in agents[1].log.read_text()
    job.finish()
    assert job.codes(*agents) == [0] * size


def starts(job):
    return [each for each in lines(job, "log") if each["at"] == "starts"]


MOMENTS = ("in mid-copy", "any time")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_workers_are_lost_again_and_again(job, seed):
    """Ten of them, each at once with its memory, at any moment and while copies are on their way: none is torn."""
    dice = random.Random(seed)
    job = job("3", "--max-restarts", "0")
    agents = {agent.name: agent for agent in gathered(job, 3, "disk=0", "replicas=1", f"bytes={4 << 20}")}
    last = 1
    for _ in range(10):
        copied(job, 0, 3, last)
        until(
            lambda since=last: len([each for each in lines(job, "copied") if each["round"] == since]) > 9, job.log_text
        )
        victim, moment = dice.choice(sorted(agents)), dice.choice(MOMENTS)
        if moment == "in mid-copy":
            until(lambda: any(map(writes, arenas(job))), job.log_text)
        minimum = newest_copy(job, victim)
        lose(job, agents[victim])
        agents[victim] = job.start(victim, arguments=("disk=0", "replicas=1", f"bytes={4 << 20}"))
        last = newest_round(job, last + 1)
        step, restore = started(job, last, 3)
        assert step == restore >= minimum, (victim, moment)
    job.finish()
    assert job.codes(*agents.values()) == [0] * 3
    assert not lines(job, "broken")
    assert json.dumps(arenas(job)) == "[]"


def writes(path):
    """True if a copy is being written into this arena."""
    arena = Arena.open(path)
    writing = bool(arena.identity.owner) and any(slot.state is SlotState.WRITING for slot in arena.slots())
    arena.close()
    return writing
