"""Computes the memory that checkpoints need on a worker, and refuses it before the first byte is allocated if it is too
much.

Files in a memory file system also count against the pod's limit. launcher/checkpoint/arena/arena_files.py reads the
limits. Source: docs/facts/dlrover.md 6.6, defect 11
"""

from __future__ import annotations

from dataclasses import dataclass

from turnout.launcher.checkpoint.format.arena_layout import PAGE_BYTES
from turnout.launcher.errors import NoMemory

REPLICA_GENERATIONS = 2  # per replica: the complete one stays until the next is complete
FOLDER = "/dev/shm"
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """The memory that is free by each limit. None stands for no limit."""

    free_bytes: int  # of the file system of the arenas
    cgroup_left_bytes: int | None = None  # up to the pod's memory limit
    locked_bytes: int | None = None  # that may still be pinned
    size_bytes: int | None = None  # of the file system in all, if known
    cgroup_bytes: int | None = None  # the pod's limit in all, if known
    # Memory left on the machine, if no cgroup has a limit: tmpfs may be larger than that.
    available_bytes: int | None = None


def need_bytes(shard_bytes: int, generations: int, processes: int, replicas: int = 0) -> int:
    """Return the bytes that all arenas of a worker need at most.

    shard_bytes: of the largest shard, with header and checksums. generations: of each process. processes: of this
    worker. replicas: how many other workers' shards are kept for each own one, in REPLICA_GENERATIONS generations each.
    """
    shard = -(-shard_bytes // PAGE_BYTES) * PAGE_BYTES
    own = generations * shard + (generations + 1) * PAGE_BYTES
    replica = REPLICA_GENERATIONS * shard + (REPLICA_GENERATIONS + 1) * PAGE_BYTES
    return processes * (own + replicas * replica)


def refusal(need: int, limits: Limits, pinned: int = 0, folder: str = FOLDER) -> NoMemory | None:
    """Return an error that says why `need` bytes cannot be allocated, with the YAML to add; None if they can.

    pinned: how many of the bytes are to be locked for copies of a GPU. folder: mount path of the arenas, for the
    message. limits: those of the machine now.
    """
    shortages: list[str] = []
    volume = limit = lock = machine = False
    if need > limits.free_bytes:
        volume = True
        shortages.append(f"{folder} has {_size_text(limits.free_bytes)} free")
    if limits.cgroup_left_bytes is not None and need > limits.cgroup_left_bytes:
        limit = True
        shortages.append(f"the pod's memory limit leaves {_size_text(limits.cgroup_left_bytes)}")
    if limits.available_bytes is not None and need > limits.available_bytes:
        machine = True
        shortages.append(
            f"this machine has {_size_text(limits.available_bytes)} of memory available, and no limit for the pod"
        )
    if limits.locked_bytes is not None and pinned > limits.locked_bytes:
        lock = True
        shortages.append(f"{_size_text(pinned)} are to be pinned and {_size_text(limits.locked_bytes)} may be")
    if not shortages:
        return None
    fault = f"checkpoints in memory need {_size_text(need)}: " + "; ".join(shortages)
    return NoMemory(fault, _advice(need, limits, folder, volume, limit, lock, machine))


def _advice(need: int, limits: Limits, folder: str, volume: bool, limit: bool, lock: bool, machine: bool) -> str:
    """Return the YAML to add to the pod, as text.

    need: bytes. folder: mount path of the arenas. volume, limit, lock, machine: True for each limit that is too low:
    the free space of the volume, the pod's memory limit, locked memory, the machine's memory. The memory limit is
    mentioned with the volume, whose content counts against it.
    """
    lines = ["spec:"]
    if volume:
        size = _gib(need, limits.free_bytes, limits.size_bytes)
        lines += ["  volumes:", "  - name: turnout-memory", f"    emptyDir: {{medium: Memory, sizeLimit: {size}Gi}}"]
    lines += ["  containers:", "  - name: main  # the container that trains"]
    if volume:
        lines.append(f"    volumeMounts: [{{name: turnout-memory, mountPath: {folder}}}]")
    if limit:
        size = _gib(need, limits.cgroup_left_bytes, limits.cgroup_bytes)
        lines.append(f"    resources: {{limits: {{memory: {size}Gi}}}}  # at least")
    elif machine:
        lines.append(f"    resources: {{requests: {{memory: {_gib(need, None, None)}Gi}}}}  # and what training needs")
    elif volume and limits.cgroup_left_bytes is not None:
        lines.append("    # what lies in the volume counts against resources.limits.memory, which is large enough")
    elif volume:
        lines.append("    # if you set resources.limits.memory: what lies in the volume counts against it")
    if lock:
        lines.append("    securityContext: {capabilities: {add: [IPC_LOCK]}}  # or do not pin")
    return "\n".join(lines)


def _gib(need: int, left_bytes: int | None, total_bytes: int | None) -> int:
    """Return the GiB to request: the present size plus the missing bytes, and at least `need` bytes.

    left_bytes, total_bytes: free bytes and present size of the limit, None if unknown.
    """
    extended_bytes = 0 if total_bytes is None or left_bytes is None else total_bytes + need - left_bytes
    return max(1, -(-max(extended_bytes, need) // _GIB))


def _size_text(size_bytes: int) -> str:
    """Format a size for people, with the exact bytes."""
    for unit, unit_bytes in (("GiB", _GIB), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.2f} {unit} ({size_bytes} bytes)"
    return f"{size_bytes} bytes"
