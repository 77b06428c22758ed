"""Writes one generation of an arena as a file that torch.load(weights_only=True) reads: a process of its own.

`python -m turnout.launcher.shell.memory.torch_file ARENA GENERATION EPOCH FILE FOLDER KEEP EVERY`. Whoever starts it
has pinned the generation. FOLDER: of the checkpoints, where it is noted; KEEP, EVERY: which files of it stay.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from turnout.launcher.checkpoint.retention import rule
from turnout.launcher.checkpoint.sums import sums_of
from turnout.launcher.errors import BadCheckpoint, LauncherError


def main(argv: Sequence[str]) -> int:
    """1, and a line on stderr, where it cannot be written."""
    arena, generation, epoch, file, folder, keep, every = argv
    try:
        step = write(Path(arena), int(generation), int(epoch), Path(file), Path(folder))
        retire(Path(folder), int(keep), int(every), step)
    except (LauncherError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def write(path: Path, generation: int, epoch: int, file: Path, folder: Path) -> int:
    """Verify, write aside, sync, note, rename. Gives the step. Raises BadCheckpoint, OSError."""
    import torch

    from turnout.launcher.shell.memory.arena import Arena
    from turnout.launcher.shell.saving.flash.torch_files import put
    from turnout.launcher.shell.saving.laying import state_of

    arena = Arena.open(path)
    record = arena.slots()[generation].record
    if record is None or record.epoch != epoch:
        raise BadCheckpoint(f"generation {generation} of {path} is another one by now")
    region = arena.map(generation, record.head_bytes + record.data_bytes)
    if tuple(sums_of(region)) != arena.sums(generation):
        raise BadCheckpoint(f"step {record.step} in memory is not what was hashed")
    state = _plain(state_of(region), {})
    put(folder, file, record.step, lambda target: torch.save(state, target))
    return record.step


def retire(folder: Path, keep: int, every: int, just: int) -> None:
    """Remove what is not to be kept. What cannot be removed stays until the next time."""
    from turnout.launcher.shell.saving.flash import torch_files

    with suppress(OSError):
        torch_files.retire(folder, rule(keep, every), just)


def _plain(value: object, seen: dict[int, object]) -> object:
    """Tensors of their own: torch.save writes the whole storage of a view, and all of these are views of one.

    seen: by id, the tensors so far: shared ones stay shared.
    """
    import torch

    if isinstance(value, torch.Tensor):
        if id(value) not in seen:
            seen[id(value)] = value.clone()
        return seen[id(value)]
    if isinstance(value, dict):
        return type(value)((key, _plain(each, seen)) for key, each in value.items())
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(_plain(each, seen) for each in value)
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
