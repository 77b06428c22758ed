"""Removes files from storage: steps that no retention rule keeps, and leftovers of killed or superseded writers.

checkpoint/format/manifest.py decides which steps stay. The manifest of a step is removed first, so a step of which only
a part is removed is not committed any more.
"""

from __future__ import annotations

from collections.abc import Mapping

from turnout.launcher.checkpoint.format.manifest import MAX_BYTES, All, Keep, Manifest, StoredShard, steps_to_remove
from turnout.launcher.checkpoint.storage.step_reader import committed_manifests, manifest_of, note_of
from turnout.launcher.checkpoint.storage.store import MANIFEST, Store, is_shard, note_name, rank_of
from turnout.launcher.errors import BadCheckpoint, NewerFormat, StorageFailed
from turnout.launcher.event_log import EventLog

OLD_S = 3_600.0  # seconds without a write after which an unfinished file is abandoned


def remove_old_steps(
    store: Store,
    keep: Keep,
    log_event: EventLog,
    reading: frozenset[int] = frozenset(),
    just_committed: int | None = None,
) -> tuple[int, ...]:
    """Remove the steps that the rule `keep` does not keep; return them, oldest first.

    The newest step, the steps in `reading` (which are being read) and `just_committed` always stay; None for no such
    step. Steps that are not committed, broken, or of a newer format are neither counted nor removed. log_event: gets an
    event for each removed step. Raises StorageFailed if storage fails; then some steps may be removed.
    """
    if isinstance(keep, All):
        return ()
    manifests = {
        manifest.step: manifest
        for manifest in committed_manifests(store, lambda word, fields: None, skip_newer_formats=True)
    }
    removed = steps_to_remove(manifests, keep, reading, just_committed)
    for step in removed:
        store.remove(step, _files_of(store, manifests[step]))
        log_event("checkpoint_removed", {"step": step, "store": store.name})
    return removed


def _files_of(store: Store, manifest: Manifest) -> list[str]:
    """List the files of a committed step, the manifest first. Notes that another round has written for a new save are
    omitted.
    """
    shards = [shard.file for shard in manifest.shards]
    notes = [note_name(shard.rank) for shard in manifest.shards if not _is_for_new_save(store, manifest.step, shard)]
    return [MANIFEST, *notes, *shards]


def _is_for_new_save(store: Store, step: int, shard: StoredShard) -> bool:
    """Return True if the note of this shard's rank names another shard, or is of a newer format."""
    try:
        note = note_of(store, step, shard.rank)
    except NewerFormat:
        return True
    return note is not None and note.shard.file != shard.file


def sweep(
    store: Store, now_s: float, log_event: EventLog, older_than_s: float = OLD_S, ranks: Mapping[int, int] | None = None
) -> tuple[str, ...]:
    """Remove leftovers: unfinished files, shards that a manifest does not name, and uncommitted steps older than a
    committed one.

    now_s: seconds since 1970, by the storage's clock. older_than_s: files written more recently stay, since their
    writer may live. ranks: ranks that only the caller writes, each with its current round; their unfinished files of
    another boot or round are removed at any age. None for none. Returns the names of the removed files, without their
    step. A step that cannot be swept is logged. Raises StorageFailed if the steps cannot be listed.
    """
    removed, newer_is_whole = [], False
    for step in reversed(store.steps()):
        try:
            newer_is_whole = newer_is_whole or _is_committed(store, step)
            swept = [
                *store.sweep(step, now_s, older_than_s, ranks or {}),
                *_remove_leftovers(store, step, now_s - older_than_s, newer_is_whole),
            ]
        except StorageFailed as error:
            log_event("step_not_swept", {"step": step, "store": store.name, "why": str(error)})
            continue
        for name in swept:
            log_event("leftover_removed", {"step": step, "file": name, "store": store.name})
        removed += swept
    return tuple(removed)


def _remove_leftovers(store: Store, step: int, before_s: float, newer_is_whole: bool) -> list[str]:
    """Remove files of a step that no restore can need, if written before `before_s`; return their names.

    Of a step with a manifest these are the shards that neither it nor a newer note names; none if the manifest is
    invalid. Of a step without one these are all shards and notes, if all of them are that old and `newer_is_whole`.
    before_s: since 1970; a file without a time counts as newer. newer_is_whole: this or a newer step is committed.
    """
    files = store.files(step)
    own_files = [name for name in files if rank_of(name) is not None]
    old = [name for name in own_files if (files[name].modified_s or before_s) < before_s]
    if MANIFEST in files:
        superseded = _files_outside_manifest(store, step, old)
    else:  # never committed, or its removal was interrupted
        superseded = old if newer_is_whole and len(old) == len(own_files) and _has_no_manifest(store, step) else []
    superseded.sort(key=lambda name: (is_shard(name), name))  # notes before shards, so that no note outlives its shard
    if superseded:
        store.remove(step, superseded)
    return superseded


def _files_outside_manifest(store: Store, step: int, names: list[str]) -> list[str]:
    """Return those of the named files that are shards which neither the manifest nor a note of another run or a later
    round names, sorted; [] if the manifest is invalid.
    """
    shards = sorted(name for name in names if is_shard(name))
    try:
        manifest = manifest_of(store, step) if shards else None
    except BadCheckpoint:  # keep all of them: a person may want them
        manifest = None
    if manifest is None:
        return []
    named = {shard.file for shard in manifest.shards}
    return [name for name in shards if name not in named and not _is_newer(store, step, name, manifest)]


def _is_newer(store: Store, step: int, name: str, manifest: Manifest) -> bool:
    """Return True if a note of another run or a later round names this shard, or may do so in a newer format."""
    try:
        note = note_of(store, step, rank_of(name) or 0)
    except NewerFormat:
        return True
    return note is not None and note.shard.file == name and (note.run != manifest.run or note.round > manifest.round)


def _has_no_manifest(store: Store, step: int) -> bool:
    """Return True if a step has no manifest at all. An unreadable one counts as a manifest."""
    try:
        return store.read(step, MANIFEST, MAX_BYTES) is None
    except BadCheckpoint:  # a person has put something else there
        return False


def _is_committed(store: Store, step: int) -> bool:
    """Return True if a step has a valid manifest of a known format. Raises StorageFailed if storage fails."""
    try:
        manifest_of(store, step)
    except BadCheckpoint:
        return False
    return True
