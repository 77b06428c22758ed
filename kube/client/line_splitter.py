"""Chunks of a stream into lines of bounded length."""

from __future__ import annotations

from collections.abc import AsyncIterator

MAX_LINE_BYTES = 4 * 2**20  # etcd holds no object over 1.5 MiB; JSON may double it
_KEPT_OF_TOO_LONG = 1024  # enough to see what it was, never a whole JSON value


async def split(chunks: AsyncIterator[bytes], max_line_bytes: int = MAX_LINE_BYTES) -> AsyncIterator[bytes]:
    """Each line without its end, empty ones left out. A line over the bound is cut to its first kilobyte.

    A rest without an end is no line: the connection broke in the middle of it.
    """
    held: list[bytes] = []
    held_bytes, skipping = 0, False
    async for chunk in chunks:
        first, *more = chunk.split(b"\n")
        held_bytes += len(first)
        if not skipping:
            held.append(first)
        if held_bytes > max_line_bytes and not skipping:
            held, skipping = [b"".join(held)[:_KEPT_OF_TOO_LONG]], True
        if not more:
            continue
        if line := b"".join(held):
            yield line
        for line in more[:-1]:
            if line:
                yield line if len(line) <= max_line_bytes else line[:_KEPT_OF_TOO_LONG]
        held, held_bytes, skipping = [more[-1]], len(more[-1]), False
