"""metav1.Status, which the server sends instead of an object, and the error class of each status."""

from __future__ import annotations

import re

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


_decoder = msgspec.json.Decoder(Status)


def error_of_response(method: str, path: str, code: int, body: bytes, retry_after: str) -> CallError:
    """Return the error for an HTTP answer with an error status.

    method, path: of the call. code: the HTTP status. body: a Status as JSON, or any other text, of which the beginning
    becomes the message. retry_after: the value of the header, "" if absent; a date in it is ignored.
    """
    try:
        status = _decoder.decode(body)
    except msgspec.DecodeError:  # a proxy's page, or plain text
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
