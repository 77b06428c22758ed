"""Saves and loads the state of a framework as named parts; converts simple objects to plain values and back.

Saved data can only create objects of the classes that its adapter lists (`Kinds`).
"""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import torch
import torch.distributed.checkpoint as dcp
import xxhash

from turnout.launcher.checkpoint.dcp.reader import absolute_folder, process_info
from turnout.launcher.checkpoint.dcp.writer import FlashStorageReader, FlashStorageWriter
from turnout.launcher.checkpoint.engine.process_info import choose_on_rank_0
from turnout.launcher.checkpoint.engine.state_dict import flatten, unflatten
from turnout.launcher.errors import BadCheckpoint, BadState
from turnout.launcher.health.hang_monitor.progress import SAVING_PHASE, in_phase

_MARK = "turnout.object"  # key of a dict that stands for an object
_SET = "set"

_PAIRS = "pairs"  # a dict with keys that are no plain values, such as torch.dtype

_KEYS = (str, int, float, bool, type(None))  # types of keys that a checkpoint can hold
Kinds = Mapping[str, type]  # classes whose objects may be saved, by the name in the checkpoint


def encode_object(value: object, kinds: Kinds, path: str = "") -> object:
    """Return a value with objects of these kinds, sets, and enumerations of integers and of text replaced by plain
    values, in depth; enumerations also in keys of dicts and in sets.

    Any other value, such as a frozenset, stays as it is. kinds: the classes by the name under which they are saved;
    only exact types count. path: of the value, for messages. Raises BadState for a dict that has the marker key.
    """
    for name, kind in kinds.items():
        if type(value) is kind:
            return {_MARK: name, "fields": encode_object(dict(vars(value)), kinds, path)}
    if isinstance(value, Enum):
        return _plain_key(value)
    if isinstance(value, dict):
        return _plain_dict(value, kinds, path)
    if type(value) is set and all(map(_is_key, plain_items := [_plain_key(each) for each in value])):
        return {_MARK: _SET, "fields": sorted(plain_items, key=repr)}  # the same order on all ranks
    if type(value) is list or type(value) is tuple:
        items = [encode_object(each, kinds, f"{path}/{index}") for index, each in enumerate(value)]
        return items if type(value) is list else tuple(items)
    return value


def _plain_dict(dictionary: dict[Any, Any], kinds: Kinds, path: str) -> object:
    """Return a dictionary with plain values.

    One with keys that a checkpoint cannot hold becomes a marked list of pairs. kinds: as for `encode_object`. path: of
    the dictionary, for messages. Raises BadState if a key is the mark itself, here or deeper.
    """
    if _MARK in dictionary:
        raise BadState(path, f"the key {_MARK!r} is taken")
    items = [(_plain_key(key), encode_object(each, kinds, f"{path}/{key}")) for key, each in dictionary.items()]
    if not all(_is_key(key) for key, _ in items):
        return {_MARK: _PAIRS, "fields": [[key, each] for key, each in items]}
    return OrderedDict(items) if isinstance(dictionary, OrderedDict) else dict(items)


def _plain_key(key: object) -> object:
    """Return the value of an enumeration of integers or of text, also within a tuple; any other key unchanged."""
    if isinstance(key, Enum) and isinstance(key, int | str):
        return key.value
    return tuple(map(_plain_key, key)) if type(key) is tuple else key


def _is_key(key: object) -> bool:
    """Return True for a key that a checkpoint can hold, or a tuple of such keys."""
    return all(map(_is_key, key)) if type(key) is tuple else type(key) in _KEYS


def decode_object(value: object, kinds: Kinds) -> Any:
    """Rebuild a value that `encode_object` converted; enumerations stay as their values. Raises BadCheckpoint for an
    unlisted kind.
    """
    if isinstance(value, dict) and _MARK in value:
        return _create_object(value[_MARK], decode_object(value.get("fields"), kinds), kinds)
    if isinstance(value, dict):
        return type(value)((key, decode_object(each, kinds)) for key, each in value.items())
    if type(value) is list or type(value) is tuple:
        items = [decode_object(each, kinds) for each in value]
        return items if type(value) is list else tuple(items)
    return value


def _create_object(name: object, fields: Any, kinds: Kinds) -> object:
    """Create the object that a marked dictionary describes: a dictionary, a set, or an instance of one of `kinds`.

    name: the mark. fields: pairs of a dictionary, items of a set, or the attributes of an instance by name. No
    constructor runs. Raises BadCheckpoint for another kind.
    """
    if name == _PAIRS and isinstance(fields, list):
        return dict(fields)
    if name == _SET and isinstance(fields, list):
        return set(fields)
    if name not in kinds or not isinstance(fields, dict):
        raise BadCheckpoint(f"an object of the kind {name!r}: only {', '.join(kinds) or 'plain values'} are made here")
    created: object = object.__new__(kinds[str(name)])
    vars(created).update(fields)
    return created


_RNG_BYTES = 64 << 10  # a byte tensor up to this size may be the state of a random number generator


class _Index(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Maps the parts of one rank, by name, to the checksum of their content."""

    parts: dict[str, str]


_decoder = msgspec.json.Decoder(_Index)


@dataclass(frozen=True, slots=True)
class Step:
    """A loaded step."""

    step: int
    parts: Mapping[str, object]  # by name
    same_world: bool  # the world has as many ranks as the world that saved it


class Parts:
    """Saves and loads named parts for one process. All ranks have to call its methods alike.

    folder: a path or URL for the steps. keep, every: storage keeps the `keep` newest steps and the multiples of
    `every`. 0 and 0 for all.
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
        self.folder, self._keep, self._every, self._replicas = absolute_folder(folder), keep, every, replicas
        self._environ = dict(os.environ if environ is None else environ)
        self._writer: FlashStorageWriter | None = None

    @property
    def rank(self) -> int:
        """Return this process's rank."""
        return process_info(self.folder, self._environ).rank

    def save(self, step: int, parts: Mapping[str, object], *, disk: bool, own: Collection[str] = ()) -> None:
        """Save parts in memory; training may continue when this returns. With `disk` they are also written to storage
        in the background.

        Otherwise they are written there only if training resumes from this step after a failure. own: names of parts
        whose tensors may differ between ranks, so that every byte is compared; equal parts are stored once.

        Raises BadState if a part has a value that cannot be saved. If a rank fails later, as without memory (NoMemory),
        all ranks raise torch's CheckpointException, which is no Exception, with the error of that rank.
        """
        state: dict[str, torch.Tensor] = {}
        contents: dict[str, str] = {}
        for name, part in parts.items():
            text, tensors = flatten(part)
            contents[name] = _content_sum(text, tensors.values(), name in own)
            key = _part_key(name, contents[name])
            state[key] = _byte_tensor(text.encode())
            state |= {f"{key}/{each}": tensor for each, tensor in tensors.items()}
        state[f"ranks/{self.rank}"] = _byte_tensor(msgspec.json.encode(_Index(contents)))
        writer = FlashStorageWriter(
            self.folder,
            step=step,
            disk=disk,
            keep=self._keep,
            every=self._every,
            replicas=self._replicas,
            environ=self._environ,
        )
        with in_phase(SAVING_PHASE), _without_warning():
            dcp.save(state, storage_writer=writer)
        self._writer = writer

    def load(self, is_loaded_in_other_world: Callable[[str], bool]) -> Step | None:
        """Load the newest step: from memory if all ranks hold it, else from storage. None if there is none.

        With the same number of ranks, a rank gets the parts that it saved. With another number of ranks, it gets those
        parts of all ranks for whose name `is_loaded_in_other_world` returns True.

        Raises BadCheckpoint if what is stored cannot be read, NewerFormat if only a newer version can read it, and
        StorageFailed if storage fails. If a rank cannot read its tensors, all ranks raise torch's CheckpointException.
        """
        reader = self._reader()
        if reader is None:
            return None
        tensor_metadata: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
        rank = process_info(self.folder, self._environ)
        indices = sorted(
            (each for each in tensor_metadata if each.startswith("ranks/")), key=lambda each: int(each[6:])
        )
        same_world = len(indices) == rank.world
        contents = _contents_of(
            _read_tensors(reader, tensor_metadata, [f"ranks/{rank.rank}"] if same_world else indices).values()
        )
        chosen = {
            name: _part_key(name, each)
            for name, each in contents.items()
            if same_world or is_loaded_in_other_world(name)
        }
        state = _read_tensors(reader, tensor_metadata, _keys_below(tensor_metadata, {*chosen.values()}))
        return Step(reader.step or 0, {name: _part(state, key) for name, key in chosen.items()}, same_world)

    def _reader(self) -> FlashStorageReader | None:
        """Open the newest step, which rank 0 chooses. None if there is none."""
        return choose_on_rank_0(
            process_info(self.folder, self._environ).world,
            lambda: FlashStorageReader(self.folder, environ=self._environ) or None,
            lambda found: (0, found.step or 0),
            lambda _, step: FlashStorageReader(self.folder, step=step, environ=self._environ),
        )

    def has_step(self) -> bool:
        """Return True if this rank finds a step in memory or storage.

        Raises BadCheckpoint if what is stored cannot be read, NewerFormat if only a newer version can read it, and
        StorageFailed if storage fails.
        """
        return bool(FlashStorageReader(self.folder, environ=self._environ))

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until this rank's part of the last save is in storage, if storage is its target; on rank 0, until the
        whole step is. timeout_s: None for no limit.

        A failed write is logged, not raised. Raises TimeoutError after `timeout_s` seconds, and DaemonLost if no daemon
        can be reached.
        """
        if self._writer is not None:
            self._writer.wait(timeout_s)


def _part_key(name: str, content: str) -> str:
    """Return the key of a part in the saved state. content: checksum of the part."""
    return f"parts/{name}@{content}"


def _byte_tensor(text: bytes) -> torch.Tensor:
    """Return a uint8 tensor with these bytes."""
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def _content_sum(text: str, tensors: Iterable[torch.Tensor], with_bytes: bool) -> str:
    """Return the checksum of a part; parts of several ranks with an equal checksum are saved as one.

    text: of the part's tree. The checksum covers values, types and shapes. It covers the bytes of all tensors only with
    `with_bytes`, else those of small byte tensors, which may be states of random number generators.
    """
    total = xxhash.xxh3_64(text.encode())
    for each in tensors:
        total.update(f"{each.dtype}{tuple(each.shape)}".encode())
        if with_bytes or (each.dtype is torch.uint8 and each.is_cpu and each.numel() <= _RNG_BYTES):
            flat = each.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
            total.update(flat.view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _read_tensors(
    reader: FlashStorageReader, tensor_metadata: Mapping[str, Any], keys: Iterable[str]
) -> dict[str, torch.Tensor]:
    """Read the tensors of these keys. Return them by key, on the CPU.

    Raises BadCheckpoint for a missing key, and torch's CheckpointException if any rank cannot read its tensors.
    """
    state: dict[str, torch.Tensor] = {}
    for key in keys:
        if key not in tensor_metadata or not hasattr(tensor_metadata[key], "properties"):
            raise BadCheckpoint(f"step {reader.step} has no tensor {key}")
        state[key] = torch.empty(tensor_metadata[key].size, dtype=tensor_metadata[key].properties.dtype)
    with _without_warning():
        dcp.load(state, storage_reader=reader)
    return state


def _part(state: Mapping[str, torch.Tensor], key: str) -> object:
    """Return one part of a loaded state. The tensor at `key` has its tree as text; the tensors at `key/...` are its
    own. Raises BadCheckpoint if the text is no valid tree.
    """
    tensors = {each[len(key) + 1 :]: tensor for each, tensor in state.items() if each.startswith(f"{key}/")}
    try:
        text = bytes(state[key].numpy()).decode()
    except UnicodeDecodeError as error:
        raise BadCheckpoint(f"{key} is no text: {error}") from error
    return unflatten(text, tensors)


def _keys_below(keys: Iterable[str], parts: Collection[str]) -> list[str]:
    """Return the keys of these parts: each part's own key, and those of its tensors."""
    starts = tuple(f"{part}/" for part in parts)
    return [key for key in keys if key in parts or key.startswith(starts)]


def _contents_of(indices: Iterable[torch.Tensor]) -> dict[str, str]:
    """Return the checksums of all parts by name, from the indices of ranks. The first rank counts for a part."""
    contents: dict[str, str] = {}
    for each in indices:
        contents = _decode_index(each).parts | contents
    return contents


def _decode_index(tensor: torch.Tensor) -> _Index:
    """Decode the index of a rank: the parts that it saved, with checksums. Raises BadCheckpoint for other bytes."""
    try:
        return _decoder.decode(bytes(tensor.numpy()))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadCheckpoint(f"not the index of a rank: {error}") from error


class _without_warning(warnings.catch_warnings):  # noqa: N801 - a context manager
    """Suppresses the warnings of torch.distributed about a process that runs alone."""

    def __enter__(self) -> None:
        super().__enter__()
        warnings.filterwarnings("ignore", "torch.distributed is")
