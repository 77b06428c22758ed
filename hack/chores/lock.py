"""Resolve hack/locks/*.txt afresh from setup.cfg: `python -m hack.chores.lock`. Needs uv on PATH or in this Python.

Every wheel is named by its hash and none by its address, so that any index may serve it. dev.txt is what
`make setup` installs; controllers.txt is the part of it that the controllers' image runs on.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LOCKS = Path("hack/locks")
FORM = ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]


def main() -> int:
    """Write both files; the second never strays from the first."""
    uv = [found] if (found := shutil.which("uv")) else [sys.executable, "-m", "uv"]
    dev, controllers = LOCKS / "dev.txt", LOCKS / "controllers.txt"
    sources = ["setup.cfg", str(LOCKS / "tools.in")]
    _compile(uv, [*sources, "--extra", "dev", "--upgrade"], dev)
    _compile(uv, ["setup.cfg", "--constraint", str(dev)], controllers)
    return 0


def _compile(uv: Sequence[str], arguments: Sequence[str], into: Path) -> None:
    command = [*uv, "pip", "compile", "--quiet", "--python-version", "3.11", *FORM, *arguments, "-o", str(into)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
