"""Workers leave with their memory. What they held goes to those that stay, and a world of another size has it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.kit.wait import until
from tests.launcher.agent.conftest import crew
from tests.launcher.agent.test_checkpoints import arenas, arenas_of, committed, lines
from tests.launcher.agent.test_replicas import FLASH, lose, replica_files, starts
from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.format.arena_layout import SlotState
from turnout.launcher.checkpoint.storage.posix_store import open_store
from turnout.launcher.checkpoint.storage.step_reader import verify
from turnout.launcher.errors import BadCheckpoint, StorageFailed

__all__ = ["crew"]

SCRIPT = Path(__file__).parents[1] / "engine/scripts/resizes.py"
QUICK = ("--heartbeat-s", "0.5", "--silence-s", "5", "--last-call-s", "30")
ENV, IMPORTS_S = {"OMP_NUM_THREADS": "1"}, 120.0


@pytest.fixture
def job(crew, tmp_path):
    """Makes crews that train and save: job("1:4", "--drain-grace-s", "5"). It tells of itself in job.folder."""

    def make(nnodes, *more):
        return crew(nnodes, "--round-dir", str(tmp_path / "rounds"), *more, script=SCRIPT, quick=QUICK)

    return make


def started(job, ranks, after=0):
    """Wait until all ranks of the first world of this size have started; give the one state that they began from."""

    def look():
        found = [each for each in lines(job, "starts") if each["ranks"] == ranks and each["round"] > after]
        return {each["rank"] for each in found} == set(range(ranks)) and found

    found = until(look, job.log_text, IMPORTS_S)
    assert len({each["step"] for each in found}) == 1, found
    assert all(each["bits"] == found[0]["bits"] for each in found)
    return found


def saved(job, round_, step=0):
    """Wait until this round has saved that step, or a later one."""
    until(lambda: any(each["round"] == round_ and each["step"] >= step for each in lines(job, "saved")), job.log_text)


def stopped(job, round_):
    """The step at which this round was to stop, and what was saved there."""
    (step,) = {each["step"] for each in lines(job, "stops") if each["round"] == round_}
    return step, next(each["bits"] for each in lines(job, "saved") if (each["round"], each["step"]) == (round_, step))


def writes(path):
    """True if a save is being written into this arena."""
    arena = Arena.open(path)
    writing = any(slot.state is SlotState.WRITING for slot in arena.slots())
    arena.close()
    return writing


@pytest.mark.contract("XD-06")
@pytest.mark.parametrize(("size", "stays"), [
    pytest.param(3, 0, id="two of three, the coordinator stays", marks=pytest.mark.long),
    pytest.param(4, 0, id="three of four, the coordinator stays", marks=pytest.mark.long),
    pytest.param(4, 3, id="three of four, the coordinator leaves, and hands over the job", marks=pytest.mark.long),
])  # fmt: skip
def test_all_but_one_are_evicted_together(job, size, stays):
    """5 s of grace, SIGTERM in mid-save. The one that stays goes on from the stop step, from memory; then it grows.

    Those who leave are far from having it in storage when they end: who stays writes it for them. Who joins has no
    memory, and no storage is read: its parts come over a socket.
    """
    job = job("1:4", "--drain-grace-s", "5")
    options, slow = {"arguments": (str(8 << 20),), "env": ENV}, {"TURNOUT_PERSIST_BYTES_S": "100000"}
    agents = [job.start("w0", **options | {"env": ENV | (slow if stays else {})})]
    agents[0].until("coordinator_begun")
    agents += [job.start(f"w{at}", **options | {"env": ENV | (slow if at != stays else {})}) for at in range(1, size)]
    one, leavers = agents[stays], [agent for at, agent in enumerate(agents) if at != stays]
    first = started(job, size)[0]["round"]
    saved(job, first, 5)
    until(lambda: any(writes(path) for path in arenas_of(job, leavers[0].name)), job.log_text)
    for leaver in leavers:
        leaver.signal(signal.SIGTERM)
    assert job.codes(*leavers) == [143] * len(leavers)
    (remaining,) = started(job, 1)
    step, bits = stopped(job, first)
    assert (remaining["step"], remaining["bits"], remaining["source"]) == (step, bits, "memory"), job.log_text()
    assert one.log.read_text().count("shard_taken") == len(leavers), "all of them came to it"
    until(lambda: committed(job, step), job.log_text)
    saved(job, remaining["round"], step + 3)
    until(lambda: len(arenas_of(job, one.name)) == 1, job.log_text)  # what it kept for others is of no use any more
    joined = job.start("w4", **options)
    grown = started(job, 2, remaining["round"])
    step, bits = stopped(job, remaining["round"])
    assert {(each["step"], each["source"]) for each in grown} == {(step, "memory")}
    assert grown[0]["bits"] == bits
    assert "step_fetched" in joined.log.read_text()
    job.finish()
    assert job.codes(one, joined) == [0, 0]
    assert arenas(job) == sorted(path for leaver in leavers for path in arenas_of(job, leaver.name))


@pytest.mark.contract("DL-60")
@pytest.mark.long
def test_a_worker_of_fsdp_is_lost_for_good(crew, tmp_path):
    """The guide's loop with replica_count=2: nobody takes its place, and the one that is left has all in its memory."""
    quick = (*QUICK[:4], "--last-call-s", "1")
    job = crew("1:2", "--round-dir", str(tmp_path / "rounds"), script=FLASH, quick=quick)
    options = {"arguments": ("fsdp", "100000", "0"), "env": ENV | {"REPLICA_COUNT": "2"}}
    agents = [job.start("w0", **options)]
    agents[0].until("coordinator_begun")
    agents.append(job.start("w1", **options))
    until(lambda: len(steps := replica_files(job)) == 2 and min(steps.values()) >= 5, job.log_text, IMPORTS_S)
    before = len(starts(job))  # one more where the first began alone, while the second was still importing
    lose(job, agents[1])
    step = until(lambda: (found := starts(job)[before:]) and found[0], job.log_text)["step"]
    assert step >= 5
    assert "memory_passed_over" not in agents[0].log.read_text()
    until(lambda: committed_in(job, step), job.log_text)
    job.finish()
    assert job.codes(agents[0]) == [0]


def committed_in(job, step):
    """True if the step is whole, in the folder that this class gives it."""
    try:
        return verify(open_store(str(job.folder / "checkpoints" / str(step))), step).world == 2
    except (BadCheckpoint, StorageFailed):
        return False
