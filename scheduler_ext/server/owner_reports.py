"""Reports to the owners of pods and gangs: refusals, placements, missing PodGroups, and terms that are not kept.

Each fact is reported once by a replica, and again when it changes.
"""

from __future__ import annotations

from collections.abc import Callable

from turnout.jobs.gang import Dialect, GangKey
from turnout.kube.client.clock import Clock
from turnout.scheduler_ext.cluster.ignored_wishes import ignored_wishes
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.request_hints import POD_GROUP_WAIT_S, PodGroupState
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.model import EventReason, Notice
from turnout.scheduler_ext.planner.placement_report import is_whole, placed_notice
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.watches import WatchState
from turnout.topology.model import Refusal

POD_GROUP_NOTICE_S = 1.0  # a PodGroup that is awaited for longer is reported; most PodGroups come earlier


class OwnerReports:
    """The notices that owners have got, and the gangs whose placement is to be reported."""

    def __init__(
        self, view: ClusterView, watches: WatchState, clock: Clock, metrics: Metrics, notify: Callable[[Notice], None]
    ) -> None:
        """Start without reports. notify: receives the notices; it must not wait."""
        self._view, self._watches, self._clock, self._metrics, self._notify = view, watches, clock, metrics, notify
        self._reported_terms: dict[GangKey, tuple[str, ...]] = {}
        self._reported_pod_groups: dict[GangKey, PodGroupState] = {}  # the last reported state of missing PodGroups
        self._queried_gangs: set[GangKey] = set()  # gangs in the scheduler's questions that are not whole yet
        # gangs whose placement was reported, or that started before this process
        self._reported_gangs: set[GangKey] = set()

    def report_refusal(self, member: GangMember, refusal: Refusal) -> None:
        """Count a refusal, and report it to the owner of the pod."""
        reason = EventReason(refusal.reason.value)
        self._metrics.refused_answers.labels(reason.value).inc()
        self._notify_owner(member, reason, refusal.detail)

    def note_query(self, member: GangMember) -> None:
        """Remember the gang of a question, so that its placement is reported once, by this replica.

        A gang that has started before its first question here is not reported: another replica has reported it.
        """
        key = member.membership.key
        if key in self._queried_gangs or key in self._reported_gangs or key.dialect == Dialect.ALONE.value:
            return
        gang = self._view.gangs.get(key)
        started = gang is not None and any(each.node for each in gang.members.values())
        (self._reported_gangs if started else self._queried_gangs).add(key)

    def report_placed(self, until_s: float) -> None:
        """Report each remembered gang that is whole now, once. until_s: monotonic time at which the rest is left for
        the next call.
        """
        self._queried_gangs &= self._view.gangs.keys()
        self._reported_gangs &= self._view.gangs.keys()
        for key in [key for key in self._queried_gangs if is_whole(self._view, self._view.gangs[key])]:
            if self._clock.monotonic() > until_s:
                break
            self._queried_gangs.discard(key)
            self._reported_gangs.add(key)
            notice = placed_notice(self._view, self._view.gangs[key])
            if notice is not None:
                self._notify(notice)

    def report_missing_pod_group(self, member: GangMember, state: PodGroupState, refusal: Refusal) -> None:
        """Report once that a gang waits for its PodGroup, and once that it is placed without its PodGroup.

        A wait of less than POD_GROUP_NOTICE_S is not reported. state: AWAITED or NEVER_CAME. refusal: its detail is the
        text.
        """
        key = member.membership.key
        is_early = state is PodGroupState.AWAITED and self._watches.pod_group_wait_s(key) < POD_GROUP_NOTICE_S
        if not is_early and self._reported_pod_groups.get(key) is not state:
            self._reported_pod_groups[key] = state
            self._notify_owner(member, EventReason.GANG_UNKNOWN, refusal.detail)

    def report_faults(self, member: GangMember) -> None:
        """Report to the owner the annotations of a pod that cannot be read, at each call.

        Also report the terms of wishes that are not kept, unless they are the ones reported last for its gang.
        """
        if member.membership.faults:
            self._notify_owner(member, EventReason.BAD_ANNOTATION, "; ".join(member.membership.faults))
        self._report_ignored_terms(member)

    def _report_ignored_terms(self, member: GangMember) -> None:
        """Report once which parts of a gang's wishes are not kept, and again when they change."""
        gang = self._view.gangs.get(member.membership.key)
        if not member.membership.wish.source and (gang is None or not gang.terms.wishes):
            return
        sentences = tuple(ignored_wishes(self._view, member))
        if sentences and self._reported_terms.get(member.membership.key) != sentences:
            self._reported_terms[member.membership.key] = sentences
            self._notify_owner(member, EventReason.WISH_NOT_KEPT, "; ".join(sentences))

    def forget_deleted_gangs(self) -> None:
        """Forget the reports on gangs that do not exist any more."""
        for key in [key for key in self._reported_terms if key not in self._view.gangs]:
            del self._reported_terms[key]
        for key in self._reported_pod_groups.keys() - self._view.gangs.keys():
            del self._reported_pod_groups[key]

    def _notify_owner(self, member: GangMember, reason: EventReason, detail: str) -> None:
        self._notify(Notice(reason, member.namespace, member.name, member.uid, detail[:500]))


def missing_pod_group(view: ClusterView, member: GangMember, state: PodGroupState) -> Refusal:
    """Return the refusal of a pod that waits for its PodGroup or for one above it, or that is placed without it.

    state: AWAITED or NEVER_CAME.
    """
    gang, name = view.gangs.get(member.membership.key), member.membership.key.name
    is_awaited = state is PodGroupState.AWAITED
    then = (
        f"the pod waits up to {POD_GROUP_WAIT_S:g} s for it"
        if is_awaited
        else "the gang is placed by what its pods state"
    )
    group = f"its PodGroup {name}"
    if gang is not None and gang.sizing is not None:
        group = f"a CompositePodGroup above {group}"
        then = then.replace("its pods state", "the known PodGroups state")
    return Refusal(EventReason.GANG_UNKNOWN, f"{group} does not exist yet: {then}")
