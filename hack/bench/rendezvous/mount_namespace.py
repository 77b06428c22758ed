"""Runs a command in its own mount namespace, in which names are looked up as a benchmark needs it.

The machine's own files stay as they are. QUIET: names come from /etc/hosts only, so that no resolver is asked. ALONE:
the same, with a loopback of its own. SILENT: with one too, and every look-up goes to a resolver that never answers.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

RESOLVER = "127.0.0.53"
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


class NameSource(StrEnum):
    """The source of host names."""

    MACHINE = "machine"  # as the machine has it: nothing is private
    QUIET = "quiet"
    ALONE = "alone"
    SILENT = "silent"


_OWN_LOOPBACK = {NameSource.ALONE, NameSource.SILENT}
_FILES: Mapping[NameSource, Mapping[str, str]] = {
    NameSource.MACHINE: {},
    NameSource.QUIET: {"nsswitch.conf": "hosts: files\n"},
    NameSource.ALONE: {"nsswitch.conf": "hosts: files\n"},
    NameSource.SILENT: {
        "nsswitch.conf": "hosts: files dns\n",
        "resolv.conf": f"nameserver {RESOLVER}\n",
        "hosts": "# empty: the resolver is asked for each name and each address\n",
    },
}


def command(words: Sequence[str], names: NameSource, folder: Path) -> list[str]:
    """Return the command line that runs another command in a private mount namespace, with other files in /etc.

    words: the other command; it is returned as it is for NameSource.MACHINE. names: how names are resolved. folder: the
    files that replace those in /etc are written into it.
    """
    if names is NameSource.MACHINE:
        return [*words]
    at = folder / names.value
    at.mkdir(parents=True, exist_ok=True)
    for name, text in _FILES[names].items():
        (at / name).write_text(text)
    mounts = " && ".join(f'mount --bind "$0/{name}" /etc/{name}' for name in _FILES[names])
    shared = ["--net"] if names in _OWN_LOOPBACK else []
    mapped = ["--map-root-user"] if os.geteuid() else []
    return ["unshare", "--mount", *shared, *mapped, "sh", "-c", f'{mounts} && exec "$@"', str(at), *words]


def why_not_permitted(names: NameSource, folder: Path) -> str:
    """Return "" if this user may run commands in such a namespace, else the reason. For the arguments see `command`."""
    try:
        result = subprocess.run(
            command(["true"], names, folder), capture_output=True, text=True, timeout=20, check=False
        )
    except OSError as error:
        return str(error)
    return "" if result.returncode == 0 else result.stderr.strip() or f"exit status {result.returncode}"


def bring_up_loopback(names: NameSource) -> socket.socket | None:
    """Bring up the loopback of this process's new network namespace; do nothing if `names` has none of its own.

    For SILENT, return a socket that takes every DNS question and never answers; None otherwise.
    """
    if names not in _OWN_LOOPBACK:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_RUNNING))
    if names is NameSource.ALONE:
        return None
    silent = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    silent.bind((RESOLVER, 53))
    return silent
