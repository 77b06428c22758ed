"""The informers of one program, which run together, as in client-go's SharedInformerFactory.

The caller decides which kinds to watch and what to do with the objects. reflector.py lists and watches one kind.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from turnout.kube.client.clock import Clock
from turnout.kube.client.reflector import ListerWatcher, Outage, Reflector
from turnout.kube.client.run_until_signal import run_together
from turnout.kube.objects import ConfigMap
from turnout.kube.watch_events import Key, Sink

T = TypeVar("T")

SYNC_CHECK_S = 0.05  # between two checks of whether every first list is complete


def _do_nothing(*_: object) -> None:
    """Do nothing: the default for optional callbacks."""


class CallbackSink:
    """A sink that calls plain functions."""

    def __init__(
        self,
        put: Callable[[Any], None],
        drop: Callable[[Key], None],
        on_change: Callable[[], object] = _do_nothing,
        on_list: Callable[[str], object] = _do_nothing,
    ) -> None:
        """Take the functions put(object), drop(key) and on_list(version of a complete list).

        on_change() is called after each of them.
        """
        self._put, self._drop, self._on_change, self._on_list = put, drop, on_change, on_list

    def put(self, obj: Any) -> None:
        """Call `put` with a new or changed object."""
        self._put(obj)
        self._on_change()

    def drop(self, key: Key) -> None:
        """Call `drop` with the key of a deleted object."""
        self._drop(key)
        self._on_change()

    def synced(self, version: str) -> None:
        """Call `on_list` with the version of a complete list, "" if unknown."""
        self._on_list(version)
        self._on_change()


class ConfigMapFollower(Generic[T]):
    """A sink for one ConfigMap, which is read in a thread, so that a large ConfigMap does not block the event loop."""

    def __init__(
        self, read: Callable[[Mapping[str, str]], T], take: Callable[[T | None, Mapping[str, str]], None]
    ) -> None:
        """Follow a ConfigMap with two functions.

        read: returns the result for the data; it runs in a thread and must not raise. take: receives the result and the
        annotations, in the event loop. The result is None, and the annotations are empty, if the ConfigMap does not
        exist.
        """
        self._read, self._take = read, take
        self._newest: ConfigMap | None = None
        self._has_news = asyncio.Event()
        self.has_synced = False  # True once `take` was called for the first time

    def put(self, obj: ConfigMap) -> None:
        """Keep the newest version of the ConfigMap for `run`."""
        self._newest = obj
        self._has_news.set()

    def drop(self, key: Key) -> None:
        """Let `run` report that the ConfigMap was deleted."""
        self._newest = None
        self._has_news.set()

    def synced(self, version: str) -> None:
        """Let `run` report that the ConfigMap does not exist, if a complete list does not contain it."""
        if self._newest is None:
            self._has_news.set()

    async def run(self) -> None:
        """Read each version of the ConfigMap and pass it on, until cancelled.

        Of several versions that arrive during a read, only the last is read. A ConfigMap that was deleted is passed on
        as None.
        """
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            newest = self._newest
            if newest is None:
                self._take(None, {})
            else:
                result = await asyncio.to_thread(self._read, newest.data or {})
                self._take(result, newest.metadata.annotations or {})
            self.has_synced = True


class InformerFactory:
    """One reflector for each watch. Two watches may be of one kind."""

    def __init__(self, source: ListerWatcher, clock: Clock, rng: random.Random) -> None:
        self._source, self._clock, self._rng, self._outage = source, clock, rng, Outage()
        self._followers: list[ConfigMapFollower[Any]] = []
        # Coroutines that run together with the reflectors.
        self._loops: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.reflectors: dict[str, Reflector[Any]] = {}

    def watch(self, name: str, path: str, kind: type[Any], sink: Sink[Any], **options: Any) -> None:
        """Add a watch that passes the objects under `path` to `sink`. Call it before run(), which begins all watches.

        name: of the watch, for metrics and messages; a watch with the same name is replaced. path: of the list in the
        API. kind: the struct of the objects. options: `params`, `optional` and `backoff` of a Reflector.
        """
        self.reflectors[name] = Reflector(
            self._source, path, kind, sink, clock=self._clock, rng=self._rng, outage=self._outage, **options
        )

    def watch_configmap(self, name: str, configmap: str, sink: Sink[ConfigMap]) -> None:
        """Add a watch that passes one ConfigMap to `sink`. Call it before run(), which begins all watches.

        name: of the watch, for metrics and messages; a watch with the same name is replaced. configmap: NAMESPACE/NAME.
        """
        namespace, _, configmap_name = configmap.partition("/")
        path, params = (
            f"/api/v1/namespaces/{namespace}/configmaps",
            {"fieldSelector": f"metadata.name={configmap_name}"},
        )
        self.watch(name, path, ConfigMap, sink, params=params)

    def follow_configmap(self, name: str, configmap: str, follower: ConfigMapFollower[Any]) -> None:
        """Add a watch of one ConfigMap. The follower reads each version in a thread. Call it before run().

        name: of the watch, for metrics and messages; it must be new, because the follower of a replaced watch would
        stay. configmap: NAMESPACE/NAME.
        """
        self._followers.append(follower)
        self._loops.append(follower.run)
        self.watch_configmap(name, configmap, follower)

    def unsynced_watches(self) -> list[str]:
        """Return the names of the watches whose first list is not complete."""
        return [name for name, reflector in self.reflectors.items() if not reflector.has_synced]

    @property
    def has_synced(self) -> bool:
        """True if every first list is complete and each followed ConfigMap was read."""
        return not self.unsynced_watches() and all(follower.has_synced for follower in self._followers)

    def unready_reason(self) -> str | None:
        """Return why the readiness probe must fail; None if the program is ready."""
        if names := self.unsynced_watches():
            return f"waiting for the first list of {', '.join(names)}"
        return None if self.has_synced else "waiting to read a ConfigMap"

    async def wait_for_sync(self) -> None:
        """Wait until every first list is complete and each followed ConfigMap was read."""
        while not self.has_synced:
            await self._clock.sleep(SYNC_CHECK_S)

    def oldest_event_age_s(self) -> float:
        """Return the seconds since the last event of the watch whose last event is oldest.

        At least one watch is needed. A healthy watch has an event each minute, because the server sends bookmarks.
        Lists and accepted watches are events, too.
        """
        return self._clock.monotonic() - min(each.last_event_s for each in self.reflectors.values())

    async def run(self) -> None:
        """Watch until cancelled. An unexpected failure of one watch ends all of them, and the program."""
        await run_together(*(reflector.run for reflector in self.reflectors.values()), *self._loops)
