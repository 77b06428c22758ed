"""The description of a kind, and the refusals of the API. kinds/catalogue.py has the rows; store.py reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
Show = Callable[[Object, float], str | int]  # an object and the time, in seconds, to one cell


def no_defaults(obj: Object) -> None:
    """Leave an object as it is: most kinds have no defaults."""


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """One column of a table as kubectl prints it."""

    name: str
    show: Show
    priority: int = 0  # 0 = always shown, 1 = with -o wide
    form: str = "string"  # the type of its cells


@dataclass(frozen=True, slots=True)
class ScaleSubresource:
    """The fields of an object that its scale subresource shows."""

    replicas: tuple[str, ...] = ("spec", "replicas")
    status_replicas_path: tuple[str, ...] = ("status", "replicas")
    selector: tuple[str, ...] = ("spec", "selector")  # path in the object to a selector, as text or as labels


@dataclass(frozen=True, slots=True, eq=False)
class ResourceKind:
    """One kind of object."""

    group: str  # "" for core
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    # True: it has a status subresource; writes to the object leave the status alone, and the reverse
    status: bool = False
    status_at_birth: bool = False  # True: the status given at a creation is kept
    unconditional: bool = True  # True: an update may come without a resourceVersion
    graceful: bool = False  # True: a deletion waits for the object's kubelet
    workload: bool = False  # True: kubectl shows it for "all"
    counted: bool = False  # True: a change of the spec raises metadata.generation
    fields: tuple[str, ...] = ()  # what a fieldSelector may name besides metadata.name and metadata.namespace
    short: tuple[str, ...] = ()
    defaults: Callable[[Object], None] = no_defaults
    custom: bool = False  # comes from a CRD: the API server does no strategic merge for it
    scaling: ScaleSubresource | None = None
    columns: tuple[PrinterColumn, ...] = ()
    schema: Mapping[str, Any] | None = None  # of a CRD; None keeps every field
    singular: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The name in error sentences and in the store, such as `pods` or `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def is_named(self, plural: str, group: str = "") -> bool:
        """Return True if the kind has this plural and group."""
        return self.plural == plural and self.group == group


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
    """Return the refusal (404) of an object that does not exist."""
    return ApiRefusal("NotFound", f'{resource} "{name}" not found')


def conflict(resource: str, name: str, why: str) -> ApiRefusal:
    """Return the refusal (409) of a write on an object that has changed."""
    return ApiRefusal("Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {why}')


def invalid(kind: str, name: str, why: str) -> ApiRefusal:
    """Return the refusal (422) of an object with a fault. why: the field and its fault."""
    return ApiRefusal("Invalid", f'{kind} "{name}" is invalid: {why}')


@contextmanager
def readable(kind: str, name: str) -> Iterator[None]:
    """Guard the reading of a caller's object. An object without the form of its kind is refused (422)."""
    try:
        yield
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        message = f"it is not of the form of its kind: {type(error).__name__}: {error}"
        raise invalid(kind, name, message[:500]) from error


def value_at(obj: Any, *path: str) -> Any:
    """Return the value under a path; None when a step is missing."""
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj
