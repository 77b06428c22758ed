"""Leader election by a coordination.k8s.io Lease: at most one leader at any moment.

Only our own monotonic clock counts. Other machines' clocks are never read; only a change of their record matters.
Election alone does not fence: code that writes must check `is_leading`, send `transitions`, and set a resourceVersion
precondition. Source: docs/facts/ecosystem.md 1.4, 1.6
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
from turnout.kube.errors import BadResponse, Conflict, NotFound
from turnout.kube.objects import Lease
from turnout.kube.status import decode_answer
from turnout.kube.times import rfc3339_micro

log = logging.getLogger(__name__)

_EXIT_WORK_STUCK = 70  # EX_SOFTWARE: the work did not stop
_MAX_LEASE_S = 3600  # for a record with a longer duration, our own duration counts
_decoder = msgspec.json.Decoder(Lease)


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """The times of an election, in seconds; the defaults are client-go's.

    The leader stops at most renew_s + grace_s after its last renewal. This is not later than lease_s, when another
    candidate may take the Lease.
    """

    lease_s: int = 15  # without a renewal for this time, another candidate may take the Lease
    renew_s: float = 10.0  # without a renewal for this time, the leader stops its work
    retry_s: float = 2.0  # between two tries to take or renew the Lease
    jitter: float = 0.2  # random share of retry_s, 0 <= jitter < 1
    call_s: float = 5.0  # deadline of one call, > 0
    grace_s: float = 5.0  # in which the work must stop

    def __post_init__(self) -> None:
        if not 0 < self.retry_s * (1 + self.jitter) < self.renew_s < self.renew_s + self.grace_s <= self.lease_s:
            raise ValueError(f"a lease needs retry < renew and renew + grace <= lease: {self}")
        if not 0 <= self.jitter < 1 or self.call_s <= 0:
            raise ValueError(f"a lease needs 0 <= jitter < 1 and call_s > 0: {self}")


def lease_settings(lease_s: int) -> LeaseSettings:
    """Return settings with client-go's proportions for a Lease of `lease_s` seconds.

    renew_s is 2/3 of it, retry_s 2/15, call_s and grace_s 1/3 each. Raises ValueError if it is not above 0.
    """
    renew_s = lease_s * 2 / 3
    return LeaseSettings(lease_s, renew_s, lease_s * 2 / 15, call_s=lease_s / 3, grace_s=lease_s - renew_s)


class LeaseStore(Protocol):
    """The calls of a Client that an Elector needs."""

    async def get(self, path: str, *, urgent: bool = False) -> bytes:
        """Return the Lease. Raises NotFound."""

    async def create(self, path: str, body: dict[str, Any], *, urgent: bool = False) -> bytes:
        """Return the created Lease. Raises Conflict if it exists."""

    async def patch(self, path: str, body: dict[str, Any], *, urgent: bool = False) -> bytes:
        """Return the patched Lease. Raises Conflict if the version in the body is stale."""


class LeaseObject:
    """One Lease in the API server. path: of its URL."""

    def __init__(self, client: LeaseStore, namespace: str, name: str) -> None:
        """Read and write a Lease by the calls of a client. The Lease may not exist yet."""
        self._client, self._name = client, name
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.path = f"{self._leases}/{name}"

    async def get(self) -> Lease:
        """Return the Lease. Raises NotFound if it does not exist, or another CallError."""
        return decode_answer(_decoder, "GET", self.path, await self._client.get(self.path, urgent=True))

    async def create(self, spec: dict[str, Any]) -> Lease:
        """Create the Lease and return it. Raises CallError, which is Conflict if it exists."""
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": spec,
        }
        answer = await self._client.create(self._leases, body, urgent=True)
        return decode_answer(_decoder, "POST", self._leases, answer)

    async def patch(self, version: str, spec: dict[str, Any]) -> Lease:
        """Patch the Lease and return it. version: the resourceVersion that it must still have. Raises CallError."""
        body = {"metadata": {"resourceVersion": version}, "spec": spec}
        return decode_answer(_decoder, "PATCH", self.path, await self._client.patch(self.path, body, urgent=True))


class LeaseRecord:
    """The holder of a Lease as last read, and how long its record has been the same by our own clock.

    holder: the last known leader, "" for none. highest_transitions: of all records; a Lease that was deleted continues
    from here, not from 0.
    """

    def __init__(self) -> None:
        """Start with no record."""
        self.holder = ""
        self.highest_transitions = -1
        self._claimed_s = 0  # the duration that the holder claims, in seconds
        self._last_record: tuple[str, str, str] | None = None  # (holder, renewTime, resourceVersion) as last read
        self._last_change_s = -math.inf  # when the record last changed, by our monotonic clock

    def update(self, lease: Lease, now_s: float) -> None:
        """Record a Lease that was read. now_s: by our monotonic clock."""
        self.holder = lease.spec.holder_identity or ""
        self._claimed_s = lease.spec.lease_duration_seconds or 0
        self.highest_transitions = max(self.highest_transitions, lease.spec.lease_transitions or 0)
        record = (self.holder, lease.spec.renew_time or "", lease.metadata.resource_version)
        if record != self._last_record:
            self._last_record, self._last_change_s = record, now_s

    def is_free(self, identity: str, now_s: float, default_lease_s: float) -> bool:
        """Return True if a candidate may take the Lease.

        It may if the Lease has no holder, if the holder is this candidate, or if the holder has not renewed it in time.
        identity: of the candidate. now_s: by our monotonic clock. default_lease_s: the duration that counts if the
        holder claims none, or one above _MAX_LEASE_S, in seconds.
        """
        if self.holder in ("", identity):  # ours: a write of this process whose answer was lost
            return True
        lease_s = self._claimed_s if 0 < self._claimed_s <= _MAX_LEASE_S else default_lease_s
        return now_s - self._last_change_s >= lease_s


class Elector:
    """A candidate for one Lease."""

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
        """Make a candidate that does not run yet.

        namespace, name: of the Lease. identity: unique to this start of this process. settings: None for the defaults.
        abort: ends the process with an exit code at once, without cleanup.
        """
        if not identity:
            raise ValueError("an elector needs an identity")
        self._lease, self._identity = LeaseObject(client, namespace, name), identity
        self._clock, self._rng, self._abort = clock, rng, abort
        self._settings = settings or LeaseSettings()
        self._version = ""  # the resourceVersion of our last write
        self._deadline_s = -math.inf  # until then we hold the Lease, by our monotonic clock
        self.record = LeaseRecord()
        self.transitions = 0  # the number of our term, higher than every earlier term; valid only while leading

    @property
    def is_leading(self) -> bool:
        """True if we hold the Lease at this moment. After a long pause of the process it is False at once."""
        return self._clock.monotonic() < self._deadline_s

    async def confirm(self) -> bool:
        """Ask the server: return True if the Lease names us and our term, and has not expired by our clock.

        Return False otherwise, also if the Lease cannot be read, which is logged.
        """
        transitions = self.transitions
        try:
            async with self._clock.timeout(self._settings.call_s):
                lease = await self._lease.get()
        except Exception as error:  # any failure leaves it unconfirmed
            log.warning("lease_not_read", extra={"lease": self._lease.path, "why": repr(error)})
            return False
        is_ours = (lease.spec.holder_identity, lease.spec.lease_transitions or 0) == (self._identity, transitions)
        return is_ours and self.is_leading

    async def run(self, work: Callable[[int], Awaitable[None]]) -> None:
        """Wait for the Lease and run `work(transitions)`, in one term after the other, until the work returns or
        raises.

        The argument of `work` is the number of transitions of the Lease, which is the number of the term. When the
        Lease cannot be renewed in time, cancel the work and become a candidate again. The Lease is released at each
        end. An exception of the work is raised here. Work that does not end within the grace period ends the whole
        process.
        """
        while True:
            await self._acquire()
            log.info("lease_taken", extra={"lease": self._lease.path, "transitions": self.transitions})
            if await self._lead(work):
                return

    async def _lead(self, work: Callable[[int], Awaitable[None]]) -> bool:
        """Run the work for one term, and release the Lease.

        Return True if the work returned; False if the Lease was lost, then the work was cancelled. An exception of the
        work is raised, or only logged if the Lease was lost before. work: as for run().
        """

        async def term() -> None:
            await work(self.transitions)

        work_task = asyncio.create_task(term())
        renewal_task = asyncio.create_task(self._renew_until_lost())
        work_finished = False
        try:
            await asyncio.wait({work_task, renewal_task}, return_when=asyncio.FIRST_COMPLETED)
            work_finished = work_task.done()
        finally:
            renewal_task.cancel()
            await self._end(work_task)
            await asyncio.wait({renewal_task})
            await self._release()
        if work_finished:
            work_task.result()
            return True
        log.warning(
            "lease_lost",
            extra={"lease": self._lease.path, "transitions": self.transitions, "holder": self.record.holder},
        )
        return False

    async def _end(self, work_task: asyncio.Task[None]) -> None:
        """Cancel the work and wait until it has stopped. An exception of the work is logged.

        If it does not stop within the grace period, end the process, because another leader may start then.
        """
        work_task.cancel()
        try:
            async with self._clock.timeout(self._settings.grace_s):
                await asyncio.wait({work_task})
        except TimeoutError:
            log.critical("work_would_not_end", extra={"lease": self._lease.path, "grace_s": self._settings.grace_s})
            self._abort(_EXIT_WORK_STUCK)
        if not work_task.cancelled() and (error := work_task.exception()):
            log.warning("work_failed", extra={"lease": self._lease.path, "why": repr(error)})

    async def _acquire(self) -> None:
        """Try to take the Lease at random intervals until it is ours. An error that repeats is logged only once."""
        reported_error = ""
        while True:
            try:
                if await self._try_to_acquire():
                    return
                reported_error = ""
            except Exception as error:  # after any failure we do not lead; the next try reads the Lease again
                if repr(error) != reported_error:
                    reported_error = repr(error)
                    log.warning("lease_not_taken", extra={"lease": self._lease.path, "why": reported_error})
            await self._clock.sleep(_retry_wait_s(self._settings, self._rng))

    async def _try_to_acquire(self) -> bool:
        """Take or create the Lease if it is free, and return True. Return False if another candidate holds it.

        A Lease that does not exist is created. Raises CallError, which is Conflict if another candidate takes or
        creates it in the meantime, and TimeoutError after the deadline of a call.
        """
        lease: Lease | None = None
        try:
            async with self._clock.timeout(self._settings.call_s):
                lease = await self._lease.get()
        except NotFound:
            pass
        if lease is not None:
            self.record.update(lease, self._clock.monotonic())
            if not self.record.is_free(self._identity, self._clock.monotonic(), self._settings.lease_s):
                return False
        now = rfc3339_micro(self._clock.wall())
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._settings.lease_s,
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": self.record.highest_transitions + 1,
        }
        sent_s = self._clock.monotonic()
        async with self._clock.timeout(self._settings.call_s):
            answer = await (
                self._lease.create(spec) if lease is None else self._lease.patch(lease.metadata.resource_version, spec)
            )
            self._accept_answer(answer, sent_s)
        return True

    async def _renew_until_lost(self) -> None:
        """Renew the Lease until it expires or another candidate takes it, then return.

        A failed renewal is logged and retried.
        """
        while (remaining_s := self._deadline_s - self._clock.monotonic()) > 0:
            await self._clock.sleep(min(_retry_wait_s(self._settings, self._rng), remaining_s))
            remaining_s = self._deadline_s - self._clock.monotonic()
            if remaining_s <= 0:
                return
            try:
                async with self._clock.timeout(min(remaining_s, self._settings.call_s)):
                    if not await self._renew({"renewTime": rfc3339_micro(self._clock.wall())}):
                        self._deadline_s = -math.inf
                        return
            except Exception as error:  # every failure counts as a failed renewal
                log.warning("renewal_failed", extra={"lease": self._lease.path, "why": repr(error)})

    async def _renew(self, spec: dict[str, Any]) -> bool:
        """Write fields of the spec to our own Lease. Return False if we no longer hold it, or if it was deleted.

        spec: the fields. On a conflict the Lease is read, and the write is repeated once if the Lease is still ours.
        Raises CallError.
        """
        sent_s = self._clock.monotonic()
        try:
            self._accept_answer(
                await self._lease.patch(self._version, {"holderIdentity": self._identity, **spec}), sent_s
            )
        except NotFound:
            return False
        except Conflict:  # a write of ours whose answer was lost, an annotation, or another leader
            lease = await self._lease.get()
            self.record.update(lease, self._clock.monotonic())
            if self.record.holder != self._identity or lease.spec.lease_transitions != self.transitions:
                return False
            sent_s = self._clock.monotonic()
            answer = await self._lease.patch(
                lease.metadata.resource_version, {"holderIdentity": self._identity, **spec}
            )
            self._accept_answer(answer, sent_s)
        return True

    async def _release(self) -> None:
        """Release the Lease, so that another candidate can take it at once. Do nothing if it is no longer ours.

        Raises nothing: a failed write is logged, and the Lease expires. Afterwards we do not lead in any case.
        """
        remaining_s = self._deadline_s - self._clock.monotonic()
        if remaining_s <= 0:
            return
        spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": rfc3339_micro(self._clock.wall())}
        try:
            async with self._clock.timeout(min(remaining_s, self._settings.call_s)):
                await self._renew(spec)
            log.info("lease_released", extra={"lease": self._lease.path, "transitions": self.transitions})
        except Exception as error:
            log.warning("lease_not_released", extra={"lease": self._lease.path, "why": repr(error)})
        finally:
            self._deadline_s = -math.inf

    def _accept_answer(self, lease: Lease, sent_s: float) -> None:
        """Take over the Lease in the answer to a successful write: we hold it for renew_s from the time of the write.

        lease: in the answer. sent_s: when the write was sent, by our monotonic clock. If the answer names another
        holder or none, we no longer hold the Lease. Raises BadResponse without a resourceVersion.
        """
        self.record.update(lease, self._clock.monotonic())
        if self.record.holder != self._identity:
            self._deadline_s = -math.inf  # released
            return
        if not lease.metadata.resource_version:
            raise BadResponse("PATCH", self._lease.path, 200, "a Lease without a resourceVersion")
        self._version = lease.metadata.resource_version
        self.transitions = lease.spec.lease_transitions or 0
        self._deadline_s = sent_s + self._settings.renew_s


def _retry_wait_s(settings: LeaseSettings, rng: random.Random) -> float:
    """Return the random time until the next try, in seconds."""
    return settings.retry_s * rng.uniform(1 - settings.jitter, 1 + settings.jitter)
