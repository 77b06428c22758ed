"""Fetches the wheels of `hack/gpu/check.sh`: what the launcher and its GPU tests need beside torch."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hack.images.python_wheels import fetch_wheels

ROOT = Path(__file__).parents[2]
USUAL_PYTHON = "3.12"  # of the machines with a GPU that this was written for
MAX_BYTES = 30 << 20  # so that the wheels travel with a checkout
_FROM = {
    "launcher.txt": ("fsspec", "msgspec", "networkx", "numpy", "prometheus-client", "py-spy", "pyyaml", "safetensors",
                     "typing-extensions", "xxhash"),
    "dev.txt": ("iniconfig", "packaging", "pluggy", "pygments", "pytest", "pytest-asyncio", "pytest-timeout"),
}  # fmt: skip


def folder_for(python: str) -> Path:
    """Return the folder of the wheels for a Python version such as 3.12."""
    return ROOT / "build" / ("gpu-wheels" if python == USUAL_PYTHON else f"gpu-wheels-{python}")


def pins(lock: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the entries of these packages in a lock file's text, with their hashes. Raises ValueError for a missing
    name.
    """
    entries = {re.split(r"[=\[ ]", entry, maxsplit=1)[0]: entry for entry in re.split(r"\n(?=\S)", lock)}
    for name in names:
        if name not in entries:
            raise ValueError(f"{name} is in no lock file")
        yield entries[name].rstrip()


def main() -> int:
    """Download the wheels for the Python version in the first argument. Return 0; 1 if they are larger than
    MAX_BYTES.
    """
    python = sys.argv[1]
    folder = folder_for(python)
    with tempfile.TemporaryDirectory() as scratch:
        lock = Path(scratch) / "bundle.txt"
        texts = {(ROOT / "hack/locks" / name).read_text(): names for name, names in _FROM.items()}
        lock.write_text("\n".join(entry for text, names in texts.items() for entry in pins(text, names)))
        wheels = fetch_wheels(lock, python, folder)
    for other in set(folder.iterdir()) - set(wheels):
        other.unlink()
    size = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{folder.relative_to(ROOT)}: {len(wheels)} wheels for Python {python}, {size / 2**20:.1f} MiB")
    if size > MAX_BYTES:
        print(f"more than {MAX_BYTES >> 20} MiB: leave out what the stages do not need", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
