"""Commits steps to storage on behalf of rank 0, once the shards of all other ranks are there.

Waiting takes no thread; storage is read in a thread, one step at a time. How a step is committed is known in
storage/commit.py, and what is removed afterwards in storage/garbage_collection.py.
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress

from turnout.launcher.checkpoint.format.arena_layout import Record
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.checkpoint.format.retention import rule
from turnout.launcher.checkpoint.storage.commit import Commit, pauses
from turnout.launcher.checkpoint.storage.garbage_collection import retire, sweep
from turnout.launcher.checkpoint.storage.open_store import open_store
from turnout.launcher.checkpoint.storage.store import Store
from turnout.launcher.errors import StorageFailed
from turnout.launcher.event_log import EventLog

COMMIT_S = 1_800.0  # seconds to wait for the notes of all other ranks
SWEEP_S = 600.0  # seconds between two sweeps of a folder: each lists all of its steps
MOST_KNOWN = 16  # finished commits to remember: each save is reported by its process and by the agent


class CommitCoordinator:
    """Commits the steps of one daemon. run: the job's id."""

    def __init__(self, run: str, say: EventLog) -> None:
        self._run, self._say = run, say
        self._known: dict[tuple[str, int, int], asyncio.Task[bool]] = {}
        self._in_flight: dict[asyncio.Event, int] = {}  # steps by the event that gives them up
        self._one = asyncio.Lock()  # hanging storage blocks one thread, not all
        self._swept_s: dict[str, float] = {}
        self._sweeps: set[asyncio.Task[None]] = set()
        self._over, self._until_s = -1, math.inf

    def __len__(self) -> int:
        """Return the number of commits in flight."""
        return len(self._in_flight)

    async def commit(self, record: Record, told: Save) -> bool:
        """Wait for the other ranks' shards, write the manifest and remove old checkpoints. Runs once for each save.

        Returns False if the step is not committed and will not be.
        """
        key = (told.target, record.step, record.round)
        if key not in self._known:
            for known in [known for known, task in self._known.items() if task.done()][:-MOST_KNOWN]:
                del self._known[known]
            self._known[key] = asyncio.get_running_loop().create_task(self._commit(record, told))
        return await asyncio.shield(self._known[key])

    async def _commit(self, record: Record, told: Save) -> bool:
        if record.round <= self._over:
            return False
        given_up, until_s = asyncio.Event(), time.monotonic() + COMMIT_S
        self._in_flight[given_up] = record.step
        try:
            store = await asyncio.to_thread(open_store, told.target)
            commit = Commit(store, self._run, record.step, record.round, record.world, self._say)
            for pause_s in pauses():
                if await self._is_whole(commit, store, record, told):
                    self._sweep(store)
                    return True
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await given_up.wait()
                if given_up.is_set() or time.monotonic() > min(until_s, self._until_s):
                    break
            self._say("checkpoint_incomplete", {"step": record.step, "missing": list(commit.missing())})
        except StorageFailed as error:
            self._say("commit_failed", {"step": record.step, "detail": str(error)})
        finally:
            del self._in_flight[given_up]
        return False

    async def _is_whole(self, commit: Commit, store: Store, record: Record, told: Save) -> bool:
        """Check storage once for all shards; if they are there, commit the step and remove old ones. True if it is
        committed.

        Files that cannot be removed now are removed after a later commit.
        """

        def look() -> bool:
            if commit.look() is None:
                return False
            self._say("checkpoint_committed", {"step": record.step, "store": store.name})
            try:
                retire(store, rule(told.keep, told.every), self._say, just=record.step)
            except StorageFailed as error:
                self._say("step_not_swept", {"step": record.step, "store": store.name, "why": str(error)})
            return True

        try:
            async with self._one:
                return await asyncio.to_thread(look)
        except StorageFailed as error:
            self._say("commit_failed", {"step": record.step, "detail": str(error)})
            return False

    def _sweep(self, store: Store) -> None:
        """Remove files left by killed writers, in the background, at most once per SWEEP_S for each folder."""
        now_s = time.monotonic()
        if now_s < self._swept_s.get(store.name, -math.inf) + SWEEP_S or self._until_s < math.inf:
            return
        self._swept_s[store.name] = now_s

        async def work() -> None:
            with suppress(StorageFailed):  # the next commit reports it
                async with self._one:
                    await asyncio.to_thread(sweep, store, time.time(), self._say)

        task = asyncio.get_running_loop().create_task(work())
        self._sweeps.add(task)
        task.add_done_callback(self._sweeps.discard)

    def give_up_after(self, step: int) -> None:
        """Give up commits of steps newer than `step`: some rank never sealed them, or lost them."""
        for given_up, waiting in self._in_flight.items():
            if waiting > step:
                given_up.set()

    def give_up(self, last_round: int) -> None:
        """Give up all commits of this round and earlier ones. The world continues from another step."""
        self._over = max(self._over, last_round)
        self.give_up_after(-1)

    def end_within(self, seconds: float) -> None:
        """Give up every commit that is not complete after this time."""
        self._until_s = time.monotonic() + seconds
