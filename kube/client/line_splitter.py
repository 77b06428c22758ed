"""Lines of bounded length from a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator

MAX_LINE_BYTES = 4 * 2**20  # etcd holds no object over 1.5 MiB; JSON may double it
_LONG_LINE_PREFIX_BYTES = 1024  # of a line above the bound; a truncated line is never a complete JSON value


async def split_lines(chunks: AsyncIterator[bytes], max_line_bytes: int = MAX_LINE_BYTES) -> AsyncIterator[bytes]:
    """Yield each line without its line end. Empty lines are left out.

    chunks: the bytes, cut at any place. A line above `max_line_bytes` is truncated to its first kilobyte. Bytes after
    the last line end are dropped, because the connection broke inside that line.
    """
    line_parts: list[bytes] = []
    line_bytes, is_too_long = 0, False
    async for chunk in chunks:
        first, *other_parts = chunk.split(b"\n")
        line_bytes += len(first)
        if not is_too_long:
            line_parts.append(first)
        if line_bytes > max_line_bytes and not is_too_long:
            line_parts, is_too_long = [b"".join(line_parts)[:_LONG_LINE_PREFIX_BYTES]], True
        if not other_parts:
            continue
        if line := b"".join(line_parts):
            yield line
        for line in other_parts[:-1]:
            if line:
                yield line if len(line) <= max_line_bytes else line[:_LONG_LINE_PREFIX_BYTES]
        line_parts, line_bytes, is_too_long = [other_parts[-1]], len(other_parts[-1]), False
