"""Encodes the metadata of torch.distributed.checkpoint (DCP) as JSON: the chunks of each tensor and the ranks that
saved them.

The planners here also save values that are no tensors as JSON. The JSON cannot name a class or a function. The shard
itself has the position of each chunk, by `chunk_name`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_load_plan,
)
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)

from turnout.launcher.checkpoint.engine.state_dict import NAMES, flatten, restore_state
from turnout.launcher.checkpoint.format.shard_file import MAX_DIMENSIONS, Layout, sum_of
from turnout.launcher.errors import BadCheckpoint, BadState, LauncherError, NewerFormat

VERSION = 1  # each version has its golden checkpoint in tests/launcher/checkpoint/engine/golden
MAX_BYTES = 1 << 30  # of the JSON
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in NAMES}
_FORMATS = {
    str(each).removeprefix("torch."): each
    for each in (torch.contiguous_format, torch.channels_last, torch.preserve_format)
}
HAS_STRIDES = "strides" in TensorProperties.__dataclass_fields__  # torch 2.6 does not have it
_NO_TENSORS = Layout((), 0)

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 60)]
_Sizes = Annotated[tuple[_Count, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A rectangular part of a tensor."""

    offsets: _Sizes  # by dimension
    sizes: _Sizes  # by dimension
    rank: _Count  # of the shard that holds it


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A tensor of all ranks together, with torch's properties of it."""

    dtype: str  # torch's name
    size: _Sizes  # of the whole tensor
    chunks: list[Chunk]
    requires_grad: bool = False
    memory_format: str = "contiguous_format"
    pin_memory: bool = False
    strides: _Sizes | None = None


class _Versioned(msgspec.Struct, frozen=True):
    """The field that every version of a table has."""

    version: int


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole DCP checkpoint: its tensors, its other values, and the ranks that saved them."""

    version: int
    # unique to each save, so that shards of two saves are never mixed
    save: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    world: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
    tensors: dict[str, Tensor]  # by key
    values: dict[str, _Count]  # the rank that saved the value, by key
    paths: dict[str, list[str | int]]  # its path in the nested state, by key

    @property
    def shape(self) -> int:
        """Return a checksum of everything but `save`. It is equal for two saves that one plan can read."""
        return sum_of(msgspec.json.encode(msgspec.structs.replace(self, save="0" * 32)))


_versioned, _table = msgspec.json.Decoder(_Versioned), msgspec.json.Decoder(Table)


def chunk_name(key: str, offsets: Iterable[int]) -> str:
    """Return the name of a chunk in its shard, different for any two chunks. key: of its tensor."""
    return f"{key}[{','.join(map(str, offsets))}]"


def table_of(plans: Sequence[SavePlan], save: str) -> Table:
    """Build the table of a save. plans: of all ranks, by rank; no two of them have the same item. save: its id.

    Raises BadState for a tensor whose dtype or layout a checkpoint cannot have.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, int] = {}
    paths: dict[str, list[str | int]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                values[item.index.fqn] = rank
            else:
                _add_chunk(tensors, item, rank)
        if isinstance(plan.planner_data, dict):
            paths |= {key: list(path) for key, path in plan.planner_data.items() if _is_path(path)}
    return Table(VERSION, save, len(plans), tensors, values, paths)


def _add_chunk(tensors: dict[str, Tensor], item: WriteItem, rank: int) -> None:
    """Add the chunk of a plan's item, which `rank` saves, to its tensor in `tensors`, which is added if it is missing.

    Raises BadState if a checkpoint cannot have the tensor's dtype or layout.
    """
    key, about = item.index.fqn, item.tensor_data
    properties = about.properties
    if properties.dtype not in NAMES:
        raise BadState(key, f"a checkpoint cannot have a tensor of {properties.dtype}")
    if properties.layout is not torch.strided:
        raise BadState(key, f"a checkpoint cannot have a tensor of layout {properties.layout}")
    if key not in tensors:
        strides = getattr(properties, "strides", None)
        tensors[key] = Tensor(
            str(properties.dtype).removeprefix("torch."),
            tuple(about.size),
            [],
            bool(properties.requires_grad),
            str(properties.memory_format).removeprefix("torch."),
            bool(properties.pin_memory),
            None if strides is None else tuple(strides),
        )
    tensors[key].chunks.append(Chunk(tuple(about.chunk.offsets), tuple(about.chunk.sizes), rank))


def _is_path(path: object) -> bool:
    """Return True for a path of keys in a nested state."""
    return isinstance(path, tuple | list) and all(type(key) in (str, int) for key in path)


def write(table: Table) -> bytes:
    """Encode a table as bytes. Raises BadState if a key is not valid Unicode, or for more than MAX_BYTES bytes."""
    try:
        text = msgspec.json.encode(table)
    except UnicodeEncodeError as error:
        raise BadState("", f"a key that is no Unicode: {error}") from error
    if len(text) > MAX_BYTES:
        raise BadState("", f"the metadata of all chunks has {len(text)} bytes: {MAX_BYTES} at most")
    return text


def read(text: bytes | memoryview) -> Table:
    """Decode a table. Raises NewerFormat if its version is newer than VERSION.

    Raises BadCheckpoint if the text is not a table of this version, if its parts contradict each other, or if this
    torch lacks a dtype or memory format.
    """
    try:
        version = _versioned.decode(text).version
        if version > VERSION:
            raise NewerFormat("the metadata of a checkpoint", version, VERSION)
        table = _table.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadCheckpoint(f"not the metadata of a checkpoint: {error}") from error
    if table.version != VERSION:
        raise BadCheckpoint(f"metadata of version {table.version}: this is version {VERSION}")
    _check_consistency(table)
    return table


def _check_consistency(table: Table) -> None:
    """Raise BadCheckpoint if parts of a table contradict each other, or this torch lacks a dtype or memory format."""
    if any(rank >= table.world for rank in table.values.values()) or table.tensors.keys() & table.values.keys():
        raise BadCheckpoint("the metadata names a rank outside the world, or uses one key for a tensor and a value")
    for key, tensor in table.tensors.items():
        for name, known in ((tensor.dtype, _DTYPES), (tensor.memory_format, _FORMATS)):
            if name not in known:
                raise BadCheckpoint(f"{key}: this torch has no {name}")
        for chunk in tensor.chunks:
            if not _is_within(chunk, tensor) or chunk.rank >= table.world:
                raise BadCheckpoint(f"{key}: a chunk at {chunk.offsets} is not in a tensor of {tensor.size}")


def _is_within(chunk: Chunk, tensor: Tensor) -> bool:
    """Return True if a chunk lies within its tensor."""
    if not len(chunk.offsets) == len(chunk.sizes) == len(tensor.size):
        return False
    return all(
        offset + part <= size for offset, part, size in zip(chunk.offsets, chunk.sizes, tensor.size, strict=True)
    )


def metadata_of(table: Table) -> Metadata:
    """Convert a table to the metadata that DCP's planners need."""
    entries: dict[str, Any] = {key: BytesStorageMetadata() for key in table.values}
    for key, tensor in table.tensors.items():
        strides = {"strides": tensor.strides} if HAS_STRIDES else {}
        properties = TensorProperties(
            dtype=_DTYPES[tensor.dtype],
            layout=torch.strided,
            requires_grad=tensor.requires_grad,
            memory_format=_FORMATS[tensor.memory_format],
            pin_memory=tensor.pin_memory,
            **strides,
        )
        chunks = [ChunkStorageMetadata(torch.Size(each.offsets), torch.Size(each.sizes)) for each in tensor.chunks]
        entries[key] = TensorStorageMetadata(properties, torch.Size(tensor.size), chunks)
    return Metadata(entries, planner_data={key: tuple(path) for key, path in table.paths.items()})


class FlashSavePlanner(DefaultSavePlanner):  # type: ignore[misc, unused-ignore]
    """DCP's default save planner, but values that are not tensors are saved as JSON."""

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:
        """Return the JSON text of a value as a BytesIO; a tensor unchanged.

        Raises BadState for a value that is not supported, also for a tensor in a tuple. write_item: says which of the
        two. object: the value or tensor.
        """
        if write_item.type is not WriteItemType.BYTE_IO:
            return object
        key = write_item.index.fqn
        try:
            text, tensors = flatten(object)
        except BadState as error:
            raise BadState(f"{key}/{error.path}".rstrip("/"), error.fault) from error
        if tensors:
            raise BadState(f"{key}/{next(iter(tensors))}".rstrip("/"), "a tensor in a tuple: use a list or a dict")
        return io.BytesIO(text.encode())


class FlashLoadPlanner(DefaultLoadPlanner):  # type: ignore[misc, unused-ignore]
    """DCP's default load planner, for what FlashSavePlanner saved."""

    def create_local_plan(self) -> LoadPlan:
        """Return the plan of what this rank reads. Raises RuntimeError for a key that is not stored, unless
        `allow_partial_load` is set.

        This rank may lack a stored key, such as an FSDP1 parameter with fewer rows than ranks. DCP's own planner would
        then treat the checkpoint as one of torch 2.3, which stored lists in one piece. No checkpoint here does.
        """
        return create_default_local_load_plan(self.state_dict, self.metadata, not self.allow_partial_load)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Decode the text of a value and put the value into the state. Raises BadCheckpoint if the text is invalid.

        read_item: names its place. value: the text as bytes.
        """
        try:
            value_read = restore_state(value.read().decode(), _NO_TENSORS, memoryview(b""), 0)
        except UnicodeDecodeError as error:
            raise BadCheckpoint(f"{read_item.dest_index.fqn}: {error}") from error
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], value_read)
        else:
            self.state_dict[read_item.dest_index.fqn] = value_read


def text_of(planner: SavePlanner, item: WriteItem) -> str:
    """Return the text of a value that is no tensor, in place of DCP's default planner, which would pickle it.

    Raises BadState for a value that is not supported, and LauncherError for a planner with its own encoding. item: of
    the save plan that names the value.
    """
    kind = type(planner)
    if isinstance(planner, FlashSavePlanner):
        return str(planner.resolve_data(item).getvalue().decode())
    has_own_encoding = getattr(kind, "resolve_data", None) is not DefaultSavePlanner.resolve_data
    if has_own_encoding or kind.transform_object is not DefaultSavePlanner.transform_object:
        raise LauncherError(f"{kind.__name__} turns values into bytes in its own way: make it a FlashSavePlanner")
    value = planner.lookup_object(item.index)
    return str(FlashSavePlanner.transform_object(planner, item, value).getvalue().decode())


def load_text(planner: LoadPlanner, item: ReadItem, text: str) -> None:
    """Pass a value's text to the planner, without DCP's unpickling.

    Raises BadCheckpoint if the text is invalid, and LauncherError for a planner with its own decoding. item: of the
    load plan that names the value.
    """
    value = io.BytesIO(text.encode())
    if isinstance(planner, FlashLoadPlanner):
        planner.load_bytes(item, value)
    elif getattr(type(planner), "load_bytes", None) is DefaultLoadPlanner.load_bytes:
        FlashLoadPlanner.load_bytes(planner, item, value)
    else:
        raise LauncherError(f"{type(planner).__name__} reads values in its own way: make it a FlashLoadPlanner")
