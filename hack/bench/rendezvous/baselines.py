"""Baselines that are no part of Turnout: installed from hack/locks, outside the tree.

NVRx's wheel asks for a newer Python and C library than a machine may have. What is measured of it is pure Python, so
it is laid into a folder for PYTHONPATH as if for such a machine; what it imports comes for this one, torch is ours.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_LOCKS = Path(__file__).parents[2] / "locks"
_NEWER = ["--platform", "manylinux_2_39_x86_64", "--python-version", "3.12", "--implementation", "cp"]
_PARTS = ((_LOCKS / "anchors.txt", ()), (_LOCKS / "anchors-nvrx.txt", _NEWER))
_GIVE_UP_S = 240


class NoBaselines(Exception):
    """The baselines cannot be installed here. Measure the rest, and say so."""


def folder() -> Path:
    """Return the folder that holds the baselines. Install them if it does not exist.

    Raises NoBaselines if pip cannot install them.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnout" / "anchors"
    made_of = b"".join(lock.read_bytes() for lock, _ in _PARTS) + sys.version.encode()
    at = base / hashlib.sha256(made_of).hexdigest()[:16]
    if not at.is_dir():
        making = at.with_name(f"{at.name}.{os.getpid()}")
        try:
            for lock, options in _PARTS:
                _install(lock, options, making)
            making.rename(at)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return at


def nvrx_requirement() -> str:
    """Return the first requirement of NVRx's lock file, NAME==VERSION."""
    return _PARTS[-1][0].read_text().split(maxsplit=1)[0]


def _install(lock: Path, options: Sequence[str], into: Path) -> None:
    """Install the packages of a lock file into a folder by pip. options: further options of `pip install`.

    Raises NoBaselines if pip fails; it contains pip's last line.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary", ":all:", "--require-hashes", *options, "--target", str(into), "-r", str(lock)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_GIVE_UP_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoBaselines(str(error)) from error
    if ended.returncode:
        raise NoBaselines((ended.stderr.strip().splitlines() or ["pip failed"])[-1])
