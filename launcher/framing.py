"""Defines length-prefixed frames, which separate messages on a stream of bytes, and the codes that prove their sender.

A frame is four bytes of length, big endian, and the body, which is one msgpack message. The messages, and their maximum
lengths, are known in the modules that define them. Nothing is read or sent here. Both ends of a proven connection know
the job's token and two nonces, one from each end. These give one key for each direction. Every frame has a code over
its number and its body, so a forged, repeated, missing or reordered frame is found at once. The content is not
encrypted.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from turnout.launcher.errors import BadFrame, LauncherError

PREFIX_BYTES = 4

_T = TypeVar("_T")  # the type of a message


def frame(body: bytes, checksum: bytes = b"") -> bytes:
    """Return one frame, ready to send. checksum: bytes between length and body that the length does not count."""
    return len(body).to_bytes(PREFIX_BYTES, "big") + checksum + body


def body_bytes(header: bytes | bytearray | memoryview, max_bytes: int) -> int:
    """Return the length of the body. header: begins with the prefix. Raises BadFrame for 0 or more than `max_bytes`."""
    size = int.from_bytes(header[:PREFIX_BYTES], "big")
    if not 0 < size <= max_bytes:
        raise BadFrame(f"a frame of {size} bytes: 1 to {max_bytes} are taken")
    return size


def read_frame(read: Callable[[int], bytes], max_bytes: int) -> bytes | None:
    """Read one body; None at the end of the stream, also if it ends within a length.

    read: returns as many bytes as asked for, and fewer only at the end. If the stream ends within a body, the
    incomplete body is returned, which no decoder accepts. Raises BadFrame for a length of 0 or more than `max_bytes`,
    and what `read` raises.
    """
    header = read(PREFIX_BYTES)
    return read(body_bytes(header, max_bytes)) if len(header) == PREFIX_BYTES else None


class FrameSplitter:
    """Splits a stream that arrives in pieces of any size into the bodies of frames."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes  # of a body; may be changed between two frames
        self._rest = bytearray()

    def split(self, piece: bytes) -> Iterator[bytes]:
        """Add received bytes, and yield each body that is now complete. Raises BadFrame at an invalid length, after the
        bodies before it.
        """
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


MAC_BYTES = 16  # of a code: the first bytes of an HMAC-SHA256
_COUNT_BYTES = 8  # of a frame's number within the code


class NotProven(BadFrame):
    """The frame's code is wrong: its sender does not know the token, or the stream was changed."""


class FrameAuth:
    """Signs and verifies the frames of one connection: each body is followed by a code (MAC).

    token, run: of the job. caller_nonce: of the end that connected. listener_nonce: of the end that listens.
    listens: True if this process is the listening end.
    """

    def __init__(self, token: bytes, run: str, caller_nonce: bytes, listener_nonce: bytes, *, listens: bool) -> None:
        parts = (run.encode(), caller_nonce, listener_nonce)
        text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        from_caller = hmac.digest(token, b"turnout frames 1 from caller" + text, "sha256")
        from_listener = hmac.digest(token, b"turnout frames 1 from listener" + text, "sha256")
        self._send_key, self._receive_key = (from_listener, from_caller) if listens else (from_caller, from_listener)
        self._sent = self._received = 0

    def seal(self, body: bytes) -> bytes:
        """Return the next body to send, followed by its code."""
        sealed = body + _code(self._send_key, self._sent, body)
        self._sent += 1
        return sealed

    def open(self, sealed: bytes) -> bytes:
        """Verify the next received frame and return its body without the code. Raises NotProven: close the
        connection.
        """
        body, code = sealed[:-MAC_BYTES], sealed[-MAC_BYTES:]
        if not body or not hmac.compare_digest(code, _code(self._receive_key, self._received, body)):
            raise NotProven("a frame without a proof that its sender knows the job's token")
        self._received += 1
        return body


def _code(key: bytes, number: int, body: bytes) -> bytes:
    """Return the code of a frame. number: how many frames were sent in this direction before it."""
    return hmac.digest(key, number.to_bytes(_COUNT_BYTES, "big") + body, "sha256")[:MAC_BYTES]
