"""Writes one generation of an arena as a file for torch.load(weights_only=True), in a process of its own.

`python -m turnout.launcher.checkpoint.engine.torch_export ARENA GENERATION EPOCH FILE FOLDER KEEP EVERY`.
The caller has pinned the generation. FOLDER is the checkpoint folder, which gets a note of the file. KEEP and EVERY say
which of its files stay.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from turnout.launcher.checkpoint.format.checksums import sums_of
from turnout.launcher.checkpoint.format.retention import rule
from turnout.launcher.errors import BadCheckpoint, LauncherError


def main(argv: Sequence[str]) -> int:
    """Write the file and remove old ones. Returns 1, with a line on stderr, if it cannot be written."""
    arena, generation, epoch, file, folder, keep, every = argv
    try:
        step = write(Path(arena), int(generation), int(epoch), Path(file), Path(folder))
        retire(Path(folder), int(keep), int(every), step)
    except (LauncherError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def write(path: Path, generation: int, epoch: int, file: Path, folder: Path) -> int:
    """Verify the generation, then write, sync, note and rename its file; return the step. Raises BadCheckpoint,
    OSError.
    """
    import torch

    from turnout.launcher.checkpoint.arena.arena import Arena
    from turnout.launcher.checkpoint.engine.save_plan import state_of
    from turnout.launcher.checkpoint.engine.torch_files import put

    arena = Arena.open(path)
    record = arena.slots()[generation].record
    if record is None or record.epoch != epoch:
        raise BadCheckpoint(f"generation {generation} of {path} is another one by now")
    region = arena.map(generation, record.head_bytes + record.data_bytes)
    if tuple(sums_of(region)) != arena.sums(generation):
        raise BadCheckpoint(f"step {record.step} in memory is not what was hashed")
    state = _own_storage(state_of(region), {})
    put(folder, file, record.step, lambda target: torch.save(state, target))
    return record.step


def retire(folder: Path, keep: int, every: int, just_written: int) -> None:
    """Remove checkpoint files that the two rules do not keep. A file that cannot be removed now stays until the next
    call.
    """
    from turnout.launcher.checkpoint.engine import torch_files

    with suppress(OSError):
        torch_files.remove_old_files(folder, rule(keep, every), just_written)


def _own_storage(value: object, copies: dict[int, object]) -> object:
    """Copy every tensor of a value into storage of its own.

    The tensors are views of one storage, and torch.save writes the whole storage of a view. `copies` maps the id of a
    tensor to its copy, so shared tensors stay shared.
    """
    import torch

    if isinstance(value, torch.Tensor):
        if id(value) not in copies:
            copies[id(value)] = value.clone()
        return copies[id(value)]
    if isinstance(value, dict):
        return type(value)((key, _own_storage(each, copies)) for key, each in value.items())
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(_own_storage(each, copies) for each in value)
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
