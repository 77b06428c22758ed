"""Names the files of a step, and defines what folders and object stores have in common.

    <target>/step-0000000010/rank-00003.safetensors    one rank's shard; written once, never replaced
    <target>/step-0000000010/rank-00003.json           its note: the shard is complete, with these checksums
    <target>/step-0000000010/manifest.json             all shards of one world; this file alone commits the step
    <target>/step-0000000010/.rank-00003.….tmp         an unfinished file, in folders only; an object appears whole

If a shard's name exists, the shard gets another name, which is in its note. So saving a step again after a rollback
changes no committed file.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from turnout.launcher.errors import StorageFailed

MANIFEST = "manifest.json"
MAX_STEP = 1 << 60
_STEP = re.compile(r"step-(\d{10,19})")
_RANK = re.compile(r"rank-(\d{5,10})(\.[0-9a-f]+)?\.(safetensors|json)")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A stored file. modified_s: seconds since 1970 by the storage's clock, None if unknown."""

    size_bytes: int
    modified_s: float | None = None


class OpenFile(Protocol):
    """A stored file open for reading. size_bytes: of the whole file. at_once_bytes: the best size of one read."""

    size_bytes: int
    at_once_bytes: int

    def fill(self, view: memoryview, offset: int) -> None:
        """Read exactly as many bytes as `view` has, from `offset` on. Raises BadCheckpoint if there are fewer.

        Other failures raise an error of the storage, which leaves the block of `Store.open_file` as StorageFailed.
        """

    def forget(self, offset: int, size_bytes: int) -> None:
        """Drop these bytes from caches, since they are not needed again."""


class Store(Protocol):
    """A place for steps. All calls block, and raise StorageFailed if storage fails."""

    name: str

    def prepare(self) -> None:
        """Create the place if it is missing."""

    def steps(self) -> tuple[int, ...]:
        """List the steps that have any file, oldest first."""

    def files(self, step: int) -> Mapping[str, FileInfo]:
        """List the finished files of a step. Empty if the step does not exist."""

    def put(self, step: int, name: str, pieces: Iterable[memoryview], *, round_number: int, replace: bool) -> str:
        """Write a file so that it appears complete and synced, or not at all; return its name.

        round_number: the writer's round, for `sweep`. replace: True to replace a file of this name; False to replace no
        file: then the file may get a longer name, so use the returned name. If `pieces` raises, there is no file.
        """

    def read(self, step: int, name: str, max_bytes: int) -> bytes | None:
        """Read a small file, None if it does not exist. Raises BadCheckpoint if the name is no regular file, or the
        file has more than `max_bytes`.
        """

    def open_file(self, step: int, name: str) -> AbstractContextManager[OpenFile]:
        """Open a large file. Raises BadCheckpoint if it does not exist or cannot be a file of ours."""

    def remove(self, step: int, names: Iterable[str]) -> None:
        """Remove files in this order; missing files are ignored. The first removal is synced before the others.

        A step without any other file is removed too.
        """

    def sweep(self, step: int, now_s: float, older_than_s: float, ranks: Mapping[int, int]) -> tuple[str, ...]:
        """Remove unfinished files of killed writers; return their names.

        now_s: seconds since 1970, by the storage's clock. older_than_s: younger files stay, unless another boot or
        round of a rank in `ranks` wrote them. ranks: ranks that only the caller writes, with their current round.
        """


def step_name(step: int) -> str:
    """Return the folder name of a step. Raises StorageFailed for a step outside 0 to MAX_STEP."""
    if not 0 <= step <= MAX_STEP:
        raise StorageFailed(f"step {step} cannot be stored: 0 to {MAX_STEP} can")
    return f"step-{step:010}"


def step_of(name: str) -> int | None:
    """Return the step of a folder name, or None if it is not one of ours."""
    match = _STEP.fullmatch(name)
    step = int(match[1]) if match else -1
    return step if match and step <= MAX_STEP and step_name(step) == name else None


def shard_name(rank: int, mark: str = "") -> str:
    """Return the name of a rank's shard. mark: hexadecimal, distinguishes shards of one rank and step; "" for none."""
    return f"rank-{rank:05}{'.' if mark else ''}{mark}.safetensors"


def note_name(rank: int) -> str:
    """Return the name of the note beside a rank's shard."""
    return f"rank-{rank:05}.json"


def rank_of(name: str) -> int | None:
    """Return the rank of a shard or a note, or None for other names."""
    match = _RANK.fullmatch(name)
    return int(match[1]) if match else None


def is_shard(name: str) -> bool:
    """Return True if a file name is that of a shard."""
    return rank_of(name) is not None and name.endswith(".safetensors")


_FAULTS = {
    errno.ENOSPC: "no space is left: make room, or name another target",
    errno.EDQUOT: "the quota is used up: make room, or name another target",
    errno.EFBIG: "the file is larger than this storage takes: name another target",
    errno.EROFS: "it is mounted read-only: mount it writable, or name another target",
    errno.EIO: "the device failed: look at the kernel's log, name another target",
    errno.ESTALE: "the server has forgotten this folder: mount it afresh",
    errno.ENOENT: "the folder is gone: mount it, or make it again",
    errno.ENOTDIR: "something on the way is no folder: name another target",
    errno.ELOOP: "a symbolic link is where a folder of ours should be: remove it",
    errno.EACCES: "not allowed: give it to the user of the workers",
    errno.EPERM: "not allowed: give it to the user of the workers",
    errno.ENOTCONN: "the server is gone: mount it afresh",
    errno.ETIMEDOUT: "the server does not answer",
}


def storage_failure(name: str, doing: str, error: OSError) -> StorageFailed:
    """Return an error that names the store, the action (`doing`), the cause and a remedy."""
    number = error.errno or 0
    why = _FAULTS.get(number, error.strerror or str(error))
    return StorageFailed(f"{name}: {doing}: {why} ({errno.errorcode.get(number, type(error).__name__)})")
