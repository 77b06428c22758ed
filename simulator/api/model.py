"""The description of a kind. kinds/builtin_kinds.py has the rows; store.py reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        """True if the kind has this plural and group."""
        return self.plural == plural and self.group == group
