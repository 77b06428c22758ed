"""Decide when the owner of a gang behind our gate gets a notice that it waits, and why."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from turnout.jobs.gang import GangKey
from turnout.scheduler_ext.model import EventReason, GatedPod, Notice
from turnout.topology.model import Refusal

REPORT_AFTER_S = 10.0  # how long a gang waits for one reason before its owner gets a notice
REPORT_INTERVAL_S = 1_800.0  # and repeats it, because an API server deletes Events after an hour


@dataclass(slots=True)
class ReportedWait:
    """A gang that waits for one reason."""

    reason: EventReason
    next_report_s: float  # time of the next report to the owner, by the monotonic clock


class GangWaits:
    """Why gangs behind our gate wait, and when their owners get the next report."""

    def __init__(self) -> None:
        self._by_gang: dict[GangKey, ReportedWait] = {}

    def reason(self, key: GangKey) -> EventReason | None:
        """Return why a gang waits; None if it does not wait."""
        wait = self._by_gang.get(key)
        return wait.reason if wait is not None else None

    def update(self, key: GangKey, gated: tuple[GatedPod, ...], wait: Refusal | None, now_s: float) -> Notice | None:
        """Store why a gang waits. Return the notice for the owner of its first gated pod, if one is due, else None.

        A notice is due once the gang has waited for one reason for REPORT_AFTER_S, and every REPORT_INTERVAL_S after
        that. gated: the gated pods, at least one if the gang waits. wait: None if the gang does not wait. now_s: by the
        monotonic clock.
        """
        known = self._by_gang.get(key)
        if wait is None:
            self._by_gang.pop(key, None)
            return None
        reason = EventReason(wait.reason.value)
        if known is None or known.reason is not reason:
            self._by_gang[key] = ReportedWait(reason, now_s + REPORT_AFTER_S)
        elif now_s >= known.next_report_s:
            known.next_report_s = now_s + REPORT_INTERVAL_S
            first = gated[0]
            return Notice(reason, first.namespace, first.name, first.uid, wait.detail[:500])
        return None

    def forget(self, key: GangKey) -> None:
        """Forget a gang that has no gated pod any more."""
        self._by_gang.pop(key, None)

    def forget_deleted_gangs(self, gangs: Container[GangKey]) -> None:
        """Forget the gangs that are not in `gangs`."""
        for key in [key for key in self._by_gang if key not in gangs]:
            del self._by_gang[key]
