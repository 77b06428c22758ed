"""Commits steps to storage on behalf of rank 0, once the shards of all other ranks are there.

Waiting takes no thread; storage is read in a thread, one step at a time. How a step is committed is known in
storage/commit.py, and what is removed afterwards in storage/garbage_collection.py.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress

from turnout.launcher.checkpoint.format.arena_layout import ShardRecord
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.checkpoint.format.retention import rule
from turnout.launcher.checkpoint.storage.commit import Commit, pauses
from turnout.launcher.checkpoint.storage.garbage_collection import remove_old_steps, sweep
from turnout.launcher.checkpoint.storage.open_store import open_store
from turnout.launcher.checkpoint.storage.store import Store
from turnout.launcher.errors import StorageFailed
from turnout.launcher.event_log import EventLog

COMMIT_S = 1_800.0  # seconds to wait for the notes of all other ranks
SWEEP_S = 600.0  # seconds between two sweeps of a folder: each lists all of its steps
MAX_FINISHED = 16  # finished commits to remember: each save is reported by its process and by the agent


class CommitCoordinator:
    """Commits the steps of one daemon. run: the job's id."""

    def __init__(self, run: str, log_event: EventLog) -> None:
        self._run, self._log_event = run, log_event
        self._commits: dict[tuple[str, int, int], asyncio.Task[bool]] = {}
        self._in_flight: dict[asyncio.Event, int] = {}  # steps by the event that gives them up
        self._storage_lock = asyncio.Lock()  # hanging storage blocks one thread, not all
        self._swept_s: dict[str, float] = {}
        self._sweeps: set[asyncio.Task[None]] = set()
        self._last_given_up_round, self._until_s = -1, math.inf

    def __len__(self) -> int:
        """Return the number of commits in flight."""
        return len(self._in_flight)

    async def commit(self, record: ShardRecord, save: Save) -> bool:
        """Wait for the other ranks' shards, write the manifest and remove old checkpoints. Runs once for each save.

        Returns False if the step is not committed and will not be.
        """
        key = (save.target, record.step, record.round)
        if key not in self._commits:
            for known in [known for known, task in self._commits.items() if task.done()][:-MAX_FINISHED]:
                del self._commits[known]
            self._commits[key] = asyncio.get_running_loop().create_task(self._commit(record, save))
        return await asyncio.shield(self._commits[key])

    async def _commit(self, record: ShardRecord, save: Save) -> bool:
        if record.round <= self._last_given_up_round:
            return False
        given_up, until_s = asyncio.Event(), time.monotonic() + COMMIT_S
        self._in_flight[given_up] = record.step
        try:
            store = await asyncio.to_thread(open_store, save.target)
            commit = Commit(store, self._run, record.step, record.round, record.world, self._log_event)
            for pause_s in pauses():
                if await self._try_commit(commit, store, record, save):
                    self._sweep(store)
                    return True
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await given_up.wait()
                if given_up.is_set() or time.monotonic() > min(until_s, self._until_s):
                    break
            self._log_event("checkpoint_incomplete", {"step": record.step, "missing": list(commit.missing())})
        except StorageFailed as error:
            self._log_event("commit_failed", {"step": record.step, "detail": str(error)})
        finally:
            del self._in_flight[given_up]
        return False

    async def _try_commit(self, commit: Commit, store: Store, record: ShardRecord, save: Save) -> bool:
        """Check storage once for all shards; if they are there, commit the step and remove old ones. True if it is
        committed.

        Files that cannot be removed now are removed after a later commit.
        """

        def look() -> bool:
            if commit.try_commit() is None:
                return False
            self._log_event("checkpoint_committed", {"step": record.step, "store": store.name})
            try:
                remove_old_steps(store, rule(save.keep, save.every), self._log_event, just_committed=record.step)
            except StorageFailed as error:
                self._log_event("step_not_swept", {"step": record.step, "store": store.name, "why": str(error)})
            return True

        try:
            async with self._storage_lock:
                return await asyncio.to_thread(look)
        except StorageFailed as error:
            self._log_event("commit_failed", {"step": record.step, "detail": str(error)})
            return False

    def _sweep(self, store: Store) -> None:
        """Remove files left by killed writers, in the background, at most once per SWEEP_S for each folder."""
        now_s = time.monotonic()
        if now_s < self._swept_s.get(store.name, -math.inf) + SWEEP_S or self._until_s < math.inf:
            return
        self._swept_s[store.name] = now_s

        async def work() -> None:
            with suppress(StorageFailed):  # the next commit reports it
                async with self._storage_lock:
                    await asyncio.to_thread(sweep, store, time.time(), self._log_event)

        task = asyncio.get_running_loop().create_task(work())
        self._sweeps.add(task)
        task.add_done_callback(self._sweeps.discard)

    def give_up_after(self, step: int) -> None:
        """Give up commits of steps newer than `step`: some rank never sealed them, or lost them."""
        for given_up, commit_step in self._in_flight.items():
            if commit_step > step:
                given_up.set()

    def give_up(self, last_round: int) -> None:
        """Give up all commits of this round and earlier ones. The world continues from another step."""
        self._last_given_up_round = max(self._last_given_up_round, last_round)
        self.give_up_after(-1)

    def end_within(self, seconds: float) -> None:
        """Give up every commit that is not complete after this time."""
        self._until_s = time.monotonic() + seconds
