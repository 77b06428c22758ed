"""The oldest versions that setup.cfg lets a trainer have, in an environment apart: `hack.codegen.minimum_versions`.

What follows is for the Python there: `-m pytest tests/launcher/checkpoint/engine`. The environment lies
outside the tree, named after its lock file and this Python: made once (3 GB from the package index), then kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LOCK = Path(__file__).parents[1] / "locks" / "launcher-floor.txt"


class NoFloor(Exception):
    """The environment cannot be created here. The message has pip's last lines. Nothing was tested."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"the oldest versions ({LOCK.name}) cannot be installed: {why}\n"
            "make test-long fetches them once, 3 GB, and keeps them: give pip an index that has them, and 7 GB of room "
            "in the cache (XDG_CACHE_HOME), and type it again"
        )


def python() -> Path:
    """Return the Python of the environment with the oldest supported versions; create it if it is missing.

    Raises NoFloor if the environment cannot be created or a package cannot be installed.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnout" / "launcher-floor"
    at = base / hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    if not at.is_dir():
        making = at.with_name(f"{at.name}.{os.getpid()}")
        try:
            _run([sys.executable, "-m", "venv", str(making)])
            pip = [str(making / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            _run([*pip, "--no-cache-dir", "--only-binary", ":all:", "--require-hashes", "-r", str(LOCK)])
            making.rename(at)  # only what is called by its path breaks: the Python in it is a link, and finds its own
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return at / "bin" / "python"


def _run(command: Sequence[str]) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise NoFloor(" / ".join((ended.stderr.strip() or ended.stdout.strip() or "no word").splitlines()[-3:]))


def main(argv: Sequence[str]) -> int:
    """Run a command in that environment. Return its exit code; 2 if the environment cannot be created."""
    try:
        found = python()
    except NoFloor as error:
        print(error, file=sys.stderr)
        return 2
    return subprocess.run([str(found), *argv], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
