"""Checkpoints that are one torch file each, wherever a user wanted them: which there are, which is newest, and reading.

Beside them, in `.turnout/files` of the checkpoint folder, lies one note for each path: steps, sizes and sums. A note
is written before its file is renamed into place, and names the file before as well: at every moment the file at the
path is one of those that its note names, whole. Notes are JSON; of a file only what `torch.load(weights_only=True)`
takes is loaded, and only after its sum was right.

Files of DLRover's own, `<folder>/<step>/rank_0.pt`, have no note: they come after all that have one.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
import torch
import xxhash

from turnout.launcher.checkpoint.retention import Keep, doomed
from turnout.launcher.errors import BadCheckpoint, StorageFailed

Say = Callable[[str, Mapping[str, object]], None]

_NOTES = Path(".turnout") / "files"
_MOST_NOTE_BYTES = 64 << 10
_READ_BYTES = 4 << 20
_ONE = "rank_0.pt"


class Version(msgspec.Struct, frozen=True):
    """One file that was written. number: counts all writes into this folder from 1 on; sum: xxh3 of it, in hex."""

    number: int
    step: int
    bytes: int
    sum: str


class Note(msgspec.Struct, frozen=True):
    """What lies, or will lie, at a path. path: relative to the folder where it is in it. versions: newest first."""

    path: str
    versions: tuple[Version, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """One file that should be there. number: 0 where it has no note."""

    number: int
    step: int
    path: Path
    versions: tuple[Version, ...] = ()


def default_path(folder: Path, step: int) -> Path:
    """Where a step goes that was given no path."""
    return folder / str(step) / _ONE


def kept(folder: Path) -> tuple[Kept, ...]:
    """Every file that is there, the last that was written first, those without a note last."""
    found = [
        Kept(note.versions[0].number, note.versions[0].step, folder / note.path, note.versions)
        for _, note in _notes(folder)
        if note.versions and (folder / note.path).is_file()
    ]
    noted = {each.path for each in found}
    with suppress(OSError):
        for each in folder.iterdir():
            path = each / _ONE
            if each.name.isascii() and each.name.isdecimal() and path not in noted and path.is_file():
                found.append(Kept(0, int(each.name), path))
    return tuple(sorted(found, key=lambda each: (-each.number, -each.step)))


def newest(folder: Path, say: Say) -> tuple[Kept, object] | None:
    """The newest file that is whole, loaded; each that is not is told. None where there is none at all.

    Raises BadCheckpoint where there are files and none of them can be loaded.
    """
    why = ""
    for each in kept(folder):
        try:
            return each, load(each.path, each.versions)
        except (BadCheckpoint, StorageFailed) as error:
            why = why or str(error)
            say("checkpoint_passed_over", {"step": each.step, "why": str(error)})
    if why:
        raise BadCheckpoint(f"none of the checkpoints in {folder} can be loaded: {why}")
    return None


def load(path: Path, versions: tuple[Version, ...] = ()) -> object:
    """What is in this file. versions: those of which it has to be one. Raises BadCheckpoint and StorageFailed."""
    try:
        with open(path, "rb") as file:
            if versions and _version(file) not in [(each.bytes, each.sum) for each in versions]:
                raise BadCheckpoint(f"{path} is not what was written")
            file.seek(0)
            with torch.serialization.safe_globals(_NUMPY):
                return torch.load(file, map_location="cpu", weights_only=True)
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror or error}") from error
    except BadCheckpoint:
        raise
    except Exception as error:  # a file that is broken, or holds what is not taken: torch has no class for either
        first = str(error).strip().partition("\n")[0]
        raise BadCheckpoint(f"{path}: {first or type(error).__name__}") from error


def put(folder: Path, path: Path, step: int, write: Callable[[BinaryIO], None]) -> Version:
    """Write a file aside, sync it, note it, rename it into place. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(aside, "x+b", opener=_opener) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            size, total = _version(file)
        notes = tuple(_notes(folder))
        number = 1 + max((each.number for _, note in notes for each in note.versions), default=0)
        made = Version(number, step, size, total)
        relative = _relative(folder, path)
        before = next((note.versions[:1] for _, note in notes if note.path == relative and path.is_file()), ())
        _write_note(folder, Note(relative, (made, *before)))
        os.rename(aside, path)
    finally:
        with suppress(OSError):
            aside.unlink()
    _sync(path.parent)
    return made


def retire(folder: Path, keep: Keep, just: int) -> tuple[int, ...]:
    """Remove the files in this folder that are not to be kept, of those with a note. Gives their steps, oldest first.

    just: the step that was written right now. It is the newest, and stays.
    """
    within = folder.resolve()
    noted = [each for each in kept(folder) if each.number and each.path.resolve().is_relative_to(within)]
    gone = doomed([each.step for each in noted], keep, just=just)
    for each in noted:
        if each.step in gone:
            each.path.unlink(missing_ok=True)
            with suppress(OSError):  # something else is in it
                if each.path.parent != folder:
                    each.path.parent.rmdir()
    for file, note in _notes(folder):  # of what was removed here, or by its user
        if not (folder / note.path).is_file():
            file.unlink(missing_ok=True)
    return gone


def _notes(folder: Path) -> Iterator[tuple[Path, Note]]:
    """Those that can be read: a file without one is not lost, but comes last."""
    for file in sorted((folder / _NOTES).glob("*.json")):
        with suppress(OSError, msgspec.MsgspecError):
            with open(file, "rb") as source:
                note = msgspec.json.decode(source.read(_MOST_NOTE_BYTES), type=Note)
            yield file, note


def _write_note(folder: Path, note: Note) -> None:
    notes = folder / _NOTES
    notes.mkdir(parents=True, exist_ok=True)
    file = notes / f"{hashlib.sha256(note.path.encode()).hexdigest()[:32]}.json"
    aside = file.with_suffix(f".{secrets.token_hex(8)}.tmp")
    try:
        with open(aside, "xb", opener=_opener) as target:
            target.write(msgspec.json.encode(note))
            target.flush()
            os.fsync(target.fileno())
        os.rename(aside, file)
    finally:
        with suppress(OSError):
            aside.unlink()
    _sync(notes)


def _relative(folder: Path, path: Path) -> str:
    """So that the folder may be moved."""
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _version(file: BinaryIO) -> tuple[int, str]:
    """Bytes and sum of what is left of a file."""
    total, size = xxhash.xxh3_64(), 0
    while piece := file.read(_READ_BYTES):
        total.update(piece)
        size += len(piece)
    return size, total.hexdigest()


def _sync(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _numpy() -> list[object]:
    """What numpy's numbers and arrays are made of again: no more than their bytes."""
    scalar, again = np.float64(0).__reduce__()[0], np.zeros(1).__reduce__()[0]
    kinds = {type(np.dtype(kind)) for kind in "?bhilqBHILQefdFD"}
    return [scalar, again, np.ndarray, np.dtype, *sorted(kinds, key=lambda kind: kind.__name__)]


_NUMPY = _numpy()
