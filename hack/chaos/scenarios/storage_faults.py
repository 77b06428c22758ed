"""Faults of storage, each of which strikes for as long as a block lasts.

They need mounts of this process's own, and change what it may open: they are for a program that ends afterwards.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hack.chaos.testbed.faulty_filesystem import FaultyFilesystem

SLOW_MIB_S = 1.0
_DISK_BYTES = 1 << 20
_MOST_CALLS = 30  # of a save that pass before it fails: its manifest comes later


class StorageFault:
    """One fault of storage. on_device: on the FUSE file system. fails: a save in it cannot end well."""

    def __init__(
        self,
        strike: Callable[[FaultyFilesystem, Path, random.Random], Iterator[Callable[[], int]]],
        on_device: bool = False,
        fails: bool = True,
    ) -> None:
        self.strike, self.on_device, self.fails = contextmanager(strike), on_device, fails


def _full(device: FaultyFilesystem, at: Path, dice: random.Random) -> Iterator[Callable[[], int]]:
    ballast, chunk, refused = at / "ballast", 1 << 16, 0
    with ballast.open("wb", buffering=0) as file:
        while chunk:
            try:
                file.write(bytes(chunk))
            except OSError as error:
                refused += error.errno == errno.ENOSPC
                chunk //= 2
    yield lambda: refused
    ballast.unlink()


def _read_only(device: FaultyFilesystem, at: Path, dice: random.Random) -> Iterator[Callable[[], int]]:
    subprocess.run(("mount", "-o", "remount,ro", at), check=True, timeout=20)
    read_only = int(bool(os.statvfs(at).f_flag & os.ST_RDONLY))
    yield lambda: read_only
    subprocess.run(("mount", "-o", "remount,rw", at), check=True, timeout=20)


def _gone(device: FaultyFilesystem, at: Path, dice: random.Random) -> Iterator[Callable[[], int]]:
    """Unmount it under the writer: what is left is an empty folder that nobody may write to."""
    away = at.parent / "away"
    away.mkdir(exist_ok=True)
    subprocess.run(("mount", "--move", at, away), check=True, timeout=20)
    at.rmdir()
    yield lambda: 1
    at.mkdir()
    subprocess.run(("mount", "--move", away, at), check=True, timeout=20)


def _no_files(device: FaultyFilesystem, at: Path, dice: random.Random) -> Iterator[Callable[[], int]]:
    """Leave this process so few file descriptors that one of a save's is refused with EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + dice.randint(0, 1), hard))
    taken, refused = list[int](), 0
    with suppress(OSError):
        while True:
            try:
                taken.append(os.dup(0))
            except OSError as error:
                refused += error.errno == errno.EMFILE
                raise
    for file in taken[: dice.randint(0, 1)]:
        os.close(file)
        taken.remove(file)
    yield lambda: refused
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for file in taken:
        os.close(file)


def _fails_with(number: int) -> StorageFault:
    def strike(device: FaultyFilesystem, at: Path, dice: random.Random) -> Iterator[Callable[[], int]]:
        hits = list[int]()
        device.fail(number, dice.randint(0, _MOST_CALLS))
        yield lambda: sum(hits)
        hits.append(device.heal())

    return StorageFault(strike, on_device=True)


def _slow(device: FaultyFilesystem, at: Path, dice: random.Random) -> Iterator[Callable[[], int]]:
    hits = list[int]()
    device.slow(SLOW_MIB_S)
    yield lambda: sum(hits)
    hits.append(device.heal())


FAULTS: Mapping[str, StorageFault] = {
    "full": StorageFault(_full),
    "read-only": StorageFault(_read_only),
    "gone": StorageFault(_gone),
    "EMFILE": StorageFault(_no_files),
    "EIO": _fails_with(errno.EIO),
    "ESTALE": _fails_with(errno.ESTALE),
    "slow": StorageFault(_slow, on_device=True, fails=False),
}


@contextmanager
def small_disk(at: Path) -> Iterator[Path]:
    at.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "chaos", at), check=True, timeout=20)
    try:
        yield at
    finally:
        subprocess.run(("umount", "-l", at), check=True, timeout=20)
