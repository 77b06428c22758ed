"""Keep leader memory in a ConfigMap: what the next leader has to know. Only the autoscaler's account may write it.

Lending terms are written before the growth for which they hold, so a leader that ends between the two loses none.
"""

from __future__ import annotations

import logging

from turnout.autoscaler.controller.scale_writer import FIELD_MANAGER
from turnout.autoscaler.memory import Memory, Terms, encode, read
from turnout.autoscaler.rbac_rules import MEMORY
from turnout.kube.client.apply import apply_object
from turnout.kube.client.clock import Clock
from turnout.kube.client.leased_calls import Calls
from turnout.kube.errors import CallError, Forbidden, NotFound
from turnout.kube.status import decode_json_object

log = logging.getLogger("turnout.autoscaler")

WRITE_INTERVAL_S = 10.0  # between writes that are not urgent
RETRY_S = 2.0  # between two attempts to read


class MemoryWriter:
    """The ConfigMap of one leader: read once when it begins to lead, written while it leads.

    namespace: of the ConfigMap and of our Lease.
    """

    def __init__(self, store: Calls, namespace: str, clock: Clock) -> None:
        """Prepare the writer. The class docstring explains `namespace`."""
        self._store, self._clock = store, clock
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{MEMORY}"
        self._terms: dict[str, Terms] = {}
        self._strikes: tuple[tuple[object, int], ...] = ()
        self._at_s, self._failed = 0.0, False  # time of the last attempt to write, and whether it failed

    async def read_memory(self, now_s: float) -> Memory:
        """Return the memory of the previous leader. Retry every RETRY_S until the API server answers.

        An empty memory if the ConfigMap does not exist or may not be read. now_s: seconds since 1970.
        """
        while True:
            try:
                raw = decode_json_object(self._path, await self._store.get(self._path))
                break
            except (NotFound, Forbidden) as error:
                if isinstance(error, Forbidden):
                    log.warning("memory_not_read", extra={"why": str(error)})
                raw = {}
                break
            except CallError as error:
                log.warning("memory_not_read", extra={"why": str(error)})
                await self._clock.sleep(RETRY_S)
        data = raw.get("data") or {}
        memory = read(data, now_s)
        self._terms, self._strikes, self._at_s = dict(memory.terms), _strike_counts(memory), self._clock.monotonic()
        log.info("memory_read", extra={"terms": len(memory.terms), "strikes": len(memory.strikes)})
        return memory

    async def write_changes(self, memory: Memory, now_s: float) -> bool:
        """Write the memory if it has changed. Return True if it was written. now_s: seconds since 1970.

        New or changed lending terms are written at once, unless the last write failed; other changes at most every
        WRITE_INTERVAL_S. A failed write is logged and retried later; it delays no growth.
        """
        monotonic_s = self._clock.monotonic()
        at_once = not self._failed and any(self._terms.get(uid) != terms for uid, terms in memory.terms.items())
        if not at_once and (monotonic_s - self._at_s < WRITE_INTERVAL_S or self._is_written(memory)):
            return False
        self._at_s = monotonic_s
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": MEMORY, "labels": {"app.kubernetes.io/part-of": "turnout"}},
            "data": encode(memory, now_s),
        }
        try:
            await apply_object(self._store, self._path, body, FIELD_MANAGER)
        except CallError as error:
            log.warning("memory_not_written", extra={"why": str(error)})
            self._failed = True
            return False
        self._terms, self._strikes, self._failed = dict(memory.terms), _strike_counts(memory), False
        return True

    def _is_written(self, memory: Memory) -> bool:
        """Return True if the last write contains the same terms and strikes."""
        return self._terms == memory.terms and self._strikes == _strike_counts(memory)


def _strike_counts(memory: Memory) -> tuple[tuple[object, int], ...]:
    """Return the owner and count of each strike, without the times, which change all the while."""
    return tuple((each.owner, each.times) for each in memory.strikes)
