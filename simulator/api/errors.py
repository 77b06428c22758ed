"""The refusals of the embedded API in the form of Kubernetes: an HTTP code, a reason word and a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_CODES = {
    "": 500,  # what the API server says without a reason
    "BadRequest": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "AlreadyExists": 409,
    "Conflict": 409,
    "Expired": 410,
    "RequestEntityTooLarge": 413,
    "UnsupportedMediaType": 415,
    "Invalid": 422,
    "TooManyRequests": 429,
    "InternalError": 500,
    "NotImplemented": 501,
    "ServiceUnavailable": 503,
}


class ApiRefusal(Exception):
    """A request that is not carried out. The caller gets the Status that `status` returns."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message, self.code = reason, message, _CODES[reason]
        self.retry_after_s = 0  # told in the answer's head when it is not 0

    def status(self) -> dict[str, Any]:
        """Return the metav1.Status of this refusal."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            **({"reason": self.reason} if self.reason else {}),
            "code": self.code,
        }


class Unserved(Exception):
    """A path of a group that is not served. As with the API server, the answer has not even a Status."""


def success(message: str = "") -> dict[str, Any]:
    """Return the metav1.Status of a success that has no object to show."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "message": message}


def not_found(resource: str, name: str) -> ApiRefusal:
    return ApiRefusal("NotFound", f'{resource} "{name}" not found')


def conflict(resource: str, name: str, why: str) -> ApiRefusal:
    return ApiRefusal("Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {why}')


def invalid(kind: str, name: str, why: str) -> ApiRefusal:
    return ApiRefusal("Invalid", f'{kind} "{name}" is invalid: {why}')


@contextmanager
def readable(kind: str, name: str) -> Iterator[None]:
    """Guard the reading of a caller's object. An object without the form of its kind is refused (422)."""
    try:
        yield
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        message = f"it is not of the form of its kind: {type(error).__name__}: {error}"
        raise invalid(kind, name, message[:500]) from error
