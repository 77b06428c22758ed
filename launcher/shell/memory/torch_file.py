"""Writes one generation of an arena as a file that torch.load(weights_only=True) reads: a process of its own.

`python -m launcher.shell.memory.torch_file ARENA GENERATION EPOCH FILE`. Whoever starts it has pinned the generation.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launcher.checkpoint.sums import sums_of
from launcher.errors import BadCheckpoint, LauncherError


def main(argv: Sequence[str]) -> int:
    """1, and a line on stderr, where it cannot be written."""
    arena, generation, epoch, file = argv
    try:
        write(Path(arena), int(generation), int(epoch), Path(file))
    except (LauncherError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def write(path: Path, generation: int, epoch: int, file: Path) -> None:
    """Verify, write aside, sync, rename. Raises BadCheckpoint, OSError."""
    import torch

    from launcher.shell.memory.arena import Arena
    from launcher.shell.saving.memory import state_of

    arena = Arena.open(path)
    record = arena.slots()[generation].record
    if record is None or record.epoch != epoch:
        raise BadCheckpoint(f"generation {generation} of {path} is another one by now")
    region = arena.map(generation, record.shard_bytes)
    if tuple(sums_of(region)) != arena.sums(generation):
        raise BadCheckpoint(f"step {record.step} in memory is not what was hashed")
    state = state_of(region)
    file.parent.mkdir(parents=True, exist_ok=True)
    aside = file.with_name(f".{file.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(aside, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as target:
            torch.save(_plain(state), target)
            target.flush()
            os.fsync(target.fileno())
        os.rename(aside, file)
    finally:
        with suppress(OSError):
            aside.unlink()
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _plain(value: object) -> object:
    """Tensors of their own: torch.save writes the whole storage of a view, and all of these are views of one."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return type(value)((key, _plain(each)) for key, each in value.items())
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(_plain(each) for each in value)
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
