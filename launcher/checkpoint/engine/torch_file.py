"""Knows checkpoints that are one torch file each: it lists, loads, writes and removes them.

Each path has a note in `.turnout/files` of the checkpoint folder, with steps, sizes and checksums. The note is written
before the file is renamed to its path, and also names the file that was there before. So the file at the path is always
complete and named by the note. Notes are JSON. A file is loaded only if its checksum is right and
`torch.load(weights_only=True)` accepts it. DLRover's own files, `<folder>/<step>/rank_0.pt`, have no note. They are
ordered after files with a note.
The daemon exports a generation of an arena in a process of its own:
`python -m turnout.launcher.checkpoint.engine.torch_file ARENA GENERATION EPOCH FILE FOLDER KEEP EVERY`. The caller has
pinned the generation. KEEP and EVERY say which files of FOLDER stay.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import torch
import xxhash

from turnout.launcher.checkpoint.format.manifest import Keep, retention_rule, steps_to_remove
from turnout.launcher.checkpoint.format.shard_file import sums_of
from turnout.launcher.errors import BadCheckpoint, LauncherError, StorageFailed

LogEvent = Callable[[str, Mapping[str, object]], None]

_NOTES = Path(".turnout") / "files"

_MAX_NOTE_BYTES = 64 << 10
_READ_BYTES = 4 << 20  # read at once for a checksum
_RANK_FILE = "rank_0.pt"  # DLRover's name of the file in a step's folder


class Version(msgspec.Struct, frozen=True):
    """One version of a torch checkpoint file, as its note describes it."""

    number: int  # of the write into this folder, from 1
    step: int
    bytes: int  # size of the file
    sum: str  # checksum of the file's content, xxh3 in hex


class TorchFileNote(msgspec.Struct, frozen=True):
    """A note about one path: the versions of the torch file that is there, or that is about to be renamed to it."""

    path: str  # relative to the folder if inside it
    versions: tuple[Version, ...]  # newest first


_note = msgspec.json.Decoder(TorchFileNote)


@dataclass(frozen=True, slots=True)
class TorchFile:
    """A torch checkpoint file that exists, with the content of its note."""

    number: int  # of its write, 0 without a note
    step: int
    path: Path
    versions: tuple[Version, ...] = ()  # that may lie at the path, newest first; () without a note


def default_path(folder: Path, step: int) -> Path:
    """Return DLRover's path for the file of a step, which is the default."""
    return folder / str(step) / _RANK_FILE


def list_files(folder: Path) -> tuple[TorchFile, ...]:
    """List all checkpoint files of a folder that exist: the last written first, then those without a note, the newest
    step first. () if the folder is missing.
    """
    files = [
        TorchFile(note.versions[0].number, note.versions[0].step, folder / note.path, note.versions)
        for _, note in _read_notes(folder)
        if note.versions and (folder / note.path).is_file()
    ]
    paths_with_note = {each.path for each in files}
    with suppress(OSError):
        for each in folder.iterdir():
            path = each / _RANK_FILE
            if each.name.isascii() and each.name.isdecimal() and path not in paths_with_note and path.is_file():
                files.append(TorchFile(0, int(each.name), path))
    return tuple(sorted(files, key=lambda each: (-each.number, -each.step)))


def load_newest(folder: Path, log_event: LogEvent) -> tuple[TorchFile, object] | None:
    """Load the newest intact file of a folder, in the order of `list_files`. Returns the file and its state.

    None if there is no file. A newer file that cannot be loaded is logged. Raises BadCheckpoint if files exist but none
    can be loaded.
    """
    why = ""
    for each in list_files(folder):
        try:
            return each, load(each.path, each.versions)
        except (BadCheckpoint, StorageFailed) as error:
            why = why or str(error)
            log_event("checkpoint_passed_over", {"step": each.step, "why": str(error)})
    if why:
        raise BadCheckpoint(f"none of the checkpoints in {folder} can be loaded: {why}")
    return None


def load(path: Path, versions: tuple[Version, ...] = ()) -> object:
    """Load the state in a torch file, to the CPU. versions: its size and checksum must match one of them; () for no
    check.

    Raises BadCheckpoint if it differs from all versions or torch refuses it, and StorageFailed if it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            if versions and _size_and_sum(file) not in [(each.bytes, each.sum) for each in versions]:
                raise BadCheckpoint(f"{path} is not what was written")
            file.seek(0)
            with torch.serialization.safe_globals(_NUMPY):
                return torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror or error}") from error
    except BadCheckpoint:
        raise
    except Exception as error:  # damaged, or not a torch file: torch raises various errors for both
        first = str(error).strip().partition("\n")[0]
        raise BadCheckpoint(f"{path}: {first or type(error).__name__}") from error


def write_file(folder: Path, path: Path, step: int, write: Callable[[BinaryIO], None]) -> Version:
    """Write a file under a temporary name, sync it, write its note and rename it to `path`; return its version.

    The note also keeps the version that the path had before, in case the rename is lost. folder: of the checkpoints,
    where the notes are. step: of the content. write: writes the content into a new file. Raises OSError if storage
    fails, and the errors of `write`; the file at `path` is then the one before, or the new one if only the last sync
    failed.
    """
    with _open_replacement(path) as file:
        write(file)
        file.seek(0)
        size, total = _size_and_sum(file)
        notes = tuple(_read_notes(folder))
        number = 1 + max((each.number for _, note in notes for each in note.versions), default=0)
        version = Version(number, step, size, total)
        # Relative, so that the folder can be moved.
        relative = str(path.relative_to(folder) if path.is_relative_to(folder) else path)
        before = next((note.versions[:1] for _, note in notes if note.path == relative and path.is_file()), ())
        _write_note(folder, TorchFileNote(relative, (version, *before)))
    return version


@contextmanager
def _open_replacement(path: Path) -> Iterator[BinaryIO]:
    """Yield a new private file beside `path`. At the end of the block it is synced and renamed to `path`; after an
    error it is removed. A missing folder is created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(aside, "x+b", opener=_open_private) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.rename(aside, path)
    finally:
        with suppress(OSError):
            aside.unlink()
    _sync_folder(path.parent)


def remove_old_files(folder: Path, keep: Keep, just_written: int) -> tuple[int, ...]:
    """Remove the files in this folder that the rule `keep` does not keep; return their steps, oldest first.

    Files without a note and files outside `folder` stay. just_written: the step of the newest file, which always stays.
    Notes of missing files are removed too. Raises OSError if storage fails; then some files may be removed.
    """
    root = folder.resolve()
    files = [each for each in list_files(folder) if each.number and each.path.resolve().is_relative_to(root)]
    removed = steps_to_remove([each.step for each in files], keep, just_committed=just_written)
    for each in files:
        if each.step in removed:
            each.path.unlink(missing_ok=True)
            with suppress(OSError):  # the folder has other contents
                if each.path.parent != folder:
                    each.path.parent.rmdir()
    for file, note in _read_notes(folder):  # notes of files that were removed, here or by the user
        if not (folder / note.path).is_file():
            file.unlink(missing_ok=True)
    return removed


def _read_notes(folder: Path) -> Iterator[tuple[Path, TorchFileNote]]:
    """Yield (path of the note's own file, note) for each valid note of a checkpoint folder, by file name.

    Notes that cannot be read are skipped.
    """
    for file in sorted((folder / _NOTES).glob("*.json")):
        with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            with open(file, "rb") as source:
                note = _note.decode(source.read(_MAX_NOTE_BYTES))
            yield file, note


def _write_note(folder: Path, note: TorchFileNote) -> None:
    """Write the note of one path, in place of an older one. Raises OSError if storage fails."""
    with _open_replacement(folder / _NOTES / f"{hashlib.sha256(note.path.encode()).hexdigest()[:32]}.json") as target:
        target.write(msgspec.json.encode(note))


def _open_private(path: str, flags: int) -> int:
    """Open a file that only this user can read, and do not follow a symbolic link. An opener for open()."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _size_and_sum(file: BinaryIO) -> tuple[int, str]:
    """Return the size in bytes and the checksum of a file from its current position on."""
    total, size = xxhash.xxh3_64(), 0
    while piece := file.read(_READ_BYTES):
        total.update(piece)
        size += len(piece)
    return size, total.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that new names in it survive a crash."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _numpy() -> list[object]:
    """List the functions and types that torch needs to rebuild numpy numbers and arrays. They only interpret bytes."""
    scalar, array = np.float64(0).__reduce__()[0], np.zeros(1).__reduce__()[0]
    kinds = {type(np.dtype(kind)) for kind in "?bhilqBHILQefdFD"}
    return [scalar, array, np.ndarray, np.dtype, *sorted(kinds, key=lambda kind: kind.__name__)]


_NUMPY = _numpy()


def main(argv: Sequence[str]) -> int:
    """Write a generation as a torch file, and remove old files. Returns 0, or 1 with a line on stderr if it fails.

    argv: as in the docstring of this module.
    """
    arena, generation, epoch, file, folder, keep, every = argv
    try:
        step = write(Path(arena), int(generation), int(epoch), Path(file), Path(folder))
        apply_retention(Path(folder), int(keep), int(every), step)
    except (LauncherError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def write(path: Path, generation: int, epoch: int, file: Path, folder: Path) -> int:
    """Verify a pinned generation of an arena and write its state as a torch file; return the step.

    path: of the arena. epoch: expected in that generation. file, folder: of the torch file, and of the checkpoints.
    Raises BadCheckpoint if the arena is invalid or the generation has another epoch, no checksums or other bytes than
    they say, and OSError if the file cannot be written.
    """
    import torch

    from turnout.launcher.checkpoint.arena.arena import Arena
    from turnout.launcher.checkpoint.engine.save_plan import state_of

    arena = Arena.open(path)
    record = arena.slots()[generation].record
    if record is None or record.epoch != epoch:
        raise BadCheckpoint(f"generation {generation} of {path} is another one by now")
    region = arena.map(generation, record.head_bytes + record.data_bytes)
    if tuple(sums_of(region)) != arena.sums(generation):
        raise BadCheckpoint(f"step {record.step} in memory is not what was hashed")
    state = _copy_to_own_storage(state_of(region), {})
    write_file(folder, file, record.step, lambda target: torch.save(state, target))
    return record.step


def apply_retention(folder: Path, keep: int, every: int, just_written: int) -> None:
    """Remove the checkpoint files that the retention rule does not keep. Failures of storage are ignored.

    keep, every: the `keep` newest stay, and multiples of `every`; 0 for no such rule, all stay if both are 0.
    just_written: the step of the newest file, which always stays. Files without a note stay, too.
    """
    with suppress(OSError):
        remove_old_files(folder, retention_rule(keep, every), just_written)


def _copy_to_own_storage(value: object, copies: dict[int, object]) -> object:
    """Return a value with every tensor copied into storage of its own.

    The tensors are views of one storage, and torch.save would write the whole storage for each view. copies: copies by
    the id of the tensor, so that shared tensors stay shared; this function adds to it.
    """
    import torch

    if isinstance(value, torch.Tensor):
        if id(value) not in copies:
            copies[id(value)] = value.clone()
        return copies[id(value)]
    if isinstance(value, dict):
        return type(value)((key, _copy_to_own_storage(each, copies)) for key, each in value.items())
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(_copy_to_own_storage(each, copies) for each in value)
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
