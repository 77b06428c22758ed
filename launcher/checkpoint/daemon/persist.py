"""Writes snapshots in memory to storage: as shards that a manifest commits, or as files that torch.load reads.

`run` is the whole pipeline of one save. The save is pinned when `run` begins: its generation is not overwritten until
`run` unpins it. rank_store.py knows the arena. Replication is independent of this pipeline: the replicator receives
each step before `run` begins.
The daemon of rank 0 commits a step once the shards of all other ranks are in storage. Waiting takes no thread; storage
is read in a thread, one step at a time. storage/garbage_collection.py knows what is removed after a commit.
"""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.daemon.rank_store import RankStore, SupersededSave
from turnout.launcher.checkpoint.format.arena_layout import ShardRecord
from turnout.launcher.checkpoint.format.daemon_messages import Save
from turnout.launcher.checkpoint.format.manifest import (
    MAX_BYTES,
    Manifest,
    ShardNote,
    complete_manifest,
    read_note,
    retention_rule,
    write,
)
from turnout.launcher.checkpoint.storage.garbage_collection import remove_old_steps, sweep
from turnout.launcher.checkpoint.storage.posix_store import open_store
from turnout.launcher.checkpoint.storage.shard_writer import RateLimit, RateLimiter, ShardWrite, persist
from turnout.launcher.checkpoint.storage.step_reader import manifest_of
from turnout.launcher.checkpoint.storage.store import MANIFEST, FileInfo, Store, note_name, rank_of, step_name
from turnout.launcher.errors import BadCheckpoint, LauncherError, NewerFormat, StorageFailed
from turnout.launcher.event_log import EventLog
from turnout.launcher.model import SaveOutcome

TORCH_S = 3_600.0  # seconds for torch to write its file

_MAX_ERROR_CHARACTERS = 400  # of torch's error in a message


class Persister:
    """Writes the generations of one daemon to storage.

    run: the job's id. bytes_per_s: the limit of all writes together, 0 for none.
    """

    def __init__(self, run: str, bytes_per_s: float = 0.0) -> None:
        self._run, self._rate_limit = run, RateLimit(bytes_per_s)

    def __call__(self, arena: Arena, generation: int, record: ShardRecord, target: Save) -> str:
        """Write a pinned and hashed generation to its target; return the path in storage. Blocks.

        The path is "FOLDER/step-.../FILE", or that of the torch file. Raises StorageFailed if storage fails or a later
        round has saved this shard, and BadCheckpoint if the bytes in memory do not match their checksums; for a torch
        file this is a StorageFailed, too.
        """
        if target.kind == "torch":
            return _write_torch_file(arena, generation, record, target)
        store = open_store(target.target)
        store.prepare()
        saving = ShardWrite(self._run, record.step, record.round, record.rank, record.world, record.head_bytes)
        region = arena.map(generation, record.shard_bytes)
        note = persist(store, saving, region, arena.sums(generation), time.time(), RateLimiter(self._rate_limit))
        return f"{target.target.rstrip('/')}/{step_name(record.step)}/{note.shard.file}"

    def persist_if_missing(self, arena: Arena, generation: int, record: ShardRecord, target: Save) -> bool:
        """Write a generation's shard to its target, unless storage has it from this run and round. Return True if it
        was written.

        target: of shards. An unreadable note is replaced. Blocks. Raises StorageFailed if storage fails or a later
        round has saved this shard, and BadCheckpoint if the bytes in memory do not match their checksums. record: of
        the generation.
        """
        store = open_store(target.target)
        store.prepare()
        with suppress(BadCheckpoint):  # replace a note that cannot be read
            text = store.read(record.step, note_name(record.rank), MAX_BYTES)
            if text is not None and (note := read_note(text)).run == self._run and note.round == record.round:
                return False
        self(arena, generation, record, target)
        return True


def _write_torch_file(arena: Arena, generation: int, record: ShardRecord, target: Save) -> str:
    """Write the generation as a torch file in a child process, so that the daemon never imports torch; return the
    file's path.

    target: names the file, its folder, and which older files to keep. Raises StorageFailed, also after TORCH_S. arena,
    record: the arena, and the record of the generation.
    """
    path = target.path
    command = [
        sys.executable,
        "-m",
        "turnout.launcher.checkpoint.engine.torch_file",
        str(arena.path),
        str(generation),
        str(record.epoch),
        path,
        target.target,
        str(target.keep),
        str(target.every),
    ]
    try:
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TORCH_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StorageFailed(f"{path}: {error}") from error
    if process.returncode:
        last = process.stderr.strip().rpartition("\n")[2] or f"exit {process.returncode}"
        raise StorageFailed(f"{path}: {last[:_MAX_ERROR_CHARACTERS]}")
    return path


class SaveState(StrEnum):
    """The state of a save, or how it ended."""

    PINNED = "pinned"  # its generation is not overwritten
    HASHED = "hashed"  # its checksums are in the arena
    PERSISTED = "persisted"  # this rank's shard is in storage
    COMMITTED = "committed"  # the manifest of its step is in storage
    CORRUPT = "corrupt"  # its bytes changed after it was sealed
    SKIPPED = "skipped"  # it has no target in storage, and a newer save came before it was hashed
    SUPERSEDED = "superseded"  # newer saves needed its memory before it was written
    FAILED = "failed"  # storage failed


@dataclass(frozen=True, slots=True)
class SaveJob:
    """One save of one rank in the pipeline from memory to storage."""

    step: int
    slot: int  # the generation of the arena that holds it
    record: ShardRecord
    target: Save | None  # where it is written in storage; None if it stays in memory
    state: SaveState = SaveState.PINNED
    detail: str = ""  # its path in storage, or the error that ended it; "" for none
    announced_s: float = 0.0  # when the training process announced it, in seconds since 1970; 0 if none did

    def in_state(self, state: SaveState, detail: str = "") -> SaveJob:
        """Return this save in another state."""
        return replace(self, state=state, detail=detail)


async def run(
    job: SaveJob,
    store: RankStore,
    *,
    hashes: bool,
    commit: Callable[[SaveJob], Awaitable[bool]],
    report: Callable[[SaveJob], None],
) -> None:
    """Hash a pinned save, write it to its target, unpin it, and commit its step if it is rank 0's.

    store: of the rank that saved it. hashes: False if its checksums are known or not needed. commit: commits the step;
    returns True if it did. report: called with the save in each state that it reaches. A LauncherError of the write is
    reported as FAILED or DROPPED, not raised.
    """
    try:
        if hashes:
            if not await store.hash(job.slot):
                report(job.in_state(SaveState.CORRUPT, "its memory is not what was hashed"))
                return
            report(job.in_state(SaveState.HASHED))
        if job.target is None:
            if not hashes:
                report(job.in_state(SaveState.SKIPPED))
            return
        path = await store.write(job.slot, job.record, job.target)
        report(job.in_state(SaveState.PERSISTED, path))
    except SupersededSave as error:
        report(job.in_state(SaveState.SUPERSEDED, str(error)))
        return
    except LauncherError as error:
        report(job.in_state(SaveState.FAILED, str(error)))
        return
    finally:
        if store.arena is not None:
            store.arena.unpin(job.slot)  # it may be overwritten now
    if job.target.kind == "shards" and job.record.rank == 0 and await commit(job):
        report(job.in_state(SaveState.COMMITTED))


FIRST_PAUSE_S, MAX_PAUSE_S = 0.05, 1.0  # seconds between two checks for the shards of other ranks

POLLS_UNTIL_REREAD = 8  # polls after which notes are read afresh


def pauses() -> Iterator[float]:
    """Yield the pauses between checks of storage in seconds, without end: FIRST_PAUSE_S, doubled up to MAX_PAUSE_S."""
    pause_s = FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


class Commit:
    """Commits one step of one round. Only the daemon of rank 0 does this."""

    def __init__(self, store: Store, run: str, step: int, round: int, world: int, log_event: EventLog) -> None:
        self._store, self._run, self._step, self._round, self._world = store, run, step, round, world
        self._log_event = log_event
        self._notes: dict[int, ShardNote] = {}
        self._other_notes: dict[str, FileInfo] = {}  # notes of other saves, until they change
        self._logged: set[str] = set()
        self._polls = 0

    def try_commit(self) -> Manifest | None:
        """Write the manifest if all shards of the step are in storage, and return it; None if some are missing.

        If a later round of the run has committed this step, that manifest stays and is returned. Raises StorageFailed
        if storage fails, or if the step has a manifest of a newer format. It may be called again.
        """
        if (
            self._polls % POLLS_UNTIL_REREAD == 0
        ):  # a note rewritten within one tick of the storage's clock looks unchanged
            self._other_notes.clear()
        self._polls += 1
        files = self._store.files(self._step)
        for name, about in files.items():
            rank = rank_of(name)
            if rank is None or name != note_name(rank) or rank >= self._world or rank in self._notes:
                continue
            if self._other_notes.get(name) != about or about.modified_s is None:
                self._read_note(name, rank, about)
        manifest = complete_manifest(self._complete_notes(files), self._step, self._round, self._world)
        return self._write(manifest) if manifest else None

    def missing_ranks(self) -> tuple[int, ...]:
        """List the ranks without a valid note of this save at the last try, at most 16, for the log."""
        absent = (rank for rank in range(self._world) if rank not in self._notes)
        return tuple(rank for rank, _ in zip(absent, range(16), strict=False))

    def _read_note(self, name: str, rank: int, about: FileInfo) -> None:
        """Read the note that a rank has written about its shard, and remember it if it belongs to this step's commit.

        It must be of the same run, step, round and world. An unreadable note is logged. name, about: name, size and
        time of the note's file.
        """
        self._other_notes[name] = about
        try:
            text = self._store.read(self._step, name, MAX_BYTES)
            note = read_note(text) if text is not None else None
        except BadCheckpoint as error:
            self._log_once(rank, str(error))
            return
        expected = (self._run, self._step, self._round, self._world, rank)
        if note and (note.run, note.step, note.round, note.world, note.shard.rank) == expected:
            self._notes[rank] = note

    def _complete_notes(self, files: Mapping[str, FileInfo]) -> tuple[ShardNote, ...]:
        """Return the notes whose shard file has the right size. The other notes are dropped and read again later.

        files: all files of the step, by name.
        """
        for rank, note in sorted(self._notes.items()):
            about = files.get(note.shard.file)
            if about is None or about.size_bytes != note.shard.bytes:
                why = f"{note.shard.file} is not there with its {note.shard.bytes} bytes"
                self._log_once(rank, why)
                del self._notes[rank]
        return tuple(self._notes.values())

    def _log_once(self, rank: int, why: str) -> None:
        """Log that a rank's note was ignored; nothing if the same reason `why` was logged before."""
        if why not in self._logged:
            self._logged.add(why)
            self._log_event("note_passed_over", {"step": self._step, "rank": rank, "why": why})

    def _write(self, manifest: Manifest) -> Manifest:
        """Write the manifest, which commits the step, and return it.

        If a later round of this run has committed the step, its manifest stays and is returned. Raises StorageFailed
        if storage fails, or if the step has a manifest of a newer format, which stays.
        """
        try:
            before = manifest_of(self._store, self._step)
        except NewerFormat as error:
            raise StorageFailed(f"the existing manifest is kept: {error}") from error
        except BadCheckpoint:
            before = None
        if before and before.run == manifest.run and before.round > manifest.round:
            return before
        text = memoryview(write(manifest))
        self._store.put(self._step, MANIFEST, [text], round_number=self._round, replace=True)
        return manifest


COMMIT_S = 1_800.0  # seconds to wait for the notes of all other ranks

SWEEP_S = 600.0  # seconds between two sweeps of a folder: each lists all of its steps

MAX_FINISHED = 16  # finished commits to remember: each save is reported by its process and by the agent


class CommitCoordinator:
    """Commits the steps of one daemon, several at a time. run: the job's id."""

    def __init__(self, run: str, log_event: EventLog) -> None:
        self._run, self._log_event = run, log_event
        self._commits: dict[tuple[str, int, int], asyncio.Task[SaveOutcome]] = {}
        self._in_flight: dict[asyncio.Event, int] = {}  # steps by the event that gives them up
        self._storage_lock = asyncio.Lock()  # hanging storage blocks one thread, not all
        self._swept_s: dict[str, float] = {}
        self._sweeps: set[asyncio.Task[None]] = set()
        self._last_given_up_round, self._until_s = -1, math.inf

    def __len__(self) -> int:
        """Return the number of commits in flight."""
        return len(self._in_flight)

    async def commit(self, record: ShardRecord, save: Save) -> SaveOutcome:
        """Wait for the other ranks' shards, write the manifest and remove old checkpoints.

        record: of rank 0's shard. save: the message with the target and the retention. A second call for the same
        folder, step and round returns the outcome of the first, if that is still remembered. Returns DONE, SUPERSEDED
        if the job continued from another step first, or FAILED if it was not done within COMMIT_S or by the time of
        `end_within`, or if the store could not be opened.
        """
        key = (save.target, record.step, record.round)
        if key not in self._commits:
            for finished in [finished for finished, task in self._commits.items() if task.done()][:-MAX_FINISHED]:
                del self._commits[finished]
            self._commits[key] = asyncio.get_running_loop().create_task(self._commit(record, save))
        return await asyncio.shield(self._commits[key])

    async def _commit(self, record: ShardRecord, save: Save) -> SaveOutcome:
        """Try to commit one step again and again, with pauses, until it is committed or is given up.

        Returns DONE; SUPERSEDED if the commit was given up, also before it began; FAILED if it is not done after
        COMMIT_S or after the time of `end_within`, or if the storage cannot be opened. A failure of storage is logged,
        not raised. record, save: as of `commit`.
        """
        if record.round <= self._last_given_up_round:
            return SaveOutcome.SUPERSEDED
        given_up, until_s = asyncio.Event(), time.monotonic() + COMMIT_S
        self._in_flight[given_up] = record.step
        try:
            store = await asyncio.to_thread(open_store, save.target)
            commit = Commit(store, self._run, record.step, record.round, record.world, self._log_event)
            for pause_s in pauses():
                if await self._try_commit(commit, store, record, save):
                    self._sweep(store)
                    return SaveOutcome.DONE
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await given_up.wait()
                if given_up.is_set() or time.monotonic() > min(until_s, self._until_s):
                    break
            self._log_event("checkpoint_incomplete", {"step": record.step, "missing": list(commit.missing_ranks())})
        except StorageFailed as error:
            self._log_event("commit_failed", {"step": record.step, "detail": str(error)})
        finally:
            del self._in_flight[given_up]
        return SaveOutcome.SUPERSEDED if given_up.is_set() else SaveOutcome.FAILED

    async def _try_commit(self, commit: Commit, store: Store, record: ShardRecord, save: Save) -> bool:
        """Check storage once for all shards; if they are there, commit the step and remove old steps.

        Returns True if the step is committed; False if shards are missing or storage failed, which is logged. record,
        save: as of `commit`.
        """

        def commit_once() -> bool:
            """Return True if the step is committed now, False if shards are missing. Raises StorageFailed.

            After the commit, remove the old steps that the retention rule does not keep; if that fails, log it.
            """
            if commit.try_commit() is None:
                return False
            self._log_event("checkpoint_committed", {"step": record.step, "store": store.name})
            if save.keep or save.every:
                try:
                    remove_old_steps(
                        store, retention_rule(save.keep, save.every), self._log_event, just_committed=record.step
                    )
                except StorageFailed as error:
                    self._log_event("step_not_swept", {"step": record.step, "store": store.name, "why": str(error)})
            return True

        try:
            async with self._storage_lock:
                return await asyncio.to_thread(commit_once)
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
            """Sweep the folder in a thread. Errors are ignored."""
            with suppress(StorageFailed):  # the next commit reports it
                async with self._storage_lock:
                    await asyncio.to_thread(sweep, store, time.time(), self._log_event)

        task = asyncio.get_running_loop().create_task(work())
        self._sweeps.add(task)
        task.add_done_callback(self._sweeps.discard)

    def give_up_after(self, step: int) -> None:
        """Give up the commits in flight of steps newer than `step`: the world continues from `step`."""
        for given_up, commit_step in self._in_flight.items():
            if commit_step > step:
                given_up.set()

    def give_up(self, last_round: int) -> None:
        """Give up all commits in flight, and later ones of `last_round` and of earlier rounds."""
        self._last_given_up_round = max(self._last_given_up_round, last_round)
        self.give_up_after(-1)

    def end_within(self, seconds: float) -> None:
        """Give up every commit that is not complete after so many seconds, as FAILED."""
        self._until_s = time.monotonic() + seconds
