"""Length-prefixed frames: how messages follow one another on a stream, whatever reads the bytes.

A frame is four bytes of length, big endian, and the body, which is one message of msgpack. The messages themselves, and
how long each kind may be, are known to the modules that define them. Nothing is read or sent here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from turnout.launcher.errors import BadFrame, LauncherError

PREFIX_BYTES = 4
_T = TypeVar("_T")


def frame(body: bytes, checksum: bytes = b"") -> bytes:
    """Give the bytes to send. checksum: goes between length and body, and is not counted in the length."""
    return len(body).to_bytes(PREFIX_BYTES, "big") + checksum + body


def body_bytes(header: bytes | bytearray | memoryview, max_bytes: int) -> int:
    """Give the length of the body. header: begins with the prefix. Raises BadFrame for none and for too many."""
    size = int.from_bytes(header[:PREFIX_BYTES], "big")
    if not 0 < size <= max_bytes:
        raise BadFrame(f"a frame of {size} bytes: 1 to {max_bytes} are taken")
    return size


def read_frame(read: Callable[[int], bytes], max_bytes: int) -> bytes | None:
    """Read one body, None at the end of the stream.

    read: gives as many bytes as it is asked for, and fewer only at the end. A stream that ends within a frame gives
    what there is of the body, which no decoder takes. Raises BadFrame, and what `read` raises.
    """
    header = read(PREFIX_BYTES)
    return read(body_bytes(header, max_bytes)) if len(header) == PREFIX_BYTES else None


class FrameSplitter:
    """Cuts a stream that comes in pieces of any size into the bodies of frames."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes  # of a body; may be changed between two frames
        self._rest = bytearray()

    def split(self, piece: bytes) -> Iterator[bytes]:
        """Yield each body that is whole by now. Raises BadFrame once those before the bad length are yielded."""
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
    """Give the message in a body. Raises BadFrame for all that is none."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError, LauncherError) as error:
        raise BadFrame(str(error)) from error
