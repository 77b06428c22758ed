"""Which kinds are served right now: the rows, and what CRDs have added."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from turnout.simulator.api.kinds.builtin_kinds import ROWS
from turnout.simulator.api.model import Kind


class Catalogue:
    """Kinds by their path. A CRD adds one, or takes the place of one that stood there from the start."""

    def __init__(self, rows: Iterable[Kind] = ROWS) -> None:
        self._by_resource = {kind.resource: kind for kind in rows}
        self._first = dict(self._by_resource)

    def kinds(self) -> list[Kind]:
        """All of them, in the order in which they came."""
        return list(self._by_resource.values())

    def named(self, group: str, version: str, plural: str) -> Kind | None:
        """The kind of a resource path, or None when it is not served."""
        kind = self._by_resource.get(f"{plural}.{group}" if group else plural)
        return kind if kind is not None and kind.version == version else None

    def groups(self) -> dict[str, list[str]]:
        """Each group but the core one, with its versions."""
        found: dict[str, list[str]] = {}
        for kind in self._by_resource.values():
            if kind.group and kind.version not in (versions := found.setdefault(kind.group, [])):
                versions.append(kind.version)
        return found

    def put(self, kind: Kind) -> None:
        """Serve a kind of a CRD, in place of one of the same name; what its admission fills in stays."""
        first = self._first.get(kind.resource)
        self._by_resource[kind.resource] = replace(kind, defaults=first.defaults) if first else kind

    def drop(self, resource: str) -> None:
        """Serve it no more; what stood there from the start comes back."""
        self._by_resource.pop(resource, None)
        if resource in self._first:
            self._by_resource[resource] = self._first[resource]
