"""What is asked of the Linux kernel without a word for it in Python: who dies with whom, and who gets orphans."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]


def _ask(option: int, value: int) -> None:
    if _prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def adopt_orphans() -> None:
    """From now on a process below us whose parent has ended becomes our child."""
    _ask(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int, sig: signal.Signals) -> bool:
    """From now on `sig` comes to us when our parent ends. False when `parent` has ended already."""
    _ask(_PR_SET_PDEATHSIG, sig)
    return os.getppid() == parent
