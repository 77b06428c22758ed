"""Wraps Linux calls that Python lacks: dying with the parent, adopting orphans, permission to trace, and the name in
`ps`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]


def _ask(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def adopt_orphans() -> None:
    """Become the parent of every descendant process whose parent ends, from now on."""
    _ask(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int, sig: signal.Signals) -> bool:
    """Receive `sig` when the parent process ends. False if `parent` has ended already."""
    _ask(_PR_SET_PDEATHSIG, sig)
    return os.getppid() == parent


def be_traced_by(pid: int) -> None:
    """Let process `pid` and its descendants trace this one, if Linux restricts tracing to parents. Does nothing on
    other kernels.
    """
    with contextlib.suppress(OSError):
        _ask(_PR_SET_PTRACER, pid)


def rename(words: Sequence[str]) -> None:
    """Set the command that `ps` shows, cut to the length of the original one.

    It overwrites the texts that the kernel shows. A started interpreter has its own copies.
    """
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    room = end - start - 1  # keep the last byte NUL, else the kernel reads on into the environment
    if start and room > 0:
        text = b"\0".join(os.fsencode(word) for word in words)[:room]
        ctypes.memmove(start, text.ljust(room, b"\0"), room)
