"""Publish reservations in a ConfigMap, and end them.

A reservation is published before the first pod is evicted for it, so that extender and autoscaler keep other pods away
from its nodes. It ends when its gang runs, when its gang is deleted, when the one who asked for it gives it back, or
by its time. A new leader continues with what the former one has published.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from turnout.jobs.gang import GangKey
from turnout.jobs.reservation import MAX_RESERVATION_S, Reservation, ReservationReason, data_key, reservation_text
from turnout.kube.backoff import Backoff, RetryPauses
from turnout.kube.client.clock import Clock
from turnout.kube.client.leased_calls import Calls
from turnout.kube.errors import CallError, NotFound
from turnout.scheduler_ext.gates.evictions import ReservationEnd, count_running, end_of_reservation
from turnout.scheduler_ext.model import EventReason, Notice
from turnout.scheduler_ext.planner.plans import Plans
from turnout.scheduler_ext.server.metrics import NominatorMetrics
from turnout.scheduler_ext.server.watches import WatchState

log = logging.getLogger("turnout.nominator")

WRITE_INTERVAL_S = 1.0
WRITE_BACKOFF = Backoff(first_s=1.0, max_s=30.0)  # of the writes for a gang, when one fails


class ReservationWriter:
    """Keeps the ConfigMap in agreement with the reservations of this process while `run` runs."""

    def __init__(
        self,
        watches: WatchState,
        calls: Calls,
        clock: Clock,
        metrics: NominatorMetrics,
        notify: Callable[[Notice], None],
        configmap: str,
    ) -> None:
        """Start without reservations. notify: receives notices for the owners of pods. configmap: namespace/name."""
        self._watches, self._calls, self._clock, self._notify = watches, calls, clock, notify
        self._plans, self._metrics = watches.plans, metrics
        namespace, _, self._name = configmap.partition("/")
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"
        self._active: dict[GangKey, Reservation] = {}
        self._last_writes: dict[GangKey, Reservation] = {}  # as the last write of this process left it
        self._absent_since_s: dict[GangKey, float] = {}  # holder -> since when it does not exist
        self._failed_s: dict[GangKey, float] = {}  # holder of a repair that got no room -> when that ended
        self._pauses = RetryPauses[GangKey](WRITE_BACKOFF)

    def reserve(self, reservation: Reservation) -> None:
        """Reserve nodes in this process at once. `publish` or the next tick publishes that."""
        self._active[reservation.holder] = reservation
        self._plans.reserve(reservation)

    def release(self, holder: GangKey, reason: ReservationReason) -> None:
        """Give back the nodes that are reserved for a gang for this reason. The next tick publishes that.

        Does nothing if the gang has no reservation for this reason.
        """
        if (reservation := self._active.get(holder)) is not None and reservation.reason is reason:
            self._end(reservation, ReservationEnd.RELEASED)

    async def publish(self, holder: GangKey) -> bool:
        """Publish a gang's reservation if it differs from the published one. True also if the gang has none.

        False if the write fails: then no pod may be evicted yet. A reservation of too many nodes to publish is logged
        and counts as published.
        """
        reservation = self._active.get(holder)
        if reservation is None or self._last_writes.get(holder) == reservation:
            return True
        if (text := reservation_text(reservation)) is None:
            log.warning("reservation_not_published", extra={"gang": str(holder), "why": "it names too many nodes"})
        elif not await self._write(holder, text):
            return False
        self._last_writes[holder] = reservation
        return True

    def count(self, namespace: str, reason: ReservationReason) -> int:
        """Count the gangs of a namespace for which nodes are reserved for this reason."""
        return sum(1 for each in self._active.values() if (each.holder.namespace, each.reason) == (namespace, reason))

    def end_of(self, holder: GangKey, reason: ReservationReason) -> float | None:
        """Return when the reservation of a gang ends, in seconds since 1970; None if it has none for this reason."""
        reservation = self._active.get(holder)
        return reservation.until_s if reservation is not None and reservation.reason is reason else None

    def failed_within(self, holder: GangKey, seconds: float) -> bool:
        """Return True if a repair of a gang got no room, and ended less than so many seconds ago."""
        failed_s = self._failed_s.get(holder)
        return failed_s is not None and self._clock.monotonic() - failed_s < seconds

    async def run(self) -> None:
        """Continue with the reservations that the ConfigMap shows, and publish changes until cancelled."""
        self._active = {each.holder: each for each in self._watches.published_reservations.values()}
        for holder in [each.holder for each in self._plans.reservations if each.holder not in self._active]:
            self._plans.reservations.release(holder)  # of an earlier term of this process
        self._last_writes = dict(self._active)
        for table in (self._absent_since_s, self._failed_s, self._pauses):
            table.clear()
        while True:
            await self.tick()
            await self._clock.sleep(WRITE_INTERVAL_S)

    async def tick(self) -> None:
        """End the reservations that are due, publish new ones, and remove the keys of others.

        Failed writes are retried later.
        """
        if self._watches.missing() is None:
            self._end_due()
        now_s = self._clock.monotonic()
        for holder in list(self._active):
            if self._pauses.may_try(holder, now_s):
                await self.publish(holder)
        published = {each.holder for each in self._watches.published_reservations.values()}
        for holder in (published | self._last_writes.keys()) - self._active.keys():
            if self._pauses.may_try(holder, now_s) and await self._write(holder, None):
                self._last_writes.pop(holder, None)

    def _end_due(self) -> None:
        """End the reservations whose gang runs or is deleted (REPAIR: for ABSENT_S), and those whose time is over."""
        now_s, wall_s, gangs = self._clock.monotonic(), self._clock.wall(), self._plans.view.gangs
        for key in [key for key in self._absent_since_s if key in gangs or key not in self._active]:
            del self._absent_since_s[key]
        for key in [key for key, failed_s in self._failed_s.items() if now_s - failed_s >= MAX_RESERVATION_S]:
            del self._failed_s[key]
        for reservation in list(self._active.values()):
            gang, absent_s = gangs.get(reservation.holder), 0.0
            if gang is None:
                absent_s = now_s - self._absent_since_s.setdefault(reservation.holder, now_s)
            if (end := end_of_reservation(reservation, gang, absent_s, wall_s)) is not None:
                self._end(reservation, end)

    def _end(self, reservation: Reservation, end: ReservationEnd) -> None:
        """Give the nodes of a reservation back, count and log it.

        A repair whose time is over is reported to the gang's owner.
        """
        holder = reservation.holder
        self._active.pop(holder, None)
        self._plans.reservations.release(holder)
        self._metrics.reservations_ended.labels(reservation.reason, end).inc()
        log.info("reservation_ended", extra={"gang": str(holder), "reason": reservation.reason, "end": end})
        if end is ReservationEnd.EXPIRED and reservation.reason is ReservationReason.REPAIR:
            self._failed_s[holder] = self._clock.monotonic()
            _report_failure(self._plans, self._notify, reservation)

    async def _write(self, holder: GangKey, text: str | None) -> bool:
        """Write or remove a gang's key of the ConfigMap, and create the ConfigMap if it is missing.

        text: None to remove the key. False on failure, which is counted and logged and pauses the writes for this gang.
        """
        body = {"data": {data_key(holder): text}}
        try:
            try:
                await self._calls.patch(f"{self._path}/{self._name}", body)
            except NotFound:
                if text is not None:
                    await self._calls.create(self._path, {"metadata": {"name": self._name}, **body})
        except CallError as error:
            self._metrics.patch_failures.labels("reservation", type(error).__name__).inc()
            log.warning("reservation_not_published", extra={"gang": str(holder), "why": str(error)})
            self._pauses.note_failure(holder, self._clock.monotonic(), error.retry_after_s)
            return False
        self._pauses.note_success(holder)
        return True


def _report_failure(plans: Plans, notify: Callable[[Notice], None], reservation: Reservation) -> None:
    """Notify the owner of a gang that the gang did not get the room that was reserved for its move.

    notify: receives the notice. Does nothing if the gang or its pods do not exist any more.
    """
    gang = plans.view.gangs.get(reservation.holder)
    pod = None if gang is None else min(gang.living(), key=lambda m: (not m.is_waiting, m.name), default=None)
    if gang is None or pod is None:
        return
    detail = (
        f"the reservation of {len(reservation.nodes)} hosts for its move has ended, and {count_running(gang)} of "
        f"the {gang.min_pods} that must run together have a host"
    )
    notify(Notice(EventReason.GANG_MOVE_FAILED, pod.namespace, pod.name, pod.uid, detail))
