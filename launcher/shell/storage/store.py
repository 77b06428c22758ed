"""Where steps are kept: the names of their files, and what a folder and an object store have in common.

<target>/step-0000000010/rank-00003.safetensors    one rank's shard; written once, never replaced
<target>/step-0000000010/rank-00003.json           its note: the shard is there, whole, with these sums
<target>/step-0000000010/manifest.json             all shards of one world: the step is committed by this file alone
<target>/step-0000000010/.rank-00003.….tmp         a file in the making, in a folder; an object appears whole

A shard whose name is taken gets another one, which its note tells: so saving a step again, after a rollback, touches
nothing that is committed.
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
MOST_STEP = 1 << 60
_STEP = re.compile(r"step-(\d{10,19})")
_RANK = re.compile(r"rank-(\d{5,10})(\.[0-9a-f]+)?\.(safetensors|json)")


@dataclass(frozen=True, slots=True)
class About:
    """A file that is there. modified_s: since the epoch by the storage's clock, None when it does not tell."""

    size_bytes: int
    modified_s: float | None = None


class Opened(Protocol):
    """A file that is being read. at_once_bytes: how much is best asked for in one call, where more is wanted."""

    size_bytes: int
    at_once_bytes: int

    def fill(self, view: memoryview, offset: int) -> None:
        """Read exactly this many bytes. Raises BadCheckpoint when there are fewer, StorageFailed."""

    def forget(self, offset: int, size_bytes: int) -> None:
        """These bytes are not needed again: they need not be cached."""


class Store(Protocol):
    """All calls block, and raise StorageFailed when storage does not do its part."""

    name: str

    def prepare(self) -> None:
        """Make the place itself, if it is missing."""

    def steps(self) -> tuple[int, ...]:
        """Of which anything is there, oldest first."""

    def files(self, step: int) -> Mapping[str, About]:
        """What a step has, without files in the making; nothing for a step that is not there."""

    def put(self, step: int, name: str, pieces: Iterable[memoryview], *, round_number: int, replace: bool) -> str:
        """Write a file that appears whole, on disk, or not at all. Gives its name: not the one that was asked for
        when that was taken and is not to be replaced. What the pieces raise, this raises, and there is no file."""

    def read(self, step: int, name: str, most_bytes: int) -> bytes | None:
        """A small file, None when it is not there. Raises BadCheckpoint for what cannot be ours."""

    def opened(self, step: int, name: str) -> AbstractContextManager[Opened]:
        """A large one. Raises BadCheckpoint when it is not there or cannot be ours."""

    def remove(self, step: int, names: Iterable[str]) -> None:
        """Remove files in this order, the first for good before the others, and the step itself when it is empty."""

    def sweep(self, step: int, now_s: float, older_than_s: float, ranks: Mapping[int, int]) -> tuple[str, ...]:
        """Remove what killed writers left in the making. ranks: those that only the caller writes, and their round."""


def step_name(step: int) -> str:
    """The folder of a step, 0 to 1 << 60."""
    if not 0 <= step <= MOST_STEP:
        raise StorageFailed(f"step {step} cannot be stored: 0 to {MOST_STEP} can")
    return f"step-{step:010}"


def step_of(name: str) -> int | None:
    """The step of a folder, None for a name that is none of ours."""
    found = _STEP.fullmatch(name)
    step = int(found[1]) if found else -1
    return step if found and step <= MOST_STEP and step_name(step) == name else None


def shard_name(rank: int, mark: str = "") -> str:
    """mark: hexadecimal, for another one of the same rank and step."""
    return f"rank-{rank:05}{'.' if mark else ''}{mark}.safetensors"


def note_name(rank: int) -> str:
    return f"rank-{rank:05}.json"


def rank_of(name: str) -> int | None:
    """The rank of a shard or a note, None for other names."""
    found = _RANK.fullmatch(name)
    return int(found[1]) if found else None


def is_shard(name: str) -> bool:
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


def failed(name: str, doing: str, error: OSError) -> StorageFailed:
    """What happened, to whom, and what helps."""
    number = error.errno or 0
    why = _FAULTS.get(number, error.strerror or str(error))
    return StorageFailed(f"{name}: {doing}: {why} ({errno.errorcode.get(number, type(error).__name__)})")
