"""Saves a step as named parts, like the files of a framework: each rank gives the parts that it will need again.

A part that several ranks give with equal name and content is stored once. Each worker's memory keeps it once, as
tensors of torch.distributed.checkpoint.
If plain values or random number generators differ, each rank gets its own part back. In a world of another size, a rank
gets the lowest rank's. Other tensors may differ only in parts named in `own`, such as a model's buffers.
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

from turnout.launcher.checkpoint.dcp.reader import named, process_info
from turnout.launcher.checkpoint.dcp.writer import FlashStorageReader, FlashStorageWriter
from turnout.launcher.checkpoint.engine.broadcast import broadcast_pair, is_connected
from turnout.launcher.checkpoint.engine.state_dict import flatten, unflatten
from turnout.launcher.errors import BadCheckpoint
from turnout.launcher.health.hang_monitor.heartbeat import SAVES, in_phase

_NOTHING, _FOUND, _BROKEN = range(3)
_DICE_BYTES = 64 << 10  # a byte tensor up to this size may be the state of a random generator


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Maps the parts of one rank, by name, to the checksum of their content."""

    parts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Step:
    """A loaded step. same_world: the world has as many ranks as the one that saved it."""

    step: int
    parts: Mapping[str, object]
    same_world: bool


class Parts:
    """Saves and loads named parts for one process. All ranks have to call its methods alike.

    folder: a path or URL for the steps. keep, every: how many of the newest steps stay in storage, and which multiples;
    0 and 0 for all.
    replicas: how many other workers keep a copy in memory. environ: this process's environment, in which the launcher
    passes rank and paths.
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
        """Return this process's rank."""
        return process_info(self.folder, self._environ).rank

    def save(self, step: int, parts: Mapping[str, object], *, disk: bool, own: Collection[str] = ()) -> None:
        """Save parts in memory; training may go on when this returns. With `disk` they are also stored in the
        background.

        Otherwise they are stored only if training resumes from this step after a failure. own: names of parts whose
        tensors may differ between ranks, so every byte is compared.
        Raises BadState, NoMemory.
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
            self.folder,
            step=step,
            disk=disk,
            keep=self._keep,
            every=self._every,
            replicas=self._replicas,
            environ=self._environ,
        )
        with in_phase(SAVES), _without_warning():
            dcp.save(state, storage_writer=writer)
        self._writer = writer

    def load(self, other_world: Callable[[str], bool]) -> Step | None:
        """Load the newest step: from memory if all ranks hold it, else from storage. None if there is none.

        other_world: called with a part's name if the number of ranks has changed; True if this rank needs it. Otherwise
        a rank gets the parts it saved.
        Raises BadCheckpoint and StorageFailed.
        """
        reader = self._reader()
        if reader is None:
            return None
        known: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
        rank = process_info(self.folder, self._environ)
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
        """Open the newest step. If ranks can communicate, rank 0 chooses it, since another step may be committed
        meanwhile.
        """
        if not is_connected(process_info(self.folder, self._environ).world):
            reader = FlashStorageReader(self.folder, environ=self._environ)
            return reader if reader else None
        if dist.get_rank():
            kind, step = broadcast_pair((_NOTHING, 0))
            if kind == _BROKEN:
                raise BadCheckpoint("rank 0 could read none of the steps that there are")
            return FlashStorageReader(self.folder, step=step, environ=self._environ) if kind == _FOUND else None
        choice = (_BROKEN, 0)
        try:
            reader = FlashStorageReader(self.folder, environ=self._environ)
            choice = (_FOUND, reader.step or 0) if reader else (_NOTHING, 0)
        finally:
            broadcast_pair(choice)
        return reader if choice[0] == _FOUND else None

    def any(self) -> bool:
        """True if this rank finds any step. Raises BadCheckpoint and StorageFailed."""
        return bool(FlashStorageReader(self.folder, environ=self._environ))

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until this rank's part of the last save has reached its target, and on rank 0 the whole save. Raises
        TimeoutError.
        """
        if self._writer is not None:
            self._writer.wait(timeout_s)


def _key(name: str, content: str) -> str:
    return f"parts/{name}@{content}"


def _bytes(text: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _content(text: str, tensors: Iterable[torch.Tensor], with_bytes: bool) -> str:
    """Compute a checksum that is equal for parts that may be combined from several ranks.

    It covers values, types and shapes. It covers tensor bytes only if `with_bytes` is set, or for small byte tensors,
    which may be random number generators.
    """
    total = xxhash.xxh3_64(text.encode())
    for each in tensors:
        total.update(f"{each.dtype}{tuple(each.shape)}".encode())
        if with_bytes or (each.dtype is torch.uint8 and each.is_cpu and each.numel() <= _DICE_BYTES):
            flat = each.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
            total.update(flat.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _read(reader: FlashStorageReader, known: Mapping[str, Any], keys: Iterable[str]) -> dict[str, torch.Tensor]:
    """Read the tensors of these keys. Raises BadCheckpoint for a missing key."""
    state: dict[str, torch.Tensor] = {}
    for key in keys:
        if key not in known or not hasattr(known[key], "properties"):
            raise BadCheckpoint(f"step {reader.step} has no tensor {key}")
        state[key] = torch.empty(known[key].size, dtype=known[key].properties.dtype)
    with _without_warning():
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
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadCheckpoint(f"not the index of a rank: {error}") from error


class _without_warning(warnings.catch_warnings):  # noqa: N801 - a context manager
    """Suppresses the warnings of torch.distributed about a process that runs alone."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.filterwarnings("ignore", "torch.distributed is")
