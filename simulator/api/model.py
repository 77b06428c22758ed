"""The description of a kind, and the refusals of the API. kinds/catalogue.py has the rows; store.py reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
Show = Callable[[Object, float], str | int]  # returns a cell for an object, and the time in seconds since 1970


def no_defaults(obj: Object) -> None:
    """Do nothing: most kinds have no defaults."""


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    """One column of a table as kubectl prints it."""

    name: str  # head of the column
    show: Show  # returns a cell
    priority: int = 0  # 0 = always shown, 1 = with -o wide
    cell_type: str = "string"  # the type of its cells


@dataclass(frozen=True, slots=True)
class ScaleSubresource:
    """The fields of an object that its scale subresource shows."""

    replicas: tuple[str, ...] = ("spec", "replicas")  # path of the wanted number
    status_replicas_path: tuple[str, ...] = ("status", "replicas")  # path of the present number
    selector: tuple[str, ...] = ("spec", "selector")  # path in the object to a selector, as text or as labels


@dataclass(frozen=True, slots=True, eq=False)
class ResourceKind:
    """One kind of object."""

    group: str  # "" for core
    version: str  # such as "v1"
    kind: str  # such as "Pod"
    plural: str  # the name in paths, such as "pods"
    namespaced: bool = True  # False: it is cluster-scoped
    # True: it has a status subresource. Writes to the object do not change the status, and the reverse.
    status: bool = False
    keeps_created_status: bool = False  # True: a creation may set the status
    allows_unversioned_update: bool = True  # True: an update needs no resourceVersion
    graceful: bool = False  # True: a deletion waits until the kubelet has stopped the object
    workload: bool = False  # True: kubectl shows it for "all"
    counts_generations: bool = False  # True: a change of the spec raises metadata.generation
    fields: tuple[str, ...] = ()  # fields of a fieldSelector, in addition to metadata.name and metadata.namespace
    short: tuple[str, ...] = ()  # kubectl's short names
    defaults: Callable[[Object], None] = no_defaults  # fills in a new object, in place
    custom: bool = False  # comes from a CRD: the API server does no strategic merge for it
    scaling: ScaleSubresource | None = None  # None for a CRD without this subresource, or a built-in kind
    columns: tuple[PrinterColumn, ...] = ()  # that kubectl prints; () for the name and the age
    schema: Mapping[str, Any] | None = None  # of a CRD; None keeps every field
    singular: str = ""  # "" for the kind in lower case

    @property
    def api_version(self) -> str:
        """GROUP/VERSION, or the version of the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """The name in error sentences and in the store, such as `pods` or `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def is_named(self, plural: str, group: str = "") -> bool:
        """Return True if the kind has this plural and group."""
        return self.plural == plural and self.group == group


# HTTP status by the reason of a Status.
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
    """A request that this API server does not carry out. The client gets the Status that `status` returns."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason, self.message, self.code = reason, message, _CODES[reason]
        self.retry_after_s = 0  # sent as Retry-After if it is not 0

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
    """Return the metav1.Status of a success for which no object is returned. message: for people, "" for none."""
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "message": message}


def not_found(resource: str, name: str) -> ApiRefusal:
    """Return the refusal (404) of a request for an object that does not exist. resource: as of ResourceKind."""
    return ApiRefusal("NotFound", f'{resource} "{name}" not found')


def conflict(resource: str, name: str, why: str) -> ApiRefusal:
    """Return the refusal (409 Conflict) of a write on an object that has changed, or whose state forbids the write.

    resource: as of ResourceKind. why: the last part of the message.
    """
    return ApiRefusal("Conflict", f'Operation cannot be fulfilled on {resource} "{name}": {why}')


def invalid(kind: str, name: str, why: str) -> ApiRefusal:
    """Return the refusal (422) of an object with a fault. kind: as of ResourceKind. why: the field and its fault."""
    return ApiRefusal("Invalid", f'{kind} "{name}" is invalid: {why}')


@contextmanager
def refuse_malformed(kind: str, name: str) -> Iterator[None]:
    """Turn an exception in the `with` block, which reads an object, into a refusal (422): the object does not fit its
    kind.

    kind, name: of the object, for the message. Only TypeError, KeyError, AttributeError and ValueError are turned.
    """
    try:
        yield
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        message = f"it is not of the form of its kind: {type(error).__name__}: {error}"
        raise invalid(kind, name, message[:500]) from error


def value_at(obj: Any, *path: str) -> Any:
    """Return the value under a path of keys; None if a key is missing or a value on the way is no object."""
    for step in path:
        obj = obj.get(step) if isinstance(obj, dict) else None
    return obj
