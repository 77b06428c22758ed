"""What a kind is. The rows are in kinds/builtin_kinds.py, the code that reads them in store.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
Show = Callable[[Object, float], str | int]  # an object and the time, in seconds, to one cell


def no_defaults(obj: Object) -> None:
    """Most kinds are kept as they come."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table as kubectl prints it. priority: 0 = always, 1 = with -o wide. form: of its cells."""

    name: str
    show: Show
    priority: int = 0
    form: str = "string"


@dataclass(frozen=True, slots=True)
class Scaling:
    """Where an object keeps what the scale subresource shows. selector: path of it in the object, as text or labels."""

    replicas: tuple[str, ...] = ("spec", "replicas")
    seen: tuple[str, ...] = ("status", "replicas")
    selector: tuple[str, ...] = ("spec", "selector")


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One kind of object. group: "" for core.

    status: has a status subresource, so that writes to the object leave the status alone and the other way round.
    status_at_birth: what a creation says of the status is kept. unconditional: an update may come without a
    resourceVersion. graceful: a deletion waits for its kubelet. workload: kubectl shows it for "all". counted: a
    change of the spec raises metadata.generation. fields: what a fieldSelector may name, beside
    metadata.name and metadata.namespace. schema: of a CRD; None keeps everything.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    status: bool = False
    status_at_birth: bool = False
    unconditional: bool = True
    graceful: bool = False
    workload: bool = False
    counted: bool = False
    fields: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    defaults: Callable[[Object], None] = no_defaults
    custom: bool = False  # comes from a CRD: the API server does no strategic merge for it
    scaling: Scaling | None = None
    columns: tuple[Column, ...] = ()
    schema: Mapping[str, Any] | None = None
    singular: str = ""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """As error sentences name it, and as the store keeps it: `pods`, `leases.coordination.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def called(self, plural: str, group: str = "") -> bool:
        """Is it this resource?"""
        return self.plural == plural and self.group == group
