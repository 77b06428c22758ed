"""Bodies of HTTP/1.1 answers, decoded as their bytes come: of a known length, in chunks, or up to the connection's end.

Source: RFC 9112 §6 and §7.1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

MAX_LINE_BYTES = 4096  # of a chunk's size and of a trailer
_NO_BODY = (204, 304)


class Body(Protocol):
    """A body that is fed with what a connection brings."""

    over: bool  # True once the last byte has come
    ends_with_connection: bool

    def feed(self, raw: bytes) -> bytes:
        """Return what these bytes add to the body. Raises ValueError if they cannot be its next ones."""


def body_of(status: int, headers: Mapping[str, str]) -> Body:
    """Return the decoder of an answer's body. headers: names in lower case. Raises ValueError for a wrong length."""
    if status < 200 or status in _NO_BODY:
        return _Sized(0)
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return _Chunked()
    length = headers.get("content-length")
    if length is None:
        return _Open()
    if not (length.isascii() and length.isdigit()):
        raise ValueError(f"Content-Length is {length[:40]!r}")
    return _Sized(int(length))


class _Sized:
    """A body of a known length."""

    ends_with_connection = False

    def __init__(self, length: int) -> None:
        self._left, self.over = length, length == 0

    def feed(self, raw: bytes) -> bytes:
        self._left -= len(raw)
        if self._left < 0:
            raise ValueError("there are more bytes than Content-Length says")
        self.over = self._left == 0
        return raw


class _Open:
    """A body that ends with its connection."""

    ends_with_connection, over = True, False

    def feed(self, raw: bytes) -> bytes:
        return raw


class _Chunked:
    """A body in chunks. `_left`: bytes until the end of the current chunk, its line's end included."""

    ends_with_connection = False

    def __init__(self) -> None:
        self._rest, self._left, self._in_trailer, self.over = b"", 0, False, False

    def feed(self, raw: bytes) -> bytes:
        buffer, at, pieces = self._rest + raw, 0, list[bytes]()
        while at < len(buffer):
            if self.over:
                raise ValueError("there are bytes after the last chunk")
            if self._left > 2:
                pieces.append(buffer[at : at + self._left - 2])
                at, self._left = at + len(pieces[-1]), self._left - len(pieces[-1])
                continue
            end = buffer.find(b"\r\n", at)
            if end < 0:
                if len(buffer) - at > MAX_LINE_BYTES:
                    raise ValueError("the line of a chunk's size does not end")
                break
            line, at = buffer[at:end], end + 2
            if self._left:  # the end of a chunk
                if line:
                    raise ValueError("a chunk is longer than its size")
                self._left = 0
            elif self._in_trailer:
                self.over = not line
            elif size := _size(line):
                self._left = size + 2
            else:
                self._in_trailer = True
        self._rest = buffer[at:]
        return b"".join(pieces)


def _size(line: bytes) -> int:
    word = line.partition(b";")[0].strip()
    if not word or len(word) > 8 or word.strip(b"0123456789abcdefABCDEF"):
        raise ValueError(f"{line[:40]!r} is no size of a chunk")
    return int(word, 16)
