"""Encodes and decodes the header of a safetensors file, which has the position of a shard's tensors; computes
checksums.

A shard has the same bytes in memory and in storage: 8 bytes of length, a JSON header padded with spaces to a page, then
the tensors without gaps. Tensors with the widest elements come first, so each is aligned. Only headers that could have
been written here are read. The header is part of the shard's checksums, which find a flipped letter in a name. Source:
safetensors' format, README.md and tensor.rs of its repository. The checksums are 64-bit xxh3 of each chunk. They find
accidents such as a flipped byte or a torn write, not forgery: a writer of checkpoints can also write checksums.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import xxhash

from turnout.launcher.errors import BadCheckpoint, BadState

CHUNK_BYTES = 4 << 20  # bytes with one checksum: hashed in under 1 ms, while other threads wait for the GIL

BLOCK_BYTES = 256 << 10  # unit of a partial read: at most two blocks are read in excess

MAX_BLOCKS = 1 << 15  # per shard: 256 KiB of checksums

Buffer: TypeAlias = bytes | bytearray | memoryview  # contiguous


def sum_of(data: Buffer) -> int:
    """Return the 64-bit xxh3 of the data, 0 to 2**64 - 1."""
    return int(xxhash.xxh3_64_intdigest(data))


def sums_of(view: memoryview, chunk_bytes: int = CHUNK_BYTES) -> list[int]:
    """Return one checksum per chunk, in order; [] for no bytes. The last chunk may be shorter. chunk_bytes: >= 1."""
    if not view.nbytes:  # an empty array may have no shape to cast from
        return []
    octets = view.cast("B")
    return [sum_of(octets[at : at + chunk_bytes]) for at in range(0, octets.nbytes, chunk_bytes)]


def block_bytes_of(size_bytes: int) -> int:
    """Return the block size for the fine checksums of a shard: BLOCK_BYTES, doubled until MAX_BLOCKS blocks are enough.

    size_bytes: of the shard. At most CHUNK_BYTES, since chunks have checksums anyway.
    """
    block_bytes = BLOCK_BYTES
    while block_bytes < CHUNK_BYTES and size_bytes > MAX_BLOCKS * block_bytes:
        block_bytes *= 2
    return block_bytes


PAGE_BYTES = 4_096

MAX_HEAD_BYTES = 100_000_000 // PAGE_BYTES * PAGE_BYTES  # safetensors' limit of the JSON header

MAX_DATA_BYTES = (1 << 40) - (1 << 30)  # a generation has 1 TiB, head and checksums included

MAX_DIMENSIONS = 64  # as in torch

METADATA = "__metadata__"

_LENGTH_BYTES = 8

# Bytes of one element. Types below eight bits are left out: their tensors are saved as U8.
DTYPES: Mapping[str, int] = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
    "C64": 8,
}


class Spec(msgspec.Struct, frozen=True, gc=False):
    """A tensor to lay out. dtype: a key of DTYPES. shape: () for a scalar."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A tensor with its byte range from start to end, counted from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The positions of all tensors of a shard, without gaps."""

    entries: tuple[Entry, ...]  # in the order of their bytes
    data_bytes: int  # of all tensors


def bytes_of(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Return the bytes of a tensor, None if a shard cannot have it.

    That is the case for an unknown dtype, a negative size, more than MAX_DIMENSIONS dimensions, and a tensor that is
    too large for a shard.
    A dimension of 0 does not bypass the limit: the product of the other dimensions is bounded too, since readers
    multiply in 64 bits. shape: () for a scalar.
    """
    span = each = DTYPES.get(dtype, 0)
    for size in shape:
        if size < 0:
            return None
        span, each = span * max(size, 1), each * size
        if span > MAX_DATA_BYTES:  # check early: the product of hostile dimensions would be a huge number
            return None
    return each if span and len(shape) <= MAX_DIMENSIONS else None


def _fault_of(spec: Spec) -> str:
    """Return why a shard cannot have this tensor. spec: of a tensor for which bytes_of() is None."""
    if spec.dtype not in DTYPES:
        return f"{spec.dtype} is not supported: {', '.join(DTYPES)} are"
    if len(spec.shape) > MAX_DIMENSIONS:
        return f"the shape has {len(spec.shape)} dimensions: {MAX_DIMENSIONS} at most"
    if any(size < 0 for size in spec.shape):
        return f"shape {spec.shape} has a negative size"
    return f"{spec.dtype} of shape {spec.shape} needs more than {MAX_DATA_BYTES} bytes"


def pack(specs: Iterable[Spec]) -> Layout:
    """Lay tensors out one after another without gaps, the widest elements first, else in the given order.

    Raises BadState for an unknown dtype, for a shape with a negative size or more than MAX_DIMENSIONS dimensions, for a
    name that is used twice, reserved or not valid Unicode, and if the tensors need more than MAX_DATA_BYTES.
    """
    entries, names, offset = list[Entry](), {METADATA}, 0
    for spec in sorted(specs, key=lambda spec: -DTYPES.get(spec.dtype, 0)):
        size = bytes_of(spec.dtype, spec.shape)
        if size is None:
            raise BadState(spec.name, _fault_of(spec))
        if spec.name in names or not _is_text(spec.name):
            raise BadState(spec.name, "no tensor can have this name, or another one has it")
        names.add(spec.name)
        entries.append(Entry(spec.name, spec.dtype, spec.shape, offset, offset + size))
        offset += size
    if offset > MAX_DATA_BYTES:
        raise BadState("", f"{offset} bytes: a shard has {MAX_DATA_BYTES} at most")
    return Layout(tuple(entries), offset)


def head_of(layout: Layout, metadata: Mapping[str, str]) -> bytes:
    """Encode the header, padded to a multiple of PAGE_BYTES. Raises BadState if it is too long or text is not valid
    Unicode.

    metadata: text by text, {} for none.
    """
    try:
        about = msgspec.json.encode(dict(metadata)) if metadata else b""
    except UnicodeEncodeError as error:
        raise BadState(METADATA, f"text that is no Unicode: {error}") from error
    return join_head(about, encode_layout(layout))


def encode_layout(layout: Layout) -> bytes:
    """Encode the tensors of a layout as a JSON object.

    This part of the header is the same for all shards of a layout.
    """
    return msgspec.json.encode(
        {
            each.name: {"dtype": each.dtype, "shape": each.shape, "data_offsets": (each.start, each.end)}
            for each in layout.entries
        }
    )


def join_head(about: bytes, tensors: bytes) -> bytes:
    """Join metadata and tensors to a header. about: the metadata as a JSON object, b"" for none. Raises BadState if too
    long.
    """
    if about:
        tensors = b'{"%b":%b%b' % (METADATA.encode(), about, b"," + tensors[1:] if tensors != b"{}" else b"}")
    size = _padded_bytes(len(tensors))
    if size > MAX_HEAD_BYTES:
        raise BadState("", f"names and plain values are {len(tensors)} bytes: {MAX_HEAD_BYTES} at most; use tensors")
    return (size - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "little") + tensors.ljust(size - _LENGTH_BYTES)


def escape_text(text: bytes) -> bytes:
    """Escape JSON text, or a part of it, for use inside a JSON string. Parts can be escaped separately and joined."""
    return msgspec.json.encode(text.decode())[1:-1]


def read_head(data: Buffer) -> tuple[Layout, dict[str, str], int]:
    """Decode the header at the beginning of `data`; return the layout, the metadata and the header's length in bytes.

    Raises BadCheckpoint unless it is a complete header whose tensors lie as `pack` places them.
    """
    view = memoryview(data).cast("B")
    size = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
    if not PAGE_BYTES <= size <= min(MAX_HEAD_BYTES, view.nbytes):
        raise BadCheckpoint(f"a head of {size} bytes in {view.nbytes}: a page is the least, {MAX_HEAD_BYTES} the most")
    try:
        text = bytes(view[_LENGTH_BYTES:size]).rstrip(b" ")
        head = json.loads(text.decode(), object_pairs_hook=_unique_names)
    except (ValueError, RecursionError) as error:
        raise BadCheckpoint(f"the head is no JSON: {error}") from error
    if not isinstance(head, dict) or text[:1] + text[-1:] != b"{}" or _padded_bytes(len(text)) != size:
        raise BadCheckpoint("the head is no object, or is not filled up to a whole page")
    metadata = head.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(_is_text(text) for pair in metadata.items() for text in pair):
        raise BadCheckpoint("the metadata is not text by text")
    return _layout_of(head), metadata, size


def _layout_of(head: Mapping[str, object]) -> Layout:
    """Return the layout that the head of a shard describes.

    Raises BadCheckpoint unless the tensors follow each other without gaps, widest type first.
    """
    entries, offset, widest = list[Entry](), 0, max(DTYPES.values())
    for name, description in head.items():
        entry = _entry(name, description, offset)
        if entry is None or DTYPES[entry.dtype] > widest:
            raise BadCheckpoint(f"tensor {name[:64]!r} is not described as one that was packed at {offset}")
        offset, widest = entry.end, DTYPES[entry.dtype]
        entries.append(entry)
    if offset > MAX_DATA_BYTES:
        raise BadCheckpoint(f"{offset} bytes: a shard has {MAX_DATA_BYTES} at most")
    return Layout(tuple(entries), offset)


def _entry(name: str, description: object, offset: int) -> Entry | None:
    """Return the entry of a tensor in the header; None if its description is invalid or its bytes do not begin at
    `offset`.

    description: as decoded from JSON: dtype, shape and data_offsets, in this order.
    """
    if (
        not isinstance(description, dict)
        or list(description) != ["dtype", "shape", "data_offsets"]
        or not _is_text(name)
    ):
        return None
    dtype, shape, offsets = description.values()
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(offsets, list):
        return None
    if not all(type(each) is int for each in (*shape, *offsets)):  # bool is an int in Python, but not here
        return None
    size = bytes_of(dtype, tuple(shape))
    return (
        Entry(name, dtype, tuple(shape), offset, offset + size)
        if size is not None and offsets == [offset, offset + size]
        else None
    )


def _padded_bytes(text_bytes: int) -> int:
    """Return the bytes of a header whose JSON has `text_bytes` bytes: with its length, rounded up to whole pages."""
    return -(-(_LENGTH_BYTES + text_bytes) // PAGE_BYTES) * PAGE_BYTES


def _is_text(value: object) -> bool:
    """Return True if a value is a string that UTF-8 can encode."""
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def _unique_names(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return JSON pairs as a dictionary. Raises ValueError if a name appears twice."""
    dictionary = dict(pairs)
    if len(dictionary) != len(pairs):
        raise ValueError("a name is there twice")
    return dictionary


KEY = "turnout"  # key in the header's metadata

MARK = '["dict","dcp",1,'  # how state_tree.flatten begins a state of torch.distributed.checkpoint's writer


def is_reshardable(shard: Buffer) -> bool:
    """Return True if the shard was saved through torch.distributed.checkpoint, so that any world can read parts of it.

    False if the bytes are no valid shard.
    """
    try:
        text = json.loads(read_head(shard)[1].get(KEY, ""))["tree"]
    except (BadCheckpoint, ValueError, KeyError, TypeError, RecursionError):
        return False
    return isinstance(text, str) and text.startswith(MARK)
