"""One leader at a time, by a coordination.k8s.io Lease, and never a moment longer than the Lease is ours.

Time is monotonic and our own: others' clocks are never read, only whether their record changes. Election is no
fencing: work that writes asks `leading` first, carries `transitions`, and sets resourceVersion preconditions.
Source: docs/facts/ecosystem.md 1.4, 1.6
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import msgspec

from turnout.kube.client.clock import Clock
from turnout.kube.errors import BadAnswer, Conflict, NotFound
from turnout.kube.objects import Lease
from turnout.kube.times import rfc3339_micro

log = logging.getLogger(__name__)

_EXIT_STUCK = 70  # the work would not end: EX_SOFTWARE
_LONGEST_LEASE_S = 3600  # a record that claims more is held to our own length
_decoder = msgspec.json.Decoder(Lease)


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """client-go's values. The leader stops by renew_s + grace_s, before anybody may follow at lease_s."""

    lease_s: int = 15
    renew_s: float = 10.0
    retry_s: float = 2.0
    jitter: float = 0.2
    call_s: float = 5.0
    grace_s: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.retry_s * (1 + self.jitter) < self.renew_s < self.renew_s + self.grace_s <= self.lease_s:
            raise ValueError(f"a lease needs retry < renew and renew + grace <= lease: {self}")
        if not 0 <= self.jitter < 1 or self.call_s <= 0:
            raise ValueError(f"a lease needs 0 <= jitter < 1 and call_s > 0: {self}")


def lease_settings(lease_s: int) -> LeaseSettings:
    """client-go's proportions at any length: its 15 s are renewed within 10, tried every 2, and left 5 to stop in."""
    renew_s = lease_s * 2 / 3
    return LeaseSettings(lease_s, renew_s, lease_s * 2 / 15, call_s=lease_s / 3, grace_s=lease_s - renew_s)


class LeaseStore(Protocol):
    """The calls that an elector needs of a Client."""

    async def get(self, path: str, *, urgent: bool = False) -> bytes:
        """The Lease. Raises NotFound."""

    async def create(self, path: str, body: dict[str, Any], *, urgent: bool = False) -> bytes:
        """The Lease as created. Raises Conflict when it exists."""

    async def patch(self, path: str, body: dict[str, Any], *, urgent: bool = False) -> bytes:
        """The Lease as patched. Raises Conflict when the version in the body is not its own."""


class Elector:
    """One candidate for one Lease.

    holder: who was seen to lead last, "" for nobody. transitions: the number of our term, higher in each term of
    anybody; it means something only while `leading`.
    """

    def __init__(
        self,
        client: LeaseStore,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Clock,
        rng: random.Random,
        settings: LeaseSettings | None = None,
        abort: Callable[[int], NoReturn] = os._exit,
    ) -> None:
        """identity: unique to this start of this process. abort: ends the process at once, without clean-up."""
        if not identity:
            raise ValueError("an elector needs an identity")
        self._client, self._name, self._identity = client, name, identity
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._leases}/{name}"
        self._clock, self._rng, self._abort = clock, rng, abort
        self._settings = settings or LeaseSettings()
        self._version = ""
        self._deadline_s = -math.inf
        self._seen: tuple[str, str, str] | None = None
        self._seen_at_s = -math.inf
        self._highest = -1  # the highest transitions ever seen, so that a deleted Lease does not count from 0 again
        self.transitions = 0
        self.holder = ""

    @property
    def leading(self) -> bool:
        """True if the Lease is ours at this moment. A process that was paused reads False as soon as it wakes."""
        return self._clock.monotonic() < self._deadline_s

    async def confirmed(self) -> bool:
        """True if the Lease, read now, names us and our term. False when it cannot be read."""
        transitions = self.transitions
        try:
            async with self._clock.timeout(self._settings.call_s):
                lease = _decoder.decode(await self._client.get(self._path, urgent=True))
        except Exception as error:  # whatever it is, nothing confirms that we lead
            log.warning("lease_not_read", extra={"lease": self._path, "why": repr(error)})
            return False
        ours = (lease.spec.holder_identity, lease.spec.lease_transitions or 0) == (self._identity, transitions)
        return ours and self.leading

    async def run(self, work: Callable[[int], Awaitable[None]]) -> None:
        """Do `work(transitions)` whenever we lead, until it returns or raises, or until we are cancelled.

        When the Lease cannot be renewed in time the work is cancelled and we stand for election again; work that
        does not end within the grace period takes the whole process with it.
        """
        while True:
            await self._acquire()
            log.info("lease_taken", extra={"lease": self._path, "transitions": self.transitions})
            if await self._lead(work):
                return

    async def _lead(self, work: Callable[[int], Awaitable[None]]) -> bool:
        """Do the work for one term; return True if it came to its own end, False if the Lease was lost."""

        async def term() -> None:
            await work(self.transitions)

        working = asyncio.create_task(term())
        keeping = asyncio.create_task(self._keep())
        finished = False
        try:
            await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
            finished = working.done()
        finally:
            keeping.cancel()
            await self._end(working)
            await asyncio.wait({keeping})
            await self._release()
        if finished:
            working.result()
            return True
        log.warning("lease_lost", extra={"lease": self._path, "transitions": self.transitions, "holder": self.holder})
        return False

    async def _end(self, working: asyncio.Task[None]) -> None:
        """Cancel the work and see it end; or end the process, since a follower may start any moment."""
        working.cancel()
        try:
            async with self._clock.timeout(self._settings.grace_s):
                await asyncio.wait({working})
        except TimeoutError:
            log.critical("work_would_not_end", extra={"lease": self._path, "grace_s": self._settings.grace_s})
            self._abort(_EXIT_STUCK)
        if not working.cancelled() and (error := working.exception()):
            log.warning("work_failed", extra={"lease": self._path, "why": repr(error)})

    async def _acquire(self) -> None:
        said = ""
        while True:
            try:
                if await self._try():
                    return
                said = ""
            except Exception as error:  # whatever it is, we do not lead; the next try looks afresh
                if repr(error) != said:
                    said = repr(error)
                    log.warning("lease_not_read", extra={"lease": self._path, "why": said})
            await self._clock.sleep(self._retry_s())

    async def _try(self) -> bool:
        """Take the Lease if it is nobody's any more. Any error means that we do not have it."""
        try:
            async with self._clock.timeout(self._settings.call_s):
                lease = _decoder.decode(await self._client.get(self._path, urgent=True))
        except NotFound:
            return await self._create()
        self._observe(lease)
        if not self._is_free(lease):
            return False
        now = rfc3339_micro(self._clock.wall())
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._settings.lease_s,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": self._highest + 1,
        }
        sent_s = self._clock.monotonic()
        async with self._clock.timeout(self._settings.call_s):
            self._hold(await self._patch(lease.metadata.resource_version, spec), sent_s)
        return True

    async def _create(self) -> bool:
        now = rfc3339_micro(self._clock.wall())
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": self._settings.lease_s,
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": self._highest + 1,
            },
        }
        sent_s = self._clock.monotonic()
        async with self._clock.timeout(self._settings.call_s):
            self._hold(await self._client.create(self._leases, body, urgent=True), sent_s)
        return True

    def _observe(self, lease: Lease) -> None:
        """Remember when the record last changed, by our own clock, taken after it was read."""
        self.holder = lease.spec.holder_identity or ""
        self._highest = max(self._highest, lease.spec.lease_transitions or 0)
        record = (self.holder, lease.spec.renew_time or "", lease.metadata.resource_version)
        if record != self._seen:
            self._seen, self._seen_at_s = record, self._clock.monotonic()

    def _is_free(self, lease: Lease) -> bool:
        if self.holder in ("", self._identity):  # ours: a write of this process whose answer was lost
            return True
        claimed_s = lease.spec.lease_duration_seconds or 0
        lease_s = claimed_s if 0 < claimed_s <= _LONGEST_LEASE_S else self._settings.lease_s
        return self._clock.monotonic() - self._seen_at_s >= lease_s

    async def _keep(self) -> None:
        """Renew until the Lease is lost: to the clock or to somebody else."""
        while (left_s := self._deadline_s - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(self._retry_s(), left_s))
            left_s = self._deadline_s - self._clock.monotonic()
            if left_s <= 0:
                return
            try:
                async with self._clock.timeout(min(left_s, self._settings.call_s)):
                    if not await self._renew({"renewTime": rfc3339_micro(self._clock.wall())}):
                        self._deadline_s = -math.inf
                        return
            except Exception as error:  # any failure is a failed renewal, no more and no less
                log.warning("renewal_failed", extra={"lease": self._path, "why": repr(error)})

    async def _renew(self, spec: dict[str, Any]) -> bool:
        """Write to our own Lease. False when it is not ours any more."""
        sent_s = self._clock.monotonic()
        try:
            self._hold(await self._patch(self._version, {"holderIdentity": self._identity, **spec}), sent_s)
        except NotFound:
            return False
        except Conflict:  # a write of ours whose answer was lost, an annotation, or another leader
            lease = _decoder.decode(await self._client.get(self._path, urgent=True))
            self._observe(lease)
            if self.holder != self._identity or lease.spec.lease_transitions != self.transitions:
                return False
            sent_s = self._clock.monotonic()
            answer = await self._patch(lease.metadata.resource_version, {"holderIdentity": self._identity, **spec})
            self._hold(answer, sent_s)
        return True

    async def _release(self) -> None:
        """Let the next one start at once. If this fails the Lease runs out by itself."""
        left_s = self._deadline_s - self._clock.monotonic()
        if left_s <= 0:
            return
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": rfc3339_micro(self._clock.wall())}
        try:
            async with self._clock.timeout(min(left_s, self._settings.call_s)):
                await self._renew(spec)
            log.info("lease_released", extra={"lease": self._path, "transitions": self.transitions})
        except Exception as error:
            log.warning("lease_not_released", extra={"lease": self._path, "why": repr(error)})
        finally:
            self._deadline_s = -math.inf

    async def _patch(self, version: str, spec: dict[str, Any]) -> bytes:
        return await self._client.patch(
            self._path, {"metadata": {"resourceVersion": version}, "spec": spec}, urgent=True
        )

    def _hold(self, answer: bytes, sent_s: float) -> None:
        """The write of `sent_s` got through: the Lease is ours for renew_s from then, not from when we heard."""
        lease = _decoder.decode(answer)
        self._observe(lease)
        if self.holder != self._identity:
            self._deadline_s = -math.inf  # released
            return
        if not lease.metadata.resource_version:
            raise BadAnswer("PATCH", self._path, 200, "a Lease without a resourceVersion")
        self._version = lease.metadata.resource_version
        self.transitions = lease.spec.lease_transitions or 0
        self._deadline_s = sent_s + self._settings.renew_s

    def _retry_s(self) -> float:
        return self._settings.retry_s * self._rng.uniform(1 - self._settings.jitter, 1 + self._settings.jitter)
