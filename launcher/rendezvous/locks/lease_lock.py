"""Locks the rounds of a job with a coordination.k8s.io Lease: the API server accepts each change from only one of
several.

kubectl shows the holder and its times; the record itself is an annotation. Times in it are for people: a holder is
alive while its record changes. Source: kube/client/lease.py, whose transport this uses
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from turnout.launcher.model import RoundRecord
from turnout.launcher.rendezvous.arbiter import (
    HOLD_S,
    ROUND,
    BadRecord,
    HeldRound,
    LockRefused,
    LockUnreachable,
    record_to_write,
    same_grant,
    seal,
    unseal,
)
from turnout.launcher.rendezvous.locks.round_lock import RoundLock

log = logging.getLogger(__name__)

CALL_S = 4.0  # seconds; two calls and a retried renewal fit into the hold


class LeaseStore(Protocol):
    """The part of turnout.kube.client.api_client.Client that a Lease lock uses.

    path: the URL's path of the Lease, or of its collection for `create`. body: the Lease, or a merge patch of it.
    urgent: the call does not wait behind others. deadline_s: seconds for the call with its retries.
    """

    async def get(self, path: str, *, urgent: bool = False, deadline_s: float = CALL_S) -> bytes:
        """Return the Lease as JSON. Raises NotFound if there is none, and another CallError if the call fails."""

    async def create(
        self, path: str, body: dict[str, Any], *, urgent: bool = False, deadline_s: float = CALL_S
    ) -> bytes:
        """Create the Lease and return it as JSON.

        Raises Conflict if it exists, NotFound if its namespace does not, and another CallError if the call fails.
        """

    async def patch(
        self, path: str, body: dict[str, Any], *, urgent: bool = False, deadline_s: float = CALL_S
    ) -> bytes:
        """Patch the Lease and return it as JSON.

        Raises Conflict if its version is not the one in the body, NotFound if there is no Lease, and another CallError
        if the call fails.
        """

    async def close(self) -> None:
        """Close its connections."""


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class _Lease(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)

    @property
    def note(self) -> str | None:
        """Return the text of the annotation with the record, None for none."""
        return (self.metadata.annotations or {}).get(ROUND)


_decoder = msgspec.json.Decoder(_Lease)


class RoundLease:
    """One Lease in the API server, which holds the round of a job in an annotation.

    name: "namespace/name". call_s: seconds for one call with its retries.
    """

    def __init__(self, client: LeaseStore, name: str, call_s: float) -> None:
        """Use the Lease of this name; it is not read yet. Raises LockRefused for an invalid name."""
        namespace, slash, bare = name.partition("/")
        if not slash or not namespace or not bare or "/" in bare:
            raise LockRefused(f"Lease {name!r}", "this is not a valid name", "name it as namespace/name")
        self._client, self._name, self._call_s, self._logged_note = client, name, call_s, ""
        self._bare, self._leases = bare, f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._leases}/{bare}"

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def get(self) -> _Lease | None:
        """Read the Lease, None if it does not exist. Raises what `_ask` raises."""
        return await self._ask("get", self._client.get(self._path, urgent=True, deadline_s=self._call_s))

    async def write(self, content: bytes, version: str, spec: dict[str, Any]) -> _Lease | None:
        """Write the Lease and return it; None if its version is another one. version: the expected one, "" to create.

        content: a sealed round, for the annotation. spec: the fields of its spec to write. Raises what `_ask` raises.
        """
        meta: dict[str, Any] = {"annotations": {ROUND: content.decode()}}
        if version:
            change = {"metadata": {**meta, "resourceVersion": version}, "spec": spec}
            patching = self._client.patch(self._path, change, urgent=True, deadline_s=self._call_s)
            return await self._ask("patch", patching)
        meta["name"] = self._bare
        new = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
        return await self._ask("create", self._client.create(self._leases, new, urgent=True, deadline_s=self._call_s))

    async def _ask(self, verb: str, call: Awaitable[bytes]) -> _Lease | None:
        """Await a call to the API server and decode the Lease. None if it does not exist or its version differs.

        verb: "get", "create" or "patch". Raises LockRefused if the API server refuses the call, also for a missing
        namespace, and LockUnreachable if there is no valid answer.
        """
        from turnout.kube.errors import CallError, Conflict, Forbidden, NotFound, Rejected

        name = f"Lease {self._name}"
        try:
            return _decoder.decode(await call)
        except Conflict:
            return None
        except NotFound as error:
            if verb == "create":
                raise LockRefused(name, "its namespace does not exist", "name an existing one") from error
            return None
        except Forbidden as error:
            step = "apply deploy/manifests/launcher for that name, and start the pods with its ServiceAccount"
            raise LockRefused(name, f"the account of this pod may not {verb} it", step) from error
        except Rejected as error:
            step = "correct the name, or change what the admission policy rejects"
            raise LockRefused(name, f"the API server rejects it: {error.message[:300]}", step) from error
        except CallError as error:
            raise LockUnreachable(name, str(error)) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LockUnreachable(name, f"the answer is no Lease: {error}") from error

    def record(self, lease: _Lease) -> RoundRecord | None:
        """Return the round that a Lease holds, also one of another run; None if it holds none.

        None also for a record that cannot be read, which is logged once. Raises LockRefused if the Lease belongs to
        another program: it has a holder and no record.
        """
        if lease.note is None:
            if lease.spec.holder_identity:
                why = f"{lease.spec.holder_identity!r} holds it, and is no job of Turnout"
                raise LockRefused(f"Lease {self._name}", why, "name another Lease, or delete this one")
            return None
        try:
            return unseal(lease.note.encode())
        except BadRecord as error:  # changed by hand; the living members know the round
            if self._logged_note != lease.note:
                self._logged_note = lease.note
                log.warning("round_unreadable", extra={"lease": self._name, "why": str(error)})
            return None


class LeaseLock(RoundLock):
    """Gives one member access to its job's Lease."""

    kind = "lease"

    def __init__(
        self,
        client: LeaseStore,
        name: str,
        run: str,
        *,
        hold_s: float = HOLD_S,
        call_s: float = CALL_S,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Use the Lease named "namespace/name". Raises LockRefused for an invalid name.

        client: closed with this lock. hold_s: written to the Lease as its duration.
        """
        self._round_lease = RoundLease(client, name, call_s)
        super().__init__(run, monotonic)
        self._hold_s, self._wall = hold_s, wall
        self._turn = asyncio.Lock()  # one call at a time: a late answer must not hide a newer one
        self._last = _Lease()

    @classmethod
    async def open(
        cls, name: str, run: str, *, kubeconfig: str | None = None, context: str | None = None, hold_s: float = HOLD_S
    ) -> LeaseLock:
        """Connect to the API server: by the given kubeconfig, else the pod's service account, else the user's
        kubeconfig.

        name: "namespace/name" of the Lease; it is not read yet. run: the job's id. context: of the kubeconfig, None for
        the current one. hold_s: written to the Lease as its duration. Raises LockRefused if no kubeconfig can be used,
        the name is invalid, or the Kubernetes library is not installed.
        """

        def load() -> tuple[Any, type[Exception]]:  # the import takes a second, in which the loop goes on
            """Import the Kubernetes client, and return its class and the error of a bad kubeconfig."""
            from turnout.kube.client.api_client import Client, load_library
            from turnout.kube.errors import BadKubeconfig

            load_library()
            return Client, BadKubeconfig

        try:
            client, bad_kubeconfig = await asyncio.to_thread(load)
        except ModuleNotFoundError as error:
            raise LockRefused(f"Lease {name}", str(error), "pip install 'turnout[kubernetes]'") from error
        try:
            connected_client = await client.open(kubeconfig, context)
        except bad_kubeconfig as error:
            step = "let the pod have its service account's token, or name a kubeconfig"
            raise LockRefused(f"Lease {name}", str(error), step) from error
        try:
            return cls(connected_client, name, run, hold_s=hold_s)
        except LockRefused:
            await connected_client.close()
            raise

    async def look(self) -> HeldRound:
        """Return the round that the Lease holds now; one without a record if there is no Lease.

        Raises LockRefused if the API server refuses the call or the Lease belongs to another program, LockUnreachable
        if there is no valid answer.
        """
        async with self._turn:
            return self._held_round(await self._round_lease.get() or _Lease())

    async def claim(self, record: RoundRecord, after: HeldRound) -> HeldRound | None:
        """Write the record if the Lease is unchanged since `after`, apart from renewals by the record's coordinator.

        after: the last result of `look`, `claim` or `renew`. Returns the claimed round, None if the Lease changed.
        Creates the Lease if `after` found none. Writes the newer one of the restart budgets of `record` and `after`.
        Raises StaleRound if the record of the same run in `after` has a round that is not lower, LockRefused if the API
        server refuses the call, and LockUnreachable if the result is unknown.
        """
        async with self._turn:
            after = self._last_observed(after, record.coordinator)
            record = record_to_write(record, after)
            if after.token != self._last.metadata.resource_version:
                return None
            content, spec = seal(record, next(self._beats)), self._claim_spec(record.coordinator, self._last.spec)
            lease = await self._round_lease.write(content, after.token, spec)
            return self._own_round(lease) if lease else None

    def _last_observed(self, after: HeldRound, coordinator: str) -> HeldRound:
        """Return `after` with the newest version of the Lease if `coordinator` itself wrote that version, else `after`.

        So a member's own renewals do not block its next claim.
        """
        current, before = self._round_lease.record(self._last), after.record
        if current is None or before is None or before.coordinator != coordinator or not same_grant(current, before):
            return after
        return replace(after, record=current, token=self._last.metadata.resource_version)

    def _claim_spec(self, coordinator: str, former_spec: _Spec) -> dict[str, Any]:
        """Return the spec of the Lease that this coordinator writes.

        former_spec: the spec that it replaces. If the holder changes, leaseTransitions is raised by one (0 if there was
        none), and acquireTime is now.
        """
        now = _lease_time(self._wall())
        spec = {"holderIdentity": coordinator, "leaseDurationSeconds": math.ceil(self._hold_s), "renewTime": now}
        if coordinator != (former_spec.holder_identity or ""):
            before = former_spec.lease_transitions
            spec |= {"acquireTime": now, "leaseTransitions": 0 if before is None else before + 1}
        return spec

    async def renew(self, held_round: HeldRound) -> HeldRound | None:
        """Write the record again with a new time. Return the round; None if the Lease is deleted or has another grant.

        If only another field of the Lease has changed, the renewal is repeated once. None also if the Lease changes
        again meanwhile, or if `held_round` has no record. Raises LockRefused if the API server refuses the call, and
        LockUnreachable if the result is unknown.
        """
        if (record := held_round.record) is None:
            return None
        spec = {"holderIdentity": record.coordinator, "renewTime": _lease_time(self._wall())}
        async with self._turn:
            content = seal(record, next(self._beats))
            lease = await self._round_lease.write(content, held_round.token, spec)
            if lease is None:  # a label was written, the answer to a renewal was lost, or the Lease is lost
                current = await self._round_lease.get()
                if current is None or not self._is_ours(current, record):
                    return None
                content = seal(record, next(self._beats))
                lease = await self._round_lease.write(content, current.metadata.resource_version, spec)
            return self._own_round(lease) if lease else None

    async def close(self) -> None:
        """Close the connections."""
        await self._round_lease.close()

    def _held_round(self, lease: _Lease) -> HeldRound:
        """Return the round in a Lease, with the time since its holder last renewed it. Remembers the Lease."""
        self._last = lease
        holder = (lease.spec.holder_identity, lease.spec.renew_time, lease.note)
        return self._observe_round(self._round_lease.record(lease), lease.metadata.resource_version, holder)

    def _own_round(self, lease: _Lease) -> HeldRound:
        """Return the round that this member has just written: its holder was quiet for 0 s."""
        return replace(self._held_round(lease), unrenewed_s=0.0)

    def _is_ours(self, lease: _Lease, record: RoundRecord) -> bool:
        """Return True if the Lease holds the round of this record, granted to the same member."""
        current = self._round_lease.record(lease)
        return current is not None and same_grant(current, record)


def _lease_time(wall_s: float) -> str:
    """Return a wall-clock time as Kubernetes writes it in a Lease. wall_s: seconds since 1970."""
    from turnout.kube.times import rfc3339_micro

    return rfc3339_micro(wall_s)
