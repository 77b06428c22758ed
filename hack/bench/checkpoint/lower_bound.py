"""The lower bound of a save: memcpy of the same tensors into warm shared memory, by plain threads.

Each thread has as many bytes as the others; a tensor may be cut. ctypes gives up the interpreter's lock in a copy.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from types import TracebackType
from typing import Any, Self

Piece = tuple[int, int, int]  # to, from: addresses; bytes
_PAGE = 4096


class WarmMemory:
    """Shared memory whose pages have all been written. Use it in a `with` block, which frees it."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes

    def __enter__(self) -> Self:
        self._memory = mmap.mmap(-1, max(_PAGE, self._size_bytes))
        self._view = (ctypes.c_char * len(self._memory)).from_buffer(self._memory)
        self.address = ctypes.addressof(self._view)
        ctypes.memset(self.address, 1, len(self._memory))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        del self._view
        self._memory.close()

    def holds(self, tensors: Iterable[Any]) -> bool:
        """Return True if the memory has the bytes of these tensors, one after another from its start.

        The tensors fit into the memory.
        """
        at = self.address
        for tensor in tensors:
            if ctypes.string_at(at, tensor.nbytes) != ctypes.string_at(tensor.data_ptr(), tensor.nbytes):
                return False
            at += tensor.nbytes
        return True


class MemoryCopy:
    """A memcpy of tensors, one after the other, to an address. backwards: from the address into the tensors instead.

    threads: number of threads, which copy equal shares in parallel.
    """

    def __init__(self, tensors: Sequence[Any], address: int, threads: int, *, backwards: bool = False) -> None:
        lengths = [tensor.nbytes for tensor in tensors]
        offsets = accumulate(lengths, initial=0)
        pieces = [
            (address + offset, tensor.data_ptr(), length)
            for tensor, offset, length in zip(tensors, offsets, lengths, strict=False)
            if length
        ]
        if backwards:
            pieces = [(source, target, length) for target, source, length in pieces]
        self._tensors = tensors  # keeps the tensors alive, because only their addresses are stored
        self._shares = split(pieces, threads)
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def __call__(self) -> None:
        """Copy all tensors."""
        if self._pool is None:
            _copy(self._shares[0])
            return
        for done in [self._pool.submit(_copy, share) for share in self._shares]:
            done.result()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()


def split(pieces: Sequence[Piece], shares: int) -> list[list[Piece]]:
    """Split pieces (target, source, bytes) into `shares` lists of equal size, to within a page. Their order stays."""
    total = sum(length for _, _, length in pieces)
    cuts = [total * at // shares // _PAGE * _PAGE for at in range(shares)] + [total]
    return [list(_pieces_in_range(pieces, begin, end)) for begin, end in pairwise(cuts)]


def _pieces_in_range(pieces: Sequence[Piece], begin: int, end: int) -> Iterable[Piece]:
    """Yield the parts of the pieces that lie in a range. begin, end: byte offsets in the concatenated pieces."""
    at = 0
    for target, source, length in pieces:
        low, high = max(begin - at, 0), min(end - at, length)
        if low < high:
            yield target + low, source + low, high - low
        at += length


def _copy(pieces: Sequence[Piece]) -> None:
    """Copy pieces (target address, source address, bytes) one by one."""
    for target, source, length in pieces:
        ctypes.memmove(target, source, length)
