"""Bound the cost of decoding one object that a stranger sends: its bytes, and the values in it.

A value costs a thousand times what its bytes cost: `{"":{}}` has seven bytes and is two objects in memory.
"""

from __future__ import annotations

from turnout.scheduler_ext.errors import BadRequest

MAX_BYTES = 3 << 20  # of an AdmissionReview, or of a pod in another request: as much as an API server takes
MAX_VALUES = 60_000  # numbers, texts, lists and objects together


def check_size(raw: bytes, what: str) -> None:
    """Raise BadRequest for JSON of too many bytes or values. what: the name of the object, for the message.

    Values are counted by what begins them or stands between them. Such characters within texts count too, so the
    count is never too low.
    """
    if len(raw) > MAX_BYTES:
        raise BadRequest(f"{what} has {len(raw)} bytes: at most {MAX_BYTES} bytes are read")
    values = 1 + sum(raw.count(each) for each in (b",", b"{", b"["))
    if values > MAX_VALUES:
        raise BadRequest(f"{what} has {values} values, about: at most {MAX_VALUES} values are read")
