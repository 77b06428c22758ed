"""The ends of saves reach the agent: each once, in its tier, from each daemon that it starts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.kit.wait import until_async
from tests.launcher.checkpoint.daemon.test_daemon import record
from tests.launcher.checkpoint.daemon.test_persist import save as save_for_storage
from tests.launcher.checkpoint.daemon.test_restarts import Worker
from turnout.launcher.checkpoint.daemon.persist import CommitCoordinator, SaveJob, SaveState
from turnout.launcher.checkpoint.daemon.save_reports import SaveReportReader, SaveReports, ends_of
from turnout.launcher.checkpoint.format.daemon_messages import Bye, Save, SaveEnded, encode
from turnout.launcher.framing import frame
from turnout.launcher.model import SaveOutcome, SaveTier

DONE, SUPERSEDED, FAILED = SaveOutcome.DONE, SaveOutcome.SUPERSEDED, SaveOutcome.FAILED
SHARDS, TORCH = Save(0, 1, 7, "/checkpoints"), Save(0, 1, 7, "/checkpoints", kind="torch", path="/checkpoints/7.pt")


@pytest.mark.parametrize(
    ("state", "rank", "target", "ends"),
    [
        pytest.param(SaveState.PINNED, 0, SHARDS, [], id="a save on its way has not ended"),
        pytest.param(SaveState.HASHED, 0, SHARDS, [("memory", DONE, True)], id="a hashed save is in memory"),
        pytest.param(
            SaveState.SKIPPED, 0, None, [("memory", SUPERSEDED, False)], id="a newer save was hashed in its place"
        ),
        pytest.param(
            SaveState.PERSISTED, 1, SHARDS, [("storage", DONE, False)], id="a shard alone is no complete save"
        ),
        pytest.param(SaveState.PERSISTED, 0, SHARDS, [], id="the save of rank 0 ends with the commit"),
        pytest.param(SaveState.PERSISTED, 0, TORCH, [("storage", DONE, True)], id="a torch file needs no commit"),
        pytest.param(SaveState.SUPERSEDED, 0, SHARDS, [("storage", SUPERSEDED, False)], id="others took its memory"),
        pytest.param(SaveState.FAILED, 0, SHARDS, [("storage", FAILED, False)], id="storage refused it"),
        pytest.param(SaveState.CORRUPT, 0, None, [("memory", FAILED, False)], id="its memory changed"),
        pytest.param(
            SaveState.CORRUPT,
            0,
            SHARDS,
            [("memory", FAILED, False), ("storage", FAILED, False)],
            id="what changed in memory is not stored",
        ),
    ],
)
def test_what_a_state_ends(state, rank, target, ends):
    job = SaveJob(7, 0, record(7, rank, 3), target, state, announced_s=50.0)
    found = list(ends_of(job))
    assert [(each.tier.value, each.outcome, each.complete) for each in found] == ends
    assert {(each.step, each.rank, each.round, each.announced_s) for each in found} <= {(7, rank, 3, 50.0)}


class Pipe:
    """A pipe whose write end reports saves. lines: what the daemon logged."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.lines = []
        self.reports = SaveReports(self.write_end, lambda what, fields: self.lines.append((what, dict(fields))))

    def close(self):
        for each in (self.read_end, self.write_end):
            os.close(each)


@pytest.fixture
def pipe():
    new_pipe = Pipe()
    yield new_pipe
    new_pipe.close()


def end(step, **more):
    return SaveEnded(step, 1, 0, SaveTier.STORAGE, more.get("outcome", DONE))


def test_an_end_is_written_once(pipe):
    for each in (end(1), end(1), end(1, outcome=FAILED), end(2), end(1)):
        pipe.reports.write(each)
    assert os.read(pipe.read_end, 1 << 16) == b"".join(map(encode, (end(1), end(1, outcome=FAILED), end(2))))


def test_an_agent_that_does_not_read_delays_nothing_and_it_is_logged(pipe):
    step = 0
    while not pipe.lines:
        step += 1
        pipe.reports.write(end(step))
    assert pipe.lines == [("save_unreported", {"step": step, "why": "the agent does not read"})]


def test_a_daemon_whose_agent_is_gone_reports_to_nobody():
    read_end, write_end = os.pipe()
    os.close(read_end)
    lines = []
    reports = SaveReports(write_end, lambda what, fields: lines.append(what))
    reports.write(end(1))
    os.close(write_end)
    reports.write(end(2))
    assert not lines


def test_a_daemon_without_an_agent_reports_nothing():
    SaveReports(None, lambda what, fields: None).write(end(1))


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        pytest.param(encode(end(1)) + encode(end(2)), ["save_ended", "save_ended"], id="two reports in one piece"),
        pytest.param(encode(Bye()), ["frame_refused"], id="a message of another direction"),
        pytest.param(frame(b"\xc1"), ["frame_refused"], id="no message"),
        pytest.param(b"\xff\xff\xff\xff", ["frame_refused"], id="a report of four gigabytes"),
    ],
)
def test_what_the_agent_reads(sent, words):
    lines = []
    reader = SaveReportReader(lambda what, fields: lines.append(what))
    reader.data_received(sent)
    assert lines == words


class Saver(Worker):
    """A worker whose process saves to storage, as rank 1 of 2, so that no commit is awaited."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.storage = folder / "stored"

    def save(self, arena, step):
        generation, sealed = save_for_storage(arena, step, rank=1)
        self.trainer.link.announce_save(Save(generation, sealed.epoch, step, str(self.storage)))

    def ends(self):
        """List step, tier and outcome of each end that the agent has logged."""
        reports = [fields for what, fields in self.said if what == "save_ended"]
        return [(each["step"], each["tier"].value, each["outcome"].value) for each in reports]

    async def ended(self, *end):
        await until_async(lambda: end in self.ends())


@pytest.mark.asyncio
async def test_the_agent_hears_how_saves_end_also_of_the_next_daemon(tmp_path):
    worker = Saver(tmp_path)
    await worker.daemon.listen()
    try:
        arena = await worker.connect()
        await asyncio.to_thread(worker.save, arena, 3)
        await worker.ended(3, "storage", "done")
        assert worker.ends() == [(3, "memory", "done"), (3, "storage", "done")]
        (memory, storage) = (fields for what, fields in worker.said if what == "save_ended")
        assert (memory["complete"], storage["complete"]) == (True, False)
        assert 0 < storage["announced_s"] <= storage["ended_s"]
        await worker.kill()
        worker.storage.rename(tmp_path / "elsewhere")
        worker.storage.write_text("a file in place of the folder")
        await asyncio.to_thread(worker.save, arena, 4)
        await worker.ended(4, "storage", "failed")
    finally:
        await worker.close()


@pytest.mark.asyncio
async def test_what_ends_while_the_daemon_ends_is_heard(tmp_path):
    worker = Saver(tmp_path)
    await worker.daemon.listen()
    arena = await worker.connect()
    await asyncio.to_thread(worker.save, arena, 3)
    await asyncio.to_thread(worker.trainer.link.wait_pinned)
    await worker.close()
    assert (3, "storage", "done") in worker.ends()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("happens", "outcome"),
    [
        pytest.param(lambda commits: commits.give_up(3), SUPERSEDED, id="the job goes on from another step"),
        pytest.param(lambda commits: commits.give_up_after(6), SUPERSEDED, id="the job goes on from an older step"),
        pytest.param(lambda commits: commits.end_within(0.0), FAILED, id="the other shard does not come in time"),
    ],
)
async def test_a_commit_without_all_shards_ends(tmp_path, happens, outcome):
    commits = CommitCoordinator("job", lambda what, fields: None)
    committing = asyncio.create_task(commits.commit(record(7, 0, 3), Save(0, 1, 7, str(tmp_path))))
    await until_async(lambda: len(commits))
    happens(commits)
    assert await committing is outcome
    assert len(commits) == 0


@pytest.mark.asyncio
async def test_a_commit_of_a_round_that_was_given_up_before_is_superseded(tmp_path):
    commits = CommitCoordinator("job", lambda what, fields: None)
    commits.give_up(3)
    assert await commits.commit(record(7, 0, 3), Save(0, 1, 7, str(tmp_path))) is SUPERSEDED
