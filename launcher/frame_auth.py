"""Message authentication codes for the frames of one connection, so that nobody else can send on it.

Both ends know the job's token and two nonces, one from each end. These give one key for each direction. Every frame has
a code over its number and its body.
A forged, repeated, missing or reordered frame is found at once. The content is not encrypted.
"""

from __future__ import annotations

import hmac

from turnout.launcher.errors import BadFrame

MAC_BYTES = 16  # of a SHA-256; a forger would need 2**64 tries
_COUNT_BYTES = 8


class NotProven(BadFrame):
    """The frame's code is wrong: its sender does not know the token, or the stream was changed."""


class FrameAuth:
    """Computes the codes of one connection, once both nonces are known.

    caller_nonce: of the end that connected. listener_nonce: of the end that listens. With `listens`, this is the
    listening end.
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
        """Return the body of the next received frame. Raises NotProven; the connection is then useless."""
        body, code = sealed[:-MAC_BYTES], sealed[-MAC_BYTES:]
        if not body or not hmac.compare_digest(code, _code(self._receive_key, self._received, body)):
            raise NotProven("a frame without a proof that its sender knows the job's token")
        self._received += 1
        return body


def _code(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(_COUNT_BYTES, "big") + body, "sha256")[:MAC_BYTES]
