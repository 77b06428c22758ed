"""Records which modules a script imports in its first life, and imports them ahead in a parent for its next lives.

Only modules in the interpreter's site-packages are imported ahead, since those are not the user's own. A package is
left out if its import reads a per-process variable, starts a thread or touches a device.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import importlib
import importlib.util
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from turnout.launcher.workers.environment import of_each
from turnout.launcher.workers.forkserver.preimport import MOST_NAMES, packages

FILE = "@"  # prefix of a file name, where a parent takes names of modules
_HIGH_FD = 200  # above the descriptors that programs tend to close


def record(file: str) -> None:
    """Record this process's imports in a file from now on, one per line. Raises OSError."""
    low = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
    os.close(low)
    sys.meta_path.insert(0, _Recorder(high))


class _Recorder(MetaPathFinder):
    """Records each import as the first finder in sys.meta_path. It never finds a module itself."""

    def __init__(self, file: int) -> None:
        self._file, self._pid, self._left = file, os.getpid(), MOST_NAMES

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._left > 0 and os.getpid() == self._pid:
            self._left -= 1
            with contextlib.suppress(OSError):  # the program has closed it
                os.write(self._file, f"{fullname}\n".encode())
        return None


async def settled(file: str, quiet_s: float, more_than: int) -> tuple[str, ...]:
    """Wait until a process has recorded more than `more_than` names and none in the last `quiet_s` seconds;
    return all.
    """
    count = 0
    while True:
        await asyncio.sleep(quiet_s)
        before, names = count, recorded(file)
        count = len(names)
        if more_than < count == before:
            return names


def recorded(file: str) -> tuple[str, ...]:
    """Read the names that a process has recorded so far."""
    try:
        return tuple(Path(file).read_text(errors="replace").split())
    except OSError:
        return ()


def import_ahead(file: str, harm: Callable[[], str]) -> tuple[str, str]:
    """Import the modules named in the file, package by package. Import errors are ignored and left to the script.

    harm: returns why this process can no longer be forked, "" while it can. Returns the package that did harm and how,
    or two empty strings.
    """
    for package, names in packages(recorded(file), ()).items():
        if not installed(package):
            continue
        with _silence(), _variables_read() as read:
            for name in names:
                if name not in sys.modules:
                    # Importing a module may raise anything, and the script may not mind.
                    with contextlib.suppress(BaseException):
                        importlib.import_module(name)
        if own := sorted(filter(of_each, read)):
            return package, f"reads {own[0]} at its import, which each process has for itself"
        if why := harm():
            return package, why
    return "", ""


def installed(package: str) -> bool:
    """True if a package is in site-packages, and nowhere else."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    if spec is None:
        return False
    places = [os.path.realpath(each) + os.sep for each in _site_packages()]
    files = list(spec.submodule_search_locations or ()) or [spec.origin or ""]
    return all(os.path.realpath(file).startswith(tuple(places)) for file in files)


def _site_packages() -> set[str]:
    own = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages(), *own}


@contextlib.contextmanager
def _variables_read() -> Iterator[set[str]]:
    """Record the environment variables that are read during the block, whether they are set or not."""
    read, environ, encode = set[str](), _environ(), os.environ.encodekey

    def encoded(name: object) -> object:
        read.add(str(name))
        return encode(name)  # type: ignore[arg-type]  # whatever it is asked for: it says best what is wrong with it

    environ.encodekey = encoded
    try:
        yield read
    finally:
        environ.encodekey = encode


def _environ() -> Any:
    """Return os.environ as an untyped object, so that its key encoder can be replaced."""
    return os.environ


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discard output during the block, since the script has printed it before."""
    kept, nowhere = [os.dup(fd) for fd in (1, 2)], os.open(os.devnull, os.O_WRONLY)
    try:
        for fd in (1, 2):
            os.dup2(nowhere, fd)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, file in zip((1, 2), kept, strict=True):
            os.dup2(file, fd)
            os.close(file)
        os.close(nowhere)
