"""Give the local cluster's parts the calls and changes of an embedded API's store without HTTP.

Injected faults concern HTTP callers only: the local cluster's own scheduler and kubelet do not meet them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec

from turnout.simulator.api import route
from turnout.simulator.api.errors import ApiRefusal, Unserved
from turnout.simulator.api.garbage_collector import collect
from turnout.simulator.api.store import Store
from turnout.simulator.api.verbs import Call, do, question
from turnout.simulator.api.watch_history import event_for
from turnout.simulator.cluster.runtime.clients import ApiError, WatchedObject


class Direct:
    """A client of a store in the same process.

    manager: the name under which it writes.
    """

    def __init__(self, store: Store, manager: str = "turnout-local") -> None:
        self._store, self._manager = store, manager

    async def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Carry out one request and return its JSON. Raises ApiError."""
        await asyncio.sleep(0)  # as any call does: others get their turn
        url = urlsplit(path)
        try:
            target = route.target(self._store.catalogue, url.path)
            answer = do(self._store, Call(method, target, dict(parse_qsl(url.query)), body, kind, self._manager))
        except ApiRefusal as refusal:
            raise ApiError(refusal.code, refusal.reason, refusal.message) from refusal
        except Unserved as error:
            raise ApiError(404, "NotFound", f"nobody serves {url.path}") from error
        finally:
            if self._store.ties.doubtful:
                asyncio.get_running_loop().call_soon(collect, self._store)
        return msgspec.json.decode(answer.raw)

    async def changes(self, path: str) -> AsyncIterator[tuple[str, WatchedObject]]:
        """Yield every object as it is and as it changes, without end, as clients.ApiClient does."""
        url = urlsplit(path)
        target = route.target(self._store.catalogue, url.path)
        selection = question(target, dict(parse_qsl(url.query)))
        journal = self._store.journal(target.kind)
        position = journal.end()
        for stored in self._store.find(target.kind, "", selection):
            yield "ADDED", WatchedObject(stored.raw, stored.obj)
        yield "SYNCED", WatchedObject(b"{}")
        changed = asyncio.Event()
        journal.wakers.add(changed.set)
        try:
            while True:
                changed.clear()
                for change in journal.since(position):
                    position += 1
                    found = event_for(change, selection)
                    if found is not None:
                        yield found[0], WatchedObject(found[1].raw, found[1].obj)
                if not changed.is_set():
                    await changed.wait()
        finally:
            journal.wakers.discard(changed.set)
