"""A step as parts with names, as frameworks have files: each rank gives those that it will need again.

What several ranks give under one name and alike is in storage once, and once in the memory of each worker: they are
tensors of torch.distributed.checkpoint to ../dcp.py. Where plain values or random numbers differ, so does the part:
a rank gets its own back. In a world of another size it gets the lowest rank's. Of other tensors only those of parts
that are named as `own` may differ, as a model's buffers do.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import xxhash

from turnout.launcher.errors import BadCheckpoint
from turnout.launcher.shell.saving.dcp import FlashStorageReader, FlashStorageWriter
from turnout.launcher.shell.saving.dcp_reading import here, named
from turnout.launcher.shell.saving.flash.together import talks, told_by_first
from turnout.launcher.shell.saving.tensors import flatten, unflatten
from turnout.launcher.shell.watching.beats import SAVES, in_phase

_NOTHING, _FOUND, _BROKEN = range(3)
_DICE_BYTES = 64 << 10  # a tensor of bytes that is not larger may be the state of random numbers


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rank has given: by name, which content."""

    parts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Step:
    """What was loaded. same_world: by as many ranks as there are now."""

    step: int
    parts: Mapping[str, object]
    same_world: bool


class Parts:
    """Of one process; all ranks call its methods alike. folder: a path or a URL, in which the steps will lie.

    keep, every: how many of the newest steps stay in storage, and which multiples; 0 and 0 for all. replicas: how many
    other workers hold a copy of what this one has in memory. environ: of this process, by which its launcher tells it
    who it is.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 0,
        every: int = 0,
        replicas: int = 0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self._keep, self._every, self._replicas = named(folder), keep, every, replicas
        self._environ = dict(os.environ if environ is None else environ)
        self._writer: FlashStorageWriter | None = None

    @property
    def rank(self) -> int:
        """This process's."""
        return here(self.folder, self._environ).rank

    def save(self, step: int, parts: Mapping[str, object], *, disk: bool, own: Collection[str] = ()) -> None:
        """Have them in memory; training may go on when this returns. disk: and in storage, in the background.

        Else they go there only if training fails and goes on from this step. own: parts of which each byte is looked
        at, whether other ranks have the same. Raises BadState, NoMemory.
        """
        state: dict[str, torch.Tensor] = {}
        contents: dict[str, str] = {}
        for name, part in parts.items():
            text, tensors = flatten(part)
            contents[name] = _content(text, tensors.values(), name in own)
            key = _key(name, contents[name])
            state[key] = _bytes(text.encode())
            state |= {f"{key}/{each}": tensor for each, tensor in tensors.items()}
        state[f"ranks/{self.rank}"] = _bytes(msgspec.json.encode(_Index(contents)))
        writer = FlashStorageWriter(
            self.folder, step=step, disk=disk, keep=self._keep, every=self._every, replicas=self._replicas,
            environ=self._environ,
        )  # fmt: skip
        with in_phase(SAVES), _alone():
            dcp.save(state, storage_writer=writer)
        self._writer = writer

    def load(self, other_world: Callable[[str], bool]) -> Step | None:
        """The newest step: from memory where all ranks hold it, else from storage. None where there is none.

        other_world: which parts this rank needs, by name, where the step is of another number of ranks; else all that
        it has given itself. Raises BadCheckpoint and StorageFailed.
        """
        reader = self._reader()
        if reader is None:
            return None
        known: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
        rank = here(self.folder, self._environ)
        indices = sorted((each for each in known if each.startswith("ranks/")), key=lambda each: int(each[6:]))
        same = len(indices) == rank.world
        found = _read(reader, known, [f"ranks/{rank.rank}"] if same else indices)
        contents: dict[str, str] = {}
        for each in found.values():
            contents = _index(each).parts | contents
        chosen = {name: _key(name, each) for name, each in contents.items() if same or other_world(name)}
        starts = tuple(f"{key}/" for key in chosen.values())
        texts = set(chosen.values())
        state = _read(reader, known, [key for key in known if key in texts or key.startswith(starts)])
        return Step(reader.step or 0, {name: _part(state, key) for name, key in chosen.items()}, same)

    def _reader(self) -> FlashStorageReader | None:
        """Of the newest step. Where ranks can talk rank 0 chooses, since steps may be committed meanwhile."""
        if not talks(here(self.folder, self._environ).world):
            reader = FlashStorageReader(self.folder, environ=self._environ)
            return reader if reader else None
        if dist.get_rank():
            kind, step = told_by_first((_NOTHING, 0))
            if kind == _BROKEN:
                raise BadCheckpoint("rank 0 could read none of the steps that there are")
            return FlashStorageReader(self.folder, step=step, environ=self._environ) if kind == _FOUND else None
        choice = (_BROKEN, 0)
        try:
            reader = FlashStorageReader(self.folder, environ=self._environ)
            choice = (_FOUND, reader.step or 0) if reader else (_NOTHING, 0)
        finally:
            told_by_first(choice)
        return reader if choice[0] == _FOUND else None

    def any(self) -> bool:
        """Is anything stored, as far as this rank sees? Raises BadCheckpoint and StorageFailed."""
        return bool(FlashStorageReader(self.folder, environ=self._environ))

    def wait(self, timeout_s: float | None = None) -> None:
        """Until this rank's part of the last save is where it was to go, on rank 0 all of it. Raises TimeoutError."""
        if self._writer is not None:
            self._writer.wait(timeout_s)


def _key(name: str, content: str) -> str:
    return f"parts/{name}@{content}"


def _bytes(text: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _content(text: str, tensors: Iterable[torch.Tensor], whole: bool) -> str:
    """The same for parts that may be put together from several ranks: all but what training keeps alike by itself."""
    total = xxhash.xxh3_64(text.encode())
    for each in tensors:
        total.update(f"{each.dtype}{tuple(each.shape)}".encode())
        if whole or (each.dtype is torch.uint8 and each.is_cpu and each.numel() <= _DICE_BYTES):
            flat = each.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
            total.update(flat.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _read(reader: FlashStorageReader, known: Mapping[str, Any], keys: Iterable[str]) -> dict[str, torch.Tensor]:
    """Raises BadCheckpoint for a key that is not there."""
    state: dict[str, torch.Tensor] = {}
    for key in keys:
        if key not in known or not hasattr(known[key], "properties"):
            raise BadCheckpoint(f"step {reader.step} has no tensor {key}")
        state[key] = torch.empty(known[key].size, dtype=known[key].properties.dtype)
    with _alone():
        dcp.load(state, storage_reader=reader)
    return state


def _part(state: Mapping[str, torch.Tensor], key: str) -> object:
    tensors = {each[len(key) + 1 :]: tensor for each, tensor in state.items() if each.startswith(f"{key}/")}
    try:
        text = bytes(state[key].numpy()).decode()
    except UnicodeDecodeError as error:
        raise BadCheckpoint(f"{key} is no text: {error}") from error
    return unflatten(text, tensors)


def _index(found: torch.Tensor) -> _Index:
    try:
        return msgspec.json.decode(bytes(found.numpy()), type=_Index)
    except msgspec.MsgspecError as error:
        raise BadCheckpoint(f"not the index of a rank: {error}") from error


class _alone(warnings.catch_warnings):  # noqa: N801 - a context manager
    """A process that has no others is no reason to warn."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.filterwarnings("ignore", "torch.distributed is")
