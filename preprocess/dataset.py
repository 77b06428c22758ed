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

BATCH_ENTRIES = 1 << 20


class Dataset:
    """An indexed dataset that another program or ours wrote. Only what is asked for is read."""

    def __init__(self, prefix: str) -> None:
        """prefix: the path of `.bin` and `.idx` without these. Raises BrokenDataset, OSError."""
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
        return self.header.sequences

    def __getitem__(self, sequence: int) -> NDArray[Any]:
        """Return the token ids of one sequence."""
        (length,) = self._entries(HEADER_BYTES + 4 * sequence, 1, "<i4")
        (start,) = self._entries(self.header.pointers_at + 8 * sequence, 1, "<i8")
        raw = storage.read_range(self.bin_path, int(start), int(start) + int(length) * self.header.dtype.itemsize)
        return np.frombuffer(raw, self.header.dtype)

    def batches(self) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """Yield lengths and pointers of all sequences, a bounded number at once."""
        for first in range(0, self.header.sequences, BATCH_ENTRIES):
            count = min(BATCH_ENTRIES, self.header.sequences - first)
            yield (
                self._entries(HEADER_BYTES + 4 * first, count, "<i4"),
                self._entries(self.header.pointers_at + 8 * first, count, "<i8"),
            )

    def document_entries(self) -> Iterator[NDArray[np.int64]]:
        """Yield the documents' entries: 0, and the number of sequences after each document."""
        for first in range(0, self.header.documents + 1, BATCH_ENTRIES):
            count = min(BATCH_ENTRIES, self.header.documents + 1 - first)
            yield self._entries(self.header.documents_at + 8 * first, count, "<i8")

    def _entries(self, at: int, count: int, dtype: str) -> NDArray[Any]:
        width = np.dtype(dtype).itemsize
        return np.frombuffer(storage.read_range(self.idx_path, at, at + count * width), dtype)


@dataclass(frozen=True, slots=True)
class Summary:
    """The facts that a check gives about a good dataset."""

    prefix: str
    dtype: str
    sequences: int
    documents: int
    tokens: int
    shortest: int  # tokens of the shortest sequence, 0 without any
    longest: int
    highest_id: int  # -1 without tokens
    last_document: tuple[int, ...]  # the first and last of its ids, at most LAST_IDS

    def text(self) -> str:
        """Return the summary for people, a fact in each line."""
        mean = self.tokens / self.sequences if self.sequences else 0.0
        return "\n".join(
            [
                f"{self.prefix}: good",
                f"  documents   {self.documents:,} in {self.sequences:,} sequences",
                f"  tokens      {self.tokens:,} of {self.dtype}, highest id {self.highest_id:,}",
                f"  lengths     {self.shortest:,} to {self.longest:,} tokens, {mean:,.1f} in the mean",
                f"  last ids    {' '.join(map(str, self.last_document)) or 'none'}",
            ]
        )


LAST_IDS = 8


def check(prefix: str) -> Summary:
    """Read a whole dataset and return its summary. Raises BrokenDataset with the first thing that does not fit."""
    dataset = Dataset(prefix)
    itemsize, at = dataset.header.dtype.itemsize, 0
    shortest, longest = (1 << 62), 0
    for lengths, starts in dataset.batches():
        if int(lengths.min()) < 0:
            raise BrokenDataset(f"{dataset.idx_path}: a sequence has a negative length")
        expected_offsets = at + np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]) * itemsize
        if (wrong := np.flatnonzero(starts != expected_offsets)).size:
            raise BrokenDataset(
                f"{dataset.idx_path}: a sequence begins at byte {int(starts[wrong[0]])} of {dataset.bin_path}, the ones"
                f" before it end at {int(expected_offsets[wrong[0]])}"
            )
        at += int(lengths.sum(dtype=np.int64)) * itemsize
        shortest, longest = min(shortest, int(lengths.min())), max(longest, int(lengths.max()))
    if at != dataset.bin_bytes:
        raise BrokenDataset(f"{dataset.bin_path}: {dataset.bin_bytes} bytes, its index describes {at}")
    _check_documents(dataset)
    last = dataset[len(dataset) - 1] if len(dataset) else np.empty(0, np.int64)
    return Summary(
        prefix=prefix,
        dtype=dataset.header.dtype.name,
        sequences=dataset.header.sequences,
        documents=dataset.header.documents,
        tokens=at // itemsize,
        shortest=shortest if len(dataset) else 0,
        longest=longest,
        highest_id=_highest_id(dataset),
        last_document=tuple(int(value) for value in last[-LAST_IDS:]),
    )


def _check_documents(dataset: Dataset) -> None:
    """Raise BrokenDataset unless the document entries are valid.

    They begin at 0, never decrease, and end at the number of sequences.
    """
    before = 0
    for position, entries in enumerate(dataset.document_entries()):
        if not position and int(entries[0]) != 0:
            raise BrokenDataset(f"{dataset.idx_path}: the first document begins at sequence {int(entries[0])}, not 0")
        if int(np.diff(entries, prepend=before).min()) < 0:
            raise BrokenDataset(f"{dataset.idx_path}: the documents' entries go back")
        before = int(entries[-1])
    if before != dataset.header.sequences:
        raise BrokenDataset(
            f"{dataset.idx_path}: the last document ends at sequence {before} of {dataset.header.sequences}"
        )


def _highest_id(dataset: Dataset) -> int:
    """Return the highest token id of a dataset, -1 if it is empty. Raises BrokenDataset for a negative id."""
    highest, step = -1, storage.COPY_BYTES
    for start in range(0, dataset.bin_bytes, step):
        raw = storage.read_range(dataset.bin_path, start, min(dataset.bin_bytes, start + step))
        values = np.frombuffer(raw, dataset.header.dtype)
        if int(values.min()) < 0:
            raise BrokenDataset(f"{dataset.bin_path}: a token id below 0 near byte {start}")
        highest = max(highest, int(values.max()))
    return highest
