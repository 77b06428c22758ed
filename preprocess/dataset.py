"""Read an indexed dataset, and check one: sizes, offsets, counts, ids and the last document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnout.preprocess import storage
from turnout.preprocess.errors import BrokenDataset
from turnout.preprocess.indexed_dataset import HEADER_BYTES, Header, read_header

BATCH_ENTRIES = 1 << 20  # entries of an index that are read at once


class Dataset:
    """An indexed dataset of any program. The index and the tokens are read only when they are used."""

    def __init__(self, prefix: str) -> None:
        """Read the header, and check the size of the index. prefix: the path of `.bin` and `.idx` without suffix.

        Raises BrokenDataset if a file is missing, or if the header is invalid or does not agree with the size. Raises
        OSError if storage fails.
        """
        self.bin_path, self.idx_path = f"{prefix}.bin", f"{prefix}.idx"
        for path in (self.idx_path, self.bin_path):
            if not storage.exists(path):
                raise BrokenDataset(f"{path}: there is no such file")
        self.idx_bytes, self.bin_bytes = storage.size_of(self.idx_path), storage.size_of(self.bin_path)
        head = storage.read_range(self.idx_path, 0, min(HEADER_BYTES, self.idx_bytes))
        self.header: Header = read_header(head, self.idx_path)
        if self.idx_bytes not in (self.header.size_bytes, self.header.size_bytes + self.header.sequences):
            raise BrokenDataset(
                f"{self.idx_path}: {self.idx_bytes} bytes, but {self.header.sequences} sequences and"
                f" {self.header.documents} documents take {self.header.size_bytes}"
            )

    def __len__(self) -> int:
        """Return the number of sequences."""
        return self.header.sequences

    def __getitem__(self, sequence: int) -> NDArray[Any]:
        """Return the token ids of one sequence. Raises OSError if storage fails.

        sequence: its index, from 0 to len(self) - 1. The index is not checked: a larger one gives wrong ids.
        """
        (length,) = self._read_entries(HEADER_BYTES + 4 * sequence, 1, "<i4")
        (start,) = self._read_entries(self.header.pointers_at + 8 * sequence, 1, "<i8")
        raw = storage.read_range(self.bin_path, int(start), int(start) + int(length) * self.header.dtype.itemsize)
        return np.frombuffer(raw, self.header.dtype)

    def batches(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """Yield (lengths, pointers) of all sequences in their order, at most BATCH_ENTRIES sequences at once.

        Lengths are numbers of tokens; pointers are byte offsets in `.bin`.
        """
        for first in range(0, self.header.sequences, BATCH_ENTRIES):
            count = min(BATCH_ENTRIES, self.header.sequences - first)
            yield (
                self._read_entries(HEADER_BYTES + 4 * first, count, "<i4"),
                self._read_entries(self.header.pointers_at + 8 * first, count, "<i8"),
            )

    def document_entries(self) -> Iterator[NDArray[np.int64]]:
        """Yield the entries of the documents as int64 arrays, at most BATCH_ENTRIES at once.

        In a valid dataset the first entry is 0; then each document has the number of sequences up to its end.
        """
        for first in range(0, self.header.documents + 1, BATCH_ENTRIES):
            count = min(BATCH_ENTRIES, self.header.documents + 1 - first)
            yield self._read_entries(self.header.documents_at + 8 * first, count, "<i8")

    def _read_entries(self, offset: int, count: int, dtype: str) -> NDArray[Any]:
        """Return an array of the index file. offset: of its first byte. count: of its entries."""
        width = np.dtype(dtype).itemsize
        return np.frombuffer(storage.read_range(self.idx_path, offset, offset + count * width), dtype)


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """The counts of a dataset that has passed a check."""

    prefix: str  # the path of `.bin` and `.idx` without these suffixes
    dtype: str  # the numpy name of the type of token ids
    sequences: int
    documents: int
    tokens: int
    shortest: int  # tokens of the shortest sequence, 0 without sequences
    longest: int  # tokens of the longest sequence, 0 without sequences
    highest_id: int  # the highest token id, -1 without tokens
    last_document: tuple[int, ...]  # the last ids of the last sequence, at most LAST_IDS

    def text(self) -> str:
        """Return the summary of a dataset that passed the check, one fact in each line."""
        mean = self.tokens / self.sequences if self.sequences else 0.0
        return "\n".join(
            [
                f"{self.prefix}: valid",
                f"  documents   {self.documents:,} in {self.sequences:,} sequences",
                f"  tokens      {self.tokens:,} of {self.dtype}, highest id {self.highest_id:,}",
                f"  lengths     {self.shortest:,} to {self.longest:,} tokens, {mean:,.1f} on average",
                f"  last ids    {' '.join(map(str, self.last_document)) or 'none'}",
            ]
        )


LAST_IDS = 8  # token ids that a summary shows


def check_dataset(prefix: str) -> DatasetSummary:
    """Read and verify a whole dataset, and return its summary.

    prefix: the path of `.bin` and `.idx` without these suffixes. Raises BrokenDataset with the first fault, OSError if
    storage fails.
    """
    dataset = Dataset(prefix)
    itemsize, bin_offset = dataset.header.dtype.itemsize, 0
    shortest, longest = (1 << 62), 0
    for lengths, starts in dataset.batches():
        if int(lengths.min()) < 0:
            raise BrokenDataset(f"{dataset.idx_path}: a sequence has a negative length")
        expected_offsets = bin_offset + np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]) * itemsize
        if (wrong := np.flatnonzero(starts != expected_offsets)).size:
            raise BrokenDataset(
                f"{dataset.idx_path}: a sequence begins at byte {int(starts[wrong[0]])} of {dataset.bin_path}, the ones"
                f" before it end at {int(expected_offsets[wrong[0]])}"
            )
        bin_offset += int(lengths.sum(dtype=np.int64)) * itemsize
        shortest, longest = min(shortest, int(lengths.min())), max(longest, int(lengths.max()))
    if bin_offset != dataset.bin_bytes:
        raise BrokenDataset(f"{dataset.bin_path}: {dataset.bin_bytes} bytes, its index describes {bin_offset}")
    _check_documents(dataset)
    last = dataset[len(dataset) - 1] if len(dataset) else np.empty(0, np.int64)
    return DatasetSummary(
        prefix=prefix,
        dtype=dataset.header.dtype.name,
        sequences=dataset.header.sequences,
        documents=dataset.header.documents,
        tokens=bin_offset // itemsize,
        shortest=shortest if len(dataset) else 0,
        longest=longest,
        highest_id=_highest_id(dataset),
        last_document=tuple(int(value) for value in last[-LAST_IDS:]),
    )


def _check_documents(dataset: Dataset) -> None:
    """Raise BrokenDataset unless the document entries are valid.

    They begin at 0, never decrease, and end at the number of sequences.
    """
    previous_entry = 0
    for position, entries in enumerate(dataset.document_entries()):
        if not position and int(entries[0]) != 0:
            raise BrokenDataset(f"{dataset.idx_path}: the first document begins at sequence {int(entries[0])}, not 0")
        if int(np.diff(entries, prepend=previous_entry).min()) < 0:
            raise BrokenDataset(f"{dataset.idx_path}: the document entries decrease")
        previous_entry = int(entries[-1])
    if previous_entry != dataset.header.sequences:
        raise BrokenDataset(
            f"{dataset.idx_path}: the last document ends at sequence {previous_entry} of {dataset.header.sequences}"
        )


def _highest_id(dataset: Dataset) -> int:
    """Return the highest token id of a dataset, -1 if it has no tokens. Reads all tokens.

    Raises BrokenDataset for a negative id.
    """
    highest, step = -1, storage.COPY_BYTES
    for start in range(0, dataset.bin_bytes, step):
        raw = storage.read_range(dataset.bin_path, start, min(dataset.bin_bytes, start + step))
        values = np.frombuffer(raw, dataset.header.dtype)
        if int(values.min()) < 0:
            raise BrokenDataset(f"{dataset.bin_path}: a token id below 0 near byte {start}")
        highest = max(highest, int(values.max()))
    return highest
