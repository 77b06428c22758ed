"""Defines length-prefixed frames, which separate messages on a stream of bytes.

A frame is four bytes of length, big endian, and the body, which is one msgpack message. The messages, and their maximum
lengths, are known in the modules that define them. Nothing is read or sent here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from turnout.launcher.errors import BadFrame, LauncherError

PREFIX_BYTES = 4
_T = TypeVar("_T")


def frame(body: bytes, checksum: bytes = b"") -> bytes:
    """Return the bytes to send. checksum: placed between length and body, not counted in the length."""
    return len(body).to_bytes(PREFIX_BYTES, "big") + checksum + body


def body_bytes(header: bytes | bytearray | memoryview, max_bytes: int) -> int:
    """Return the length of the body. header: begins with the prefix. Raises BadFrame for 0 or more than `max_bytes`."""
    size = int.from_bytes(header[:PREFIX_BYTES], "big")
    if not 0 < size <= max_bytes:
        raise BadFrame(f"a frame of {size} bytes: 1 to {max_bytes} are taken")
    return size


def read_frame(read: Callable[[int], bytes], max_bytes: int) -> bytes | None:
    """Read one body; None at the end of the stream.

    read: returns as many bytes as asked for, and fewer only at the end. If the stream ends within a frame, the
    incomplete body is returned, which no decoder accepts. Raises BadFrame, and what `read` raises.
    """
    header = read(PREFIX_BYTES)
    return read(body_bytes(header, max_bytes)) if len(header) == PREFIX_BYTES else None


class FrameSplitter:
    """Splits a stream that arrives in pieces of any size into the bodies of frames."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes  # of a body; may be changed between two frames
        self._rest = bytearray()

    def split(self, piece: bytes) -> Iterator[bytes]:
        """Yield each body that is complete by now. Raises BadFrame at an invalid length, after the bodies before it."""
        self._rest += piece
        start = 0
        try:
            while len(self._rest) - start >= PREFIX_BYTES:
                begin = start + PREFIX_BYTES
                end = begin + body_bytes(self._rest[start:begin], self.max_bytes)
                if len(self._rest) < end:
                    return
                start = end
                yield bytes(self._rest[begin:end])
        finally:
            del self._rest[:start]


def decode(decoder: msgspec.msgpack.Decoder[_T], body: bytes | memoryview) -> _T:
    """Decode the message in a body. Raises BadFrame if it is invalid."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError, LauncherError) as error:
        raise BadFrame(str(error)) from error
