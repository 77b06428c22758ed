"""Commits a step: once the notes of all ranks in a round are there, it writes the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from turnout.launcher.checkpoint.format.manifest import MOST_BYTES, Manifest, ShardNote, complete, read_note, write
from turnout.launcher.checkpoint.storage.reader import manifest_of
from turnout.launcher.checkpoint.storage.store import MANIFEST, FileInfo, Store, note_name, rank_of
from turnout.launcher.errors import BadCheckpoint, NewerFormat, StorageFailed
from turnout.launcher.event_log import EventLog

SOONEST_S, LATEST_S = 0.05, 1.0
POLLS_UNTIL_REREAD = 8  # polls after which notes are read afresh


def pauses() -> Iterator[float]:
    """Give the pauses between looks at storage, in seconds: SOONEST_S first, doubled up to LATEST_S."""
    pause_s = SOONEST_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, LATEST_S)


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
        """Commit the step if all its shards are there; None if they are not there yet. Raises StorageFailed; call it
        again then.

        If a later round of the run has committed this step, that manifest stays and is returned.
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
        manifest = complete(self._complete_notes(files), self._step, self._round, self._world)
        return self._write(manifest) if manifest else None

    def missing(self) -> tuple[int, ...]:
        """List the ranks without a note, at most 16, for the log."""
        absent = (rank for rank in range(self._world) if rank not in self._notes)
        return tuple(rank for rank, _ in zip(absent, range(16), strict=False))

    def _read_note(self, name: str, rank: int, about: FileInfo) -> None:
        self._other_notes[name] = about
        try:
            text = self._store.read(self._step, name, MOST_BYTES)
            note = read_note(text) if text is not None else None
        except BadCheckpoint as error:
            self._log_once(rank, str(error))
            return
        ours = (self._run, self._step, self._round, self._world, rank)
        if note and (note.run, note.step, note.round, note.world, note.shard.rank) == ours:
            self._notes[rank] = note

    def _complete_notes(self, files: Mapping[str, FileInfo]) -> tuple[ShardNote, ...]:
        """Return the notes whose shards are complete. If a shard is not, its note is dropped, and another one is waited
        for.
        """
        for rank, note in sorted(self._notes.items()):
            about = files.get(note.shard.file)
            if about is None or about.size_bytes != note.shard.bytes:
                why = f"{note.shard.file} is not there with its {note.shard.bytes} bytes"
                self._log_once(rank, why)
                del self._notes[rank]
        return tuple(self._notes.values())

    def _log_once(self, rank: int, why: str) -> None:
        if why not in self._logged:
            self._logged.add(why)
            self._log_event("note_passed_over", {"step": self._step, "rank": rank, "why": why})

    def _write(self, manifest: Manifest) -> Manifest:
        try:
            before = manifest_of(self._store, self._step)
        except NewerFormat as error:
            raise StorageFailed(f"it is kept: {error}") from error
        except BadCheckpoint:
            before = None
        if before and before.run == manifest.run and before.round > manifest.round:
            return before
        text = memoryview(write(manifest))
        self._store.put(self._step, MANIFEST, [text], round_number=self._round, replace=True)
        return manifest
