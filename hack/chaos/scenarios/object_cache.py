"""The receiver of a reflector, which notes whatever it is told against the order of versions."""

from __future__ import annotations

from turnout.kube.objects import ConfigMap
from turnout.kube.watch_events import Key


class ObjectCache:
    """Objects by namespace and name, as uid and version. wrong: what went backwards, one line each."""

    def __init__(self) -> None:
        self.have: dict[tuple[str, str], tuple[str, int]] = {}
        self.wrong: list[str] = []
        self._newest: dict[str, int] = {}
        self._dead: set[str] = set()

    def put(self, obj: ConfigMap) -> None:
        meta = obj.metadata
        version = int(meta.resource_version)
        if meta.uid in self._dead:
            self.wrong.append(f"{meta.name} was dropped and is told again at version {version}")
        if version < self._newest.get(meta.uid, 0):
            self.wrong.append(f"{meta.name} went from version {self._newest[meta.uid]} back to {version}")
        self._newest[meta.uid] = version
        self.have[meta.namespace, meta.name] = meta.uid, version

    def drop(self, key: Key) -> None:
        found = self.have.pop((key.namespace, key.name), None)
        if found is None:
            self.wrong.append(f"{key.name} was dropped, and nobody had told of it")
        else:
            self._dead.add(found[0])

    def synced(self, version: str) -> None:
        """A whole list was told."""
