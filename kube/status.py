"""Answers of the API server: metav1.Status with the error class of each status, and the decoding of objects.

An answer with a success that cannot be decoded is a BadResponse. It may come from a proxy before the API server.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from turnout.kube.errors import (
    BadResponse,
    CallError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    Rejected,
    ServerFault,
    TooManyRequests,
    Unauthorised,
)

_BY_CODE: dict[int, type[CallError]] = {
    401: Unauthorised,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    429: TooManyRequests,
}
# The errors of decoding bytes that another program wrote: no JSON or the wrong type, no UTF-8, nested too deep.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MIN_WAIT_S = 1.0  # seconds to wait after a 429 without Retry-After


class StatusDetails(msgspec.Struct, rename="camel"):
    """The details of a Status, as far as they are read here."""

    retry_after_seconds: int = 0


class Status(msgspec.Struct, rename="camel"):
    """The Status of metav1 with which an API server refuses a call."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


T = TypeVar("T")
_decoder = msgspec.json.Decoder(Status)
_object_decoder = msgspec.json.Decoder(dict[str, Any])


def decode_answer(decoder: msgspec.json.Decoder[T], method: str, path: str, answer: bytes) -> T:
    """Return the object in an answer with a success. Raises BadResponse if `decoder` cannot read it.

    method, path: of the call, for the message.
    """
    try:
        return decoder.decode(answer)
    except UNREADABLE as error:
        raise BadResponse(method, path, 200, f"the answer cannot be read: {error}") from error


def decode_json_object(path: str, answer: bytes) -> dict[str, Any]:
    """Return the JSON object in the answer to a GET. Raises BadResponse if it is none. path: of the call."""
    return decode_answer(_object_decoder, "GET", path, answer)


def error_of_response(method: str, path: str, code: int, body: bytes, retry_after: str) -> CallError:
    """Return the error for an HTTP answer with an error status.

    method, path: of the call. code: the HTTP status. body: a Status as JSON, or any other text, of which the beginning
    becomes the message. retry_after: the value of the header, "" if absent; a date in it is ignored.
    """
    try:
        status = _decoder.decode(body)
    except UNREADABLE:  # a proxy's page, or plain text
        status = Status(message=body[:300].decode("utf-8", "replace"))
    status.code = code
    if re.fullmatch(r"[0-9]{1,6}", retry_after):
        status.details = StatusDetails(int(retry_after))
    return error_of_status(method, path, status)


def error_of_status(method: str, path: str, status: Status) -> CallError:
    """Return the error for a Status, by its code; BadResponse if the code is no error.

    method, path: of the call whose answer or watch event has the Status. A 429 has a wait of at least _MIN_WAIT_S.
    """
    code = status.code
    wait_s = float(status.details.retry_after_seconds) if status.details else 0.0
    kind = _BY_CODE.get(code) or (Rejected if 400 <= code < 500 else ServerFault if code >= 500 else BadResponse)
    if kind is TooManyRequests:
        wait_s = max(wait_s, _MIN_WAIT_S)
    return kind(method, path, code, status.message, reason=status.reason, retry_after_s=wait_s)
