"""Measures how much memory is left for checkpoints now. The decision is made in checkpoint/format/memory_budget.py."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from turnout.launcher.checkpoint.format.memory_budget import Limits

_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self")
_MACHINE = Path("/proc/meminfo")
_NO_LIMIT = 1 << 60  # cgroup v1 expresses "no limit" by numbers of this size
_MAY_LOCK_ALL = 1 << 14  # CAP_IPC_LOCK
_KIB = 1 << 10
_IN_MEMORY = {"tmpfs", "ramfs", "hugetlbfs"}

# Files with limit and use, and the line of memory.stat with what the kernel can reclaim.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def limits(folder: str | Path, groups: Path = _GROUPS, own: Path = _OWN, machine: Path = _MACHINE) -> Limits:
    """Read the limits of the folder's file system, of every cgroup above this process, and of locked memory.

    If no cgroup has a limit and the file system is in memory, the machine's available memory is a limit too. Beyond it
    the kernel would kill processes.
    """
    system = os.statvfs(folder)
    left, most = min(_groups(groups, own), default=(None, None))
    return Limits(
        free_bytes=system.f_bavail * system.f_frsize,
        cgroup_left_bytes=left,
        locked_bytes=_lockable(own),
        size_bytes=system.f_blocks * system.f_frsize,
        cgroup_bytes=most,
        available_bytes=_available(machine) if left is None and _is_memory(folder, own) else None,
    )


def _available(machine: Path) -> int | None:
    """Return the memory that the kernel can give without swapping, in bytes. None if it does not say."""
    lines = dict(line.partition(":")[::2] for line in _text(machine).splitlines())
    number = lines.get("MemAvailable", "").removesuffix("kB").strip()
    return int(number) * _KIB if number.isdecimal() else None


def _is_memory(folder: str | Path, own: Path) -> bool:
    """True if files in this folder take memory instead of disk, or if the mounts are unknown."""
    device, mounts = os.stat(folder).st_dev, _text(own / "mountinfo").splitlines()
    name = f"{os.major(device)}:{os.minor(device)}"
    kinds = {fields[fields.index("-") + 1] for line in mounts if (fields := line.split())[2] == name}
    return not mounts or bool(kinds & _IN_MEMORY)


def _groups(root: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Give the bytes left and the limit of each cgroup that has a limit.

    In a container the root is the pod's cgroup.
    """
    for line in _text(own / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, names = (root / "memory", _V1) if controllers else (root, _V2)
        inner = top / path.lstrip("/")
        for group in (inner, *inner.parents):
            if group.is_relative_to(top) and (memory := _left(group, *names)) is not None:
                yield memory


def _left(group: Path, limit_name: str, use_name: str, cache_name: str) -> tuple[int, int] | None:
    limit, use, cache = _text(group / limit_name), _text(group / use_name), 0
    if not limit.isdecimal() or not use.isdecimal() or int(limit) >= _NO_LIMIT:
        return None
    for line in _text(group / "memory.stat").splitlines():
        name, _, number = line.partition(" ")
        if name == cache_name and number.isdecimal():
            cache = int(number)
    return max(int(limit) - max(int(use) - cache, 0), 0), int(limit)


def _lockable(own: Path) -> int | None:
    most, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    status = dict(line.partition(":\t")[::2] for line in _text(own / "status").splitlines())
    if most == resource.RLIM_INFINITY or int(status.get("CapEff", "0"), 16) & _MAY_LOCK_ALL:
        return None
    locked = status.get("VmLck", "").split()
    return max(most - (int(locked[0]) * _KIB if locked else 0), 0)


def _text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text("ascii").strip()
    return ""
