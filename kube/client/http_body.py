"""Decoders for bodies of HTTP/1.1 answers: of a known length, chunked, or up to the end of the connection.

Source: RFC 9112 §6 and §7.1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

MAX_LINE_BYTES = 4096  # of a chunk's size and of a trailer
_NO_BODY = (204, 304)


class Body(Protocol):
    """A decoder that is fed with the bytes of a connection."""

    is_complete: bool  # True once the last byte has arrived
    ends_with_connection: bool  # True if the body ends only when the connection is closed

    def feed(self, raw: bytes) -> bytes:
        """Decode the next bytes of the connection and return the bytes of the body in them, maybe b"".

        Raises ValueError if these bytes are not a valid continuation.
        """


def body_of(status: int, headers: Mapping[str, str]) -> Body:
    """Return the decoder of an answer's body, by the status and the headers of the answer.

    headers: names in lower case. Raises ValueError if Content-Length is no number.
    """
    if status < 200 or status in _NO_BODY:
        return _FixedLengthBody(0)
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return _ChunkedBody()
    length = headers.get("content-length")
    if length is None:
        return _UnboundedBody()
    if not (length.isascii() and length.isdigit()):
        raise ValueError(f"Content-Length is {length[:40]!r}")
    return _FixedLengthBody(int(length))


class _FixedLengthBody:
    """A body of a known length."""

    ends_with_connection = False

    def __init__(self, length: int) -> None:
        """Expect `length` bytes, >= 0."""
        self._remaining_bytes, self.is_complete = length, length == 0

    def feed(self, raw: bytes) -> bytes:
        """Return the bytes unchanged: they are the next bytes of the body. Raises ValueError if there are more than
        Content-Length.
        """
        self._remaining_bytes -= len(raw)
        if self._remaining_bytes < 0:
            raise ValueError("there are more bytes than Content-Length says")
        self.is_complete = self._remaining_bytes == 0
        return raw


class _UnboundedBody:
    """A body that ends with its connection."""

    ends_with_connection, is_complete = True, False

    def feed(self, raw: bytes) -> bytes:
        """Return the bytes unchanged."""
        return raw


class _ChunkedBody:
    """A body in chunks."""

    ends_with_connection = False

    def __init__(self) -> None:
        self._unparsed, self._remaining_bytes, self._in_trailer, self.is_complete = b"", 0, False, False

    def feed(self, raw: bytes) -> bytes:
        """Return the contents of the chunks in the next bytes of the connection, maybe b"". An unfinished rest is kept.

        Raises ValueError if the bytes are no valid chunks, or come after the last chunk.
        """
        buffer, position, pieces = self._unparsed + raw, 0, list[bytes]()
        while position < len(buffer):
            if self.is_complete:
                raise ValueError("there are bytes after the last chunk")
            if self._remaining_bytes > 2:
                pieces.append(buffer[position : position + self._remaining_bytes - 2])
                position, self._remaining_bytes = position + len(pieces[-1]), self._remaining_bytes - len(pieces[-1])
                continue
            end = buffer.find(b"\r\n", position)
            if end < 0:
                if len(buffer) - position > MAX_LINE_BYTES:
                    raise ValueError("the line of a chunk's size does not end")
                break
            line, position = buffer[position:end], end + 2
            if self._remaining_bytes:  # the end of a chunk
                if line:
                    raise ValueError("a chunk is longer than its size")
                self._remaining_bytes = 0
            elif self._in_trailer:
                self.is_complete = not line
            elif size := _chunk_size(line):
                self._remaining_bytes = size + 2
            else:
                self._in_trailer = True
        self._unparsed = buffer[position:]
        return b"".join(pieces)


def _chunk_size(line: bytes) -> int:
    """Return the size in bytes that a chunk's first line gives. Raises ValueError for an invalid line."""
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > 8 or digits.strip(b"0123456789abcdefABCDEF"):
        raise ValueError(f"{line[:40]!r} is no size of a chunk")
    return int(digits, 16)
