"""The folder of stacks: where it is, and files in it that are there whole or not at all, since somebody may look."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from turnout.launcher.health.hangs import Hangs


def folder_of(hangs: Hangs) -> Path:
    """The one that the user named, else one for all jobs of this machine."""
    return Path(hangs.folder) if hangs.folder else Path(tempfile.gettempdir(), "turnout-stacks")


def keep(folder: Path, files: Mapping[int, bytes], world: int) -> None:
    """One file a rank. Those of a world of another size would not go with them. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in folder.glob("[0-9]*-*.stacktrace"):
        if not old.name.endswith(f"-{world:05}.stacktrace"):
            old.unlink(missing_ok=True)
    write(folder, {f"{rank:05}-{world:05}.stacktrace": content for rank, content in files.items()})


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    """By name. Agents of several hosts may write the same one into a shared folder. Raises OSError."""
    for name, content in files.items():
        new = folder / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
        new.write_bytes(content)
        new.replace(folder / name)
