"""Megatron's indexed dataset as bytes: `.bin` has the token ids of all sequences, `.idx` the place of each sequence.

Everything is little-endian. `.idx` is: magic, version, code of the dtype, sequences S, entries D of the documents;
then int32 lengths[S], int64 byte offsets[S], int64 documents[D]. The documents begin with 0 and then hold the number
of sequences after each document, so D is documents + 1. Here every document is one sequence.
Source: Megatron-LM d98e8a64dd `megatron/core/datasets/indexed_dataset.py`; docs/facts/job-kinds.md section 2.1
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turnout.preprocess.errors import BrokenDataset

MAGIC = b"MMIDIDX\x00\x00"
OLD_MAGIC = b"TNTIDX\x00\x00"
VERSION = 1  # of the format
HEADER_BYTES = 34  # the fixed part of `.idx`
_HEADER = struct.Struct("<9sQBQQ")
# The dtype of each code. We write 8 and 4; other programs also write the rest.
DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}
SMALL_VOCABULARY = 65500  # ids below fit uint16. Source: Megatron `DType.optimal_dtype`, gpt-neox `best_fitting_dtype`
MAX_SEQUENCE_TOKENS = (1 << 31) - 1  # a length is an int32


def dtype_for(vocabulary_size: int) -> np.dtype[Any]:
    """Return the dtype of token ids: uint16 if `vocabulary_size` is below SMALL_VOCABULARY, else int32.

    vocabulary_size: one more than the highest id. Source: DL-77
    """
    return DTYPES[8] if vocabulary_size < SMALL_VOCABULARY else DTYPES[4]


class Header(NamedTuple):
    """The fixed part of an `.idx` file."""

    dtype: np.dtype[Any]  # of the token ids
    sequences: int  # the number of sequences, >= 0
    documents: int  # the number of documents, >= 0

    @property
    def pointers_at(self) -> int:
        """The offset in the file of the first pointer."""
        return HEADER_BYTES + 4 * self.sequences

    @property
    def documents_at(self) -> int:
        """The offset in the file of the first entry of the documents."""
        return HEADER_BYTES + 12 * self.sequences

    @property
    def size_bytes(self) -> int:
        """The size of the whole `.idx` file."""
        return self.documents_at + 8 * (self.documents + 1)

    def pack(self) -> bytes:
        """Return the header's bytes."""
        return _HEADER.pack(MAGIC, VERSION, _CODES[self.dtype], self.sequences, self.documents + 1)


def read_header(raw: bytes, path: str) -> Header:
    """Return the header in the first HEADER_BYTES of an `.idx` file.

    path: for the message. Raises BrokenDataset if the bytes are too few or are no header of this version: another
    magic, version or code of the dtype, or no entry of the documents.
    """
    if raw[: len(OLD_MAGIC)] == OLD_MAGIC:
        raise BrokenDataset(f"{path}: an old dataset (magic TNTIDX, --dataset-impl lazy or cached); only mmap is read")
    if len(raw) < HEADER_BYTES:
        raise BrokenDataset(f"{path}: {len(raw)} bytes, shorter than the header of {HEADER_BYTES}")
    magic, version, code, sequences, entries = _HEADER.unpack(raw[:HEADER_BYTES])
    if magic != MAGIC:
        raise BrokenDataset(f"{path}: not an indexed dataset, the magic is {magic!r}")
    if version != VERSION:
        raise BrokenDataset(f"{path}: version {version}, only {VERSION} is known")
    if code not in DTYPES:
        raise BrokenDataset(f"{path}: code {code} of the dtype is unknown for token ids")
    if entries < 1:
        raise BrokenDataset(f"{path}: no entry for the start of the first document")
    return Header(DTYPES[code], sequences, entries - 1)


def pointers(lengths: NDArray[np.int32], start: int, itemsize: int) -> NDArray[np.int64]:
    """Return the byte offset in `.bin` of each sequence.

    lengths: tokens of each sequence. start: the byte offset of the first sequence. itemsize: bytes of a token.
    """
    ends = np.cumsum(lengths, dtype=np.int64) * itemsize
    result = np.empty(len(lengths), dtype="<i8")
    result[:1] = 0
    result[1:] = ends[:-1]
    return result + start
