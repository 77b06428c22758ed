"""Merge shards into one dataset in the order of the input, in constant memory.

`.bin` is complete on the disk before `.idx` appears, so a reader that finds an `.idx` finds the whole dataset. In this
module `shards` are chunks with their records, in the order of the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from turnout.preprocess import storage
from turnout.preprocess.indexed_dataset import MAX_SEQUENCE_TOKENS, Header, dtype_for, pointers
from turnout.preprocess.model import FaultReason, ShardRecord, TextChunk
from turnout.preprocess.shards import tokens_path

BATCH_SEQUENCES = 1 << 20  # sequences whose index entries are in memory at once, 20 bytes each


def dataset_path(prefix: str, key: str, suffix: str) -> str:
    """Return the path of a dataset's file: `<prefix>_<key>_document.<suffix>`. Source: DL-76"""
    return f"{prefix}_{key}_document.{suffix}"


def merge_key(
    prefix: str,
    folder: str,
    key_index: int,
    name: str,
    vocabulary_size: int,
    shards: Sequence[tuple[TextChunk, ShardRecord]],
) -> Header:
    """Write the dataset of one key, `.bin` and `.idx`, from finished shards, in their order, and return its header.

    prefix: of the output. folder: of the shards. key_index, name: the key's position and text. vocabulary_size: one
    more than the highest token id. shards: as complete_documents() returns them. Raises OSError if storage fails.
    """
    dtype = dtype_for(vocabulary_size)
    with storage.atomic_file(dataset_path(prefix, name, "bin"), durable=True, staging=folder) as file:
        for _, record in shards:
            totals = record.keys[key_index]
            if totals.tokens:
                storage.append_first_bytes(
                    tokens_path(folder, record.index, key_index), totals.tokens * dtype.itemsize, file
                )
    sequences = sum(_sequences_of(chunk, record, key_index) for chunk, record in shards)
    header = Header(dtype, sequences, sequences)
    with storage.atomic_file(dataset_path(prefix, name, "idx"), durable=True, staging=folder) as file:
        _write_index(file, header, folder, key_index, shards)
    return header


def complete_documents(
    shards: Sequence[tuple[TextChunk, ShardRecord]],
) -> list[tuple[TextChunk, ShardRecord]]:
    """Return the shards without the parts of long documents that are left out, in the same order.

    A long document is left out as a whole if one of its parts has a fault, or if it has too many tokens.
    """
    result: list[tuple[TextChunk, ShardRecord]] = []
    parts_of_document: list[tuple[TextChunk, ShardRecord]] = []
    for chunk, record in shards:
        if chunk.part is None:
            result.append((chunk, record))
            continue
        parts_of_document.append((chunk, record))
        if chunk.part.is_last:
            if is_complete(record for _, record in parts_of_document):
                result += parts_of_document
            parts_of_document = []
    return result


def is_complete(parts: Iterator[ShardRecord]) -> bool:
    """Return True if the parts of a long document can become one sequence. parts: the records of all its parts."""
    records = list(parts)
    tokens = sum(record.keys[0].tokens for record in records)
    return not any(record.fault_counts for record in records) and tokens <= MAX_SEQUENCE_TOKENS


def fault_of_cut_document(records: Sequence[ShardRecord]) -> str:
    """Return the FaultReason value of a long document that is_complete() rejects. records: of all its parts."""
    reasons = [reason for record in records for reason in record.fault_counts]
    return reasons[0] if reasons else FaultReason.DOCUMENT_TOO_LONG.value


def _sequences_of(chunk: TextChunk, record: ShardRecord, key_index: int) -> int:
    """Return how many sequences of the dataset end in a shard. key_index: the position of the key.

    A long document is one sequence, which ends in the shard of its last part.
    """
    if chunk.part is None:
        return record.keys[key_index].sequences
    return int(chunk.part.is_last)


def _lengths(
    folder: str, key_index: int, itemsize: int, shards: Sequence[tuple[TextChunk, ShardRecord]]
) -> Iterator[Any]:
    """Yield the numbers of tokens of the dataset's sequences, in their order, as int32 arrays.

    folder: of the shards. key_index: the position of the key. itemsize: bytes of a token. shards: as
    complete_documents() returns them.
    """
    document_tokens = 0
    for chunk, record in shards:
        totals = record.keys[key_index]
        if chunk.part is not None:
            document_tokens += totals.tokens
            if chunk.part.is_last:
                yield np.array([document_tokens], "<i4")
                document_tokens = 0
            continue
        offset = totals.tokens * itemsize
        end = offset + 4 * totals.sequences
        path = tokens_path(folder, record.index, key_index)
        while offset < end:
            batch_end = min(end, offset + 4 * BATCH_SEQUENCES)
            yield np.frombuffer(storage.read_range(path, offset, batch_end), "<i4")
            offset = batch_end


def _write_index(
    file: IO[bytes], header: Header, folder: str, key_index: int, shards: Sequence[tuple[TextChunk, ShardRecord]]
) -> None:
    """Write an `.idx` file from its beginning to its end: header, lengths, pointers, entries of the documents.

    file: open and empty. header: of the dataset. folder: of the shards. key_index: the position of the key. shards: as
    complete_documents() returns them.
    """
    itemsize = header.dtype.itemsize
    storage.write_all(file, header.pack())
    for lengths in _lengths(folder, key_index, itemsize, shards):
        storage.write_all(file, np.ascontiguousarray(lengths, "<i4"))
    start = 0
    for lengths in _lengths(folder, key_index, itemsize, shards):
        storage.write_all(file, pointers(lengths, start, itemsize))
        start += int(lengths.sum(dtype=np.int64)) * itemsize
    for first in range(0, header.documents + 1, BATCH_SEQUENCES):
        storage.write_all(file, _range(first, min(header.documents + 1, first + BATCH_SEQUENCES)))


def _range(first: int, last: int) -> NDArray[np.int64]:
    """Return the numbers from `first` to before `last`, little-endian."""
    return np.arange(first, last, dtype="<i8")
