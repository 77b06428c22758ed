"""The kinds that are served now: the built-in ones, and those that CRDs have added."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from turnout.simulator.api.kinds.builtin_kinds import ROWS
from turnout.simulator.api.model import ResourceKind


class Catalogue:
    """The served kinds by their path. A CRD adds one, or replaces a preinstalled one."""

    def __init__(self, rows: Iterable[ResourceKind] = ROWS) -> None:
        self._by_resource = {kind.resource: kind for kind in rows}
        self._first = dict(self._by_resource)

    def kinds(self) -> list[ResourceKind]:
        """Return all kinds, in the order in which they were added."""
        return list(self._by_resource.values())

    def named(self, group: str, version: str, plural: str) -> ResourceKind | None:
        """Return the kind of a resource path, or None when it is not served."""
        kind = self._by_resource.get(f"{plural}.{group}" if group else plural)
        return kind if kind is not None and kind.version == version else None

    def groups(self) -> dict[str, list[str]]:
        """Return each group except the core group, with its versions."""
        found: dict[str, list[str]] = {}
        for kind in self._by_resource.values():
            if kind.group and kind.version not in (versions := found.setdefault(kind.group, [])):
                versions.append(kind.version)
        return found

    def put(self, kind: ResourceKind) -> None:
        """Serve a kind of a CRD in place of one of the same name. The defaults of a preinstalled kind stay."""
        first = self._first.get(kind.resource)
        self._by_resource[kind.resource] = replace(kind, defaults=first.defaults) if first else kind

    def drop(self, resource: str) -> None:
        """Stop serving a kind. A preinstalled kind of that name comes back."""
        self._by_resource.pop(resource, None)
        if resource in self._first:
            self._by_resource[resource] = self._first[resource]
