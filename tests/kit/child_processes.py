"""The children of a process, as its kernel has them now."""

from __future__ import annotations

from turnout.launcher.linux import processes


def children_of(pid: int) -> list[int]:
    """Give the pids of its children that have not ended, whichever of its threads made them.

    /proc/PID/task/TID/children has those of one thread, and may leave some out while another of them ends: proc(5).
    """
    return [process.pid for process in processes() if process.parent == pid and process.state not in "ZX"]
