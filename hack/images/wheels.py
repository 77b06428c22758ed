"""Build our two wheels from the files that git tracks or does not ignore: `python -m hack.images.wheels`.

The same files give the same bytes.

A build in the tree itself would take along what older builds left below build/.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).absolute().parents[2]
SOURCES = (".", "deploy/packages/dlrover-names")
UNPUBLISHED = ("tests/", "docs/", "hack/", ".ci/")
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
EPOCH_S = 1_767_225_600  # 2026-01-01: the time of every file in a wheel and in an image


def main() -> int:
    """Write the wheels into build/wheels and print their paths."""
    for wheel in build_all(ROOT / "build" / "wheels"):
        print(wheel.relative_to(ROOT))
    return 0


def build_all(into: Path) -> list[Path]:
    """Build every wheel into the folder, which is emptied first; return their paths."""
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    return [build(into, source) for source in SOURCES]


def build(into: Path, source: str = ".") -> Path:
    """Build a wheel, without network, by this Python's setuptools. Return its path.

    into: folder of the wheel. source: folder of the package's setup.cfg, relative to the repository. Only files that
    git tracks or does not ignore are used. Raises subprocess.CalledProcessError if git or pip fails, and TimeoutExpired
    if pip takes longer than five minutes.
    """
    with tempfile.TemporaryDirectory() as copy:
        known = ("git", "ls-files", "-coz", "--exclude-standard")
        listed = subprocess.run(known, cwd=ROOT, capture_output=True, check=True).stdout.decode()
        for name in filter(None, listed.split("\0")):
            if not name.startswith(UNPUBLISHED) and (ROOT / name).exists():
                _copy(ROOT / name, Path(copy, name))
        with tempfile.TemporaryDirectory() as folder:
            pip: list[str | Path] = [*PIP, "wheel", "--no-index", "--no-deps", "--no-build-isolation"]
            command = [*pip, "-w", folder, Path(copy, source)]
            subprocess.run(command, check=True, timeout=300, env=os.environ | {"SOURCE_DATE_EPOCH": str(EPOCH_S)})
            return Path(shutil.move(next(Path(folder).glob("*.whl")), into))


def _copy(file: Path, to: Path) -> None:
    """Copy a file or a link. A file gets mode 755 if it is executable, else 644."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, to, follow_symlinks=False)
    if not to.is_symlink():
        to.chmod(0o755 if os.access(file, os.X_OK) else 0o644)


if __name__ == "__main__":
    sys.exit(main())
