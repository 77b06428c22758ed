"""Keeps in a ConfigMap what the next leader has to know. Only the account of the autoscaler may write it.

Lending terms are written before the growth for which they hold, so a leader that ends between the two loses none.
"""

from __future__ import annotations

import logging

import msgspec

from turnout.autoscaler.controller.scale_writer import FIELD_MANAGER
from turnout.autoscaler.memory import Memory, Terms, encode, read
from turnout.autoscaler.rbac_rules import MEMORY
from turnout.kube.client.apply import apply_object
from turnout.kube.client.clock import Clock
from turnout.kube.client.leased_calls import Calls
from turnout.kube.errors import CallError, Forbidden, NotFound

log = logging.getLogger("turnout.autoscaler")

EACH_S = 10.0  # between writes that are not urgent
RETRY_S = 2.0


class MemoryWriter:
    """The ConfigMap of one leader: read once when it begins to lead, written while it leads.

    namespace: of the ConfigMap, as of our Lease.
    """

    def __init__(self, store: Calls, namespace: str, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{MEMORY}"
        self._terms: dict[str, Terms] = {}
        self._strikes: tuple[tuple[object, int], ...] = ()
        self._at_s, self._failed = 0.0, False  # the last attempt

    async def read_memory(self, now_s: float) -> Memory:
        """Return what the previous leader knew. Retries until the API server answers. now_s: seconds since 1970.

        Returns an empty memory if the ConfigMap does not exist or must not be read.
        """
        while True:
            try:
                raw = msgspec.json.decode(await self._store.get(self._path))
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
        self._terms, self._strikes, self._at_s = dict(memory.terms), _known(memory), self._clock.monotonic()
        log.info("memory_read", extra={"terms": len(memory.terms), "strikes": len(memory.strikes)})
        return memory

    async def write_changes(self, memory: Memory, now_s: float) -> bool:
        """Write what has changed; True if it was written. New lending terms are written at once, the rest now and then.

        A write that fails is logged and retried later. It delays no growth.
        """
        steady_s = self._clock.monotonic()
        at_once = not self._failed and any(self._terms.get(uid) != terms for uid, terms in memory.terms.items())
        if not at_once and (steady_s - self._at_s < EACH_S or self._same(memory)):
            return False
        self._at_s = steady_s
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
        self._terms, self._strikes, self._failed = dict(memory.terms), _known(memory), False
        return True

    def _same(self, memory: Memory) -> bool:
        return self._terms == memory.terms and self._strikes == _known(memory)


def _known(memory: Memory) -> tuple[tuple[object, int], ...]:
    """Return the strikes without their times, which change all the while."""
    return tuple((each.owner, each.times) for each in memory.strikes)
