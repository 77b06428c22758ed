"""The extender that the HTTP handlers call: the answers of the planner on the watched state, with a clock.

`watches.py` updates the state between requests. No method waits, so one request sees one state of the cluster. The
owners of pods and gangs get each report once from a replica, and again when its facts change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnout.jobs.gang import Dialect, GangKey
from turnout.jobs.reservation import PUBLISHED_REASONS
from turnout.kube.client.clock import Clock
from turnout.kube.objects import Pod
from turnout.kube.server.client_metrics import start_at_zero
from turnout.scheduler_ext.cluster.ignored_wishes import ignored_wishes
from turnout.scheduler_ext.cluster.member import GangMember, error_text
from turnout.scheduler_ext.cluster.request_hints import POD_GROUP_WAIT_S, LaggingView, PodGroupState
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.model import Answer, EventReason, Notice, Rules, Victims
from turnout.scheduler_ext.planner.answers import (
    answer_filter,
    answer_preempt,
    answer_prioritize,
    broken_rules,
    gang_states,
    postpone,
    refuse_everywhere,
)
from turnout.scheduler_ext.planner.fabric_quality import excess_leaves, largest_gang_gpus, unmapped_hosts
from turnout.scheduler_ext.planner.placement_report import is_whole, placed_notice
from turnout.scheduler_ext.planner.request import planned_members
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.watches import WatchState
from turnout.scheduler_ext.wire.pod_messages import GateRule, Review, needs_gate
from turnout.topology.model import Refusal, RefusalReason

POD_GROUP_NOTICE_S = 1.0  # a PodGroup that is awaited for longer is reported; most PodGroups come earlier

MAX_REPORTED_TERMS = 64  # sentences about the wishes of one gang that are not kept; further sentences are not reported


class OwnerReports:
    """The notices that owners have got, and the gangs whose placement is to be reported."""

    def __init__(
        self, view: ClusterView, watches: WatchState, clock: Clock, metrics: Metrics, notify: Callable[[Notice], None]
    ) -> None:
        """Start without reports. notify: receives the notices; it must not wait."""
        self._view, self._watches, self._clock, self._metrics, self._notify = view, watches, clock, metrics, notify
        self._reported_terms: dict[GangKey, set[str]] = {}  # the reported sentences, at most MAX_REPORTED_TERMS of each
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

        Also report the terms of wishes that are not kept and were not reported for its gang before.
        """
        if member.membership.faults:
            self._notify_owner(member, EventReason.BAD_ANNOTATION, "; ".join(member.membership.faults))
        self._report_ignored_terms(member)

    def _report_ignored_terms(self, member: GangMember) -> None:
        """Report which parts of a gang's wishes are not kept: each sentence once for a gang."""
        gang = self._view.gangs.get(member.membership.key)
        if not member.membership.wish.source and (gang is None or not gang.terms.wishes):
            return
        reported = self._reported_terms.get(member.membership.key, set())
        sentences = [each for each in ignored_wishes(self._view, member) if each not in reported]
        if sentences := sentences[: MAX_REPORTED_TERMS - len(reported)]:
            self._reported_terms[member.membership.key] = reported.union(sentences)
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


RETRY_S = 0.2  # pause between two refusals of a pod from an old view
UNCONFIRMED_S = 30.0  # how long a pod stays that only a request has shown


class UnconfirmedPods:
    """The pods that only a request has shown, each for UNCONFIRMED_S."""

    def __init__(self, view: ClusterView, clock: Clock, notify: Callable[[Notice], None]) -> None:
        """Start without pods. view: gets each pod. notify: receives the notices about pods that cannot be read."""
        self._view, self._clock, self._notify = view, clock, notify
        self._until_s: dict[str, float] = {}  # by uid

    def member(self, pod: Pod) -> GangMember | None:
        """Return the pod as the view has it; None if it is finished or cannot be read, which is reported.

        A pod that the watch has not shown yet is added to the view for UNCONFIRMED_S, until the watch confirms it.
        """
        uid = pod.metadata.uid
        if uid not in self._view.pods:
            if (error := self._view.put_pod(pod)) is not None:
                meta = pod.metadata
                self._notify(Notice(EventReason.POD_UNREADABLE, meta.namespace, meta.name, uid, error_text(error)))
            if uid in self._view.pods:
                self._until_s[uid] = self._clock.monotonic() + UNCONFIRMED_S
        return self._view.pods.get(uid)

    def confirm(self, pod: Pod) -> None:
        """Note that a watch shows a pod."""
        self._until_s.pop(pod.metadata.uid, None)

    def forget(self, uid: str) -> None:
        """Forget a deleted pod."""
        self._until_s.pop(uid, None)

    def expired(self, now_s: float) -> list[str]:
        """Return the uids of the pods that no watch has shown in time. now_s: by the monotonic clock."""
        return [uid for uid, until_s in self._until_s.items() if until_s <= now_s]


class PostponedPods:
    """The pods that were refused from a view that may be old: when, and since when the view lags behind."""

    def __init__(self, view: ClusterView, clock: Clock, metrics: Metrics) -> None:
        """Start without pods."""
        self._view, self._clock, self._metrics = view, clock, metrics
        self._postponed_s: dict[str, float] = {}  # uid -> when it was last refused from an old view
        self._lagging = LaggingView()

    def should_retry(self, member: GangMember, names: Sequence[str], now_s: float) -> bool:
        """Return True if the scheduler knows more room for a pod than the view: see LaggingView.should_retry.

        names: the nodes of the request. now_s: by the monotonic clock.
        """
        return self._lagging.should_retry(self._view, member, names, now_s)

    def postpone(self, member: GangMember, refusal: Refusal) -> Answer:
        """Return a refusal after which the scheduler asks again, at most once in RETRY_S for a pod, and count it.

        The owner gets no notice, because the refusal may be wrong.
        """
        now_s = self._clock.monotonic()
        due_s = self._postponed_s.get(member.uid, now_s - RETRY_S) + RETRY_S
        pause_s = min(max(0.0, due_s - now_s), RETRY_S)  # far below the scheduler's patience
        self._postponed_s[member.uid] = now_s + pause_s
        self._metrics.refused_answers.labels(EventReason.OLD_VIEW.value).inc()
        return postpone(refusal, self._clock.wall(), pause_s)

    def forget(self, uid: str) -> None:
        """Forget a deleted pod."""
        self._postponed_s.pop(uid, None)
        self._lagging.forget(uid)


CLEAN_UP_S = 5.0  # between two clean-ups
PLANNING_PAUSE_S = 0.02  # between two rounds of planning
MAX_PLANNING_ROUNDS = 250  # before a clean-up, however much is left to plan
GANGS_DESCRIBED = 200
REPORT_S = 0.02  # time for reports of placed gangs in one clean-up
REFUSALS = (  # the reasons of refused answers
    *(EventReason(reason.value) for reason in RefusalReason),
    EventReason.GANG_INCOMPLETE,
    EventReason.GANG_UNKNOWN,
    EventReason.PLANNED_HOST_MISSING,
    EventReason.OLD_VIEW,
)
COUNTED_SILENCE = ("ResourceClaims", "PodLevelGpus")  # pods with GPUs whose room we do not know


class Extender:
    """Implements ExtenderVerbs.

    notify: receives the notices; it must not wait.
    """

    def __init__(
        self, rules: Rules, clock: Clock, metrics: Metrics, notify: Callable[[Notice], None], watches: WatchState
    ) -> None:
        """Follow the pods of `watches`, and use its plans and view. notify: receives the notices; it must not wait."""
        self.rules, self.clock, self.metrics, self.notify, self.watches = rules, clock, metrics, notify, watches
        self.plans, self.view = watches.plans, watches.plans.view
        start_at_zero(metrics.refused_answers, (reason.value for reason in REFUSALS))
        self._reports = OwnerReports(self.view, watches, clock, metrics, notify)
        self._unconfirmed_pods = UnconfirmedPods(self.view, clock, notify)
        self._postponed_pods = PostponedPods(self.view, clock, metrics)
        watches.follow_pods(self._unconfirmed_pods.confirm, self._unconfirmed_pods.forget)
        watches.follow_pods(drop=self._postponed_pods.forget)

    # Requests.

    def filter(self, pod: Pod, names: Sequence[str]) -> Answer:
        """Narrow the nodes of a pod as answer_filter() does, and assume for a while that it goes to the first of them.

        names: nodes that passed every earlier filter. A pod that cannot be read gets no opinion. A pod whose PodGroup
        is awaited, and a refusal from a view that may be old, get an answer after which the scheduler asks again.
        Counts refusals, and reports them and terms that are not kept to the owner.
        """
        member = self._unconfirmed_pods.member(pod)
        if member is None:
            self.metrics.unjudged_answers.labels("Unreadable").inc()
            return Answer()
        if member.no_opinion_reason in COUNTED_SILENCE:
            self.metrics.unjudged_answers.labels(member.no_opinion_reason).inc()
        now_s = self.clock.monotonic()
        if (group := self.watches.pod_group_state(member.membership.key)) is not PodGroupState.KNOWN:
            refusal = missing_pod_group(self.view, member, group)
            self._reports.report_missing_pod_group(member, group, refusal)
            if group is PodGroupState.AWAITED:
                self.metrics.refused_answers.labels(EventReason.GANG_UNKNOWN.value).inc()
                return postpone(refusal, self.clock.wall(), 0.0)
        self._reports.note_query(member)
        answer = answer_filter(self.plans, member, names, self.rules, now_s)
        if answer.nodes:
            self.view.assume(member, answer.nodes[0], now_s)
        if answer.refusal is not None:
            postponed = self._postponed_pods
            if answer.retry or self.watches.may_be_old() or postponed.should_retry(member, names, now_s):
                return postponed.postpone(member, answer.refusal)
            self._reports.report_refusal(member, answer.refusal)
        self._reports.report_faults(member)
        return answer

    def prioritize(self, pod: Pod, names: Sequence[str]) -> Sequence[tuple[str, int]]:
        """Return (name, score 1..10), the best first; nodes with score 0 are left out.

        [] for a pod that cannot be read or whose PodGroup is awaited, without a map, and if the planner has no opinion.
        If the best node has score 10, the pod is assumed to go there, because filter may not have been called. names:
        the nodes of the request.
        """
        member = self._unconfirmed_pods.member(pod)
        if member is None or self.watches.pod_group_state(member.membership.key) is PodGroupState.AWAITED:
            return []
        now_s = self.clock.monotonic()
        self._reports.note_query(member)
        scored = answer_prioritize(self.plans, member, names, self.rules, now_s)
        if scored and scored[0][1] == 10:
            self.view.assume(member, scored[0][0], now_s)
        if member.membership.key.dialect == Dialect.VOLCANO.value:  # Volcano requests only scores
            self._reports.report_faults(member)
        return scored

    def preempt(self, pod: Pod, victims: Mapping[str, Victims]) -> Mapping[str, Victims]:
        """Return the entries of `victims` whose node lets the whole gang start after a preemption.

        All of them for a pod that cannot be read; none while the pod's PodGroup is awaited.
        """
        member = self._unconfirmed_pods.member(pod)
        if member is None:
            return victims
        if self.watches.pod_group_state(member.membership.key) is PodGroupState.AWAITED:
            return {}
        return answer_preempt(self.plans, member, victims, self.clock.monotonic(), self.clock.wall())

    def refusal_of_pod(self, pod: Pod) -> Answer:
        """Answer about all nodes: the refusal is None if the pod can go to one of them, or if that is not known.

        A refusal is counted and reported to the owner, unless its reason is OLD_VIEW.
        """
        member = self._unconfirmed_pods.member(pod)
        if member is None:
            return Answer()
        if self.watches.pod_group_state(member.membership.key) is PodGroupState.AWAITED:
            detail = missing_pod_group(self.view, member, PodGroupState.AWAITED).detail
            return Answer((), Refusal(EventReason.OLD_VIEW, detail), None)
        answer = self._refusal_of(member)
        if answer.refusal is not None and answer.refusal.reason is not EventReason.OLD_VIEW:
            self._reports.report_refusal(member, answer.refusal)
        return answer

    def refusal_of_gang(self, namespace: str, name: str) -> Answer:
        """Answer about a Volcano PodGroup: the refusal is None if its gang can start, or if that is not known.

        Before its pods exist nothing is known of the gang. A view that may be old refuses nothing. Nothing is reported.
        """
        gang = self.view.gangs.get(GangKey(namespace, name, Dialect.VOLCANO.value))
        waiting = next((each for each in planned_members(gang) if each.is_waiting), None) if gang else None
        answer = self._refusal_of(waiting) if waiting is not None else Answer()
        is_old = answer.refusal is not None and answer.refusal.reason is EventReason.OLD_VIEW
        return Answer() if is_old else answer

    def gates(self, review: Review) -> bool:
        """Return True if a pod that is being created is to wait behind our scheduling gate. The view is not needed."""
        return needs_gate(review, GateRule(self.rules.gated_schedulers, self.rules.gpu_resources))

    def unready_reason(self) -> str | None:
        """Return what is missing until every watch has shown a whole list and the map was read; None after that."""
        return self.watches.missing()

    def describe(self) -> dict[str, Any]:
        """Return the state for a person, in JSON types: sizes, and the plans of at most GANGS_DESCRIBED gangs.

        Plans as much as one question may first, so that missing plans are in it.
        """
        self.plans.plan_some(self.clock.monotonic())
        plans = self.plans.current_plans()
        hosts = self.view.fabric.hosts
        gangs = [
            {
                "gang": str(plan.key),
                "dialect": plan.key.dialect,
                "tier": plan.tier,
                "refusal": f"{plan.refusal.reason.value}: {plan.refusal.detail}" if plan.refusal else None,
                "given_up": list(plan.released_terms),
                "hosts": {self.view.pods[uid].name: hosts[host] for uid, host in plan.hosts.items()},
                "spare": [hosts[seat.host] for seat in plan.open_seats],
            }
            for plan in plans[:GANGS_DESCRIBED]
        ]
        return {
            "hosts": len(hosts),
            "mapped_hosts": self.view.fabric.mapped_count,
            "nodes": len(self.view.snapshot.nodes),
            "pods": len(self.view.pods),
            "gangs": len(self.view.gangs),
            "assumed": len(self.view.assumed_pods),
            "plans": len(plans),
            "waiting": gangs,
        }

    # Beside requests.

    async def run(self) -> None:
        """Every CLEAN_UP_S seconds, plan the gangs without a plan and clean up, until cancelled.

        The work of planning is counted in steps, so all replicas have the same plans, whichever of them is asked.
        """
        while True:
            await self.clock.sleep(CLEAN_UP_S)
            for _ in range(MAX_PLANNING_ROUNDS):
                if not self.plans.plan_some(self.clock.monotonic()):
                    break
                await self.clock.sleep(PLANNING_PAUSE_S)  # requests are answered meanwhile
            self.clean_up()

    def clean_up(self) -> None:
        """Remove unconfirmed pods, deleted gangs and ended reservations, report newly placed gangs, plan, and set the
        gauges. Called every CLEAN_UP_S seconds.

        Pods are unconfirmed if no watch has shown them within UNCONFIRMED_S.
        """
        now_s = self.clock.monotonic()
        for uid in self._unconfirmed_pods.expired(now_s):
            self.watches.drop_pod(uid)
        self._reports.forget_deleted_gangs()
        self.watches.forget_deleted_gangs()
        self.plans.reservations.expire(self.clock.wall())
        for reason in PUBLISHED_REASONS:
            nodes = sum(len(each.nodes) for each in self.plans.reservations if each.reason is reason)
            self.metrics.reserved_hosts.labels(reason).set(nodes)
        self._reports.report_placed(now_s + REPORT_S)
        self.plans.plan_some(self.clock.monotonic())
        for term, count in self.plans.rejected_plans.items():
            self.metrics.plans_rejected.labels(term).inc(count)
        self.plans.rejected_plans.clear()
        for state, gangs in gang_states(self.plans).items():
            self.metrics.gangs.labels(state.value).set(gangs)
        self.metrics.set_violations(
            (key.namespace, key.name, rule.value, pods)
            for key, (rule, pods) in broken_rules(self.plans, self.rules).items()
        )
        self.metrics.set_excess(excess_leaves(self.view))
        gpus = self.rules.gpu_resources
        self.metrics.set_fabric(largest_gang_gpus(self.view, gpus), unmapped_hosts(self.view, gpus))

    def _refusal_of(self, member: GangMember) -> Answer:
        """Return the planner's answer about all nodes; without a refusal if the member can go to one.

        If the view may be outdated, the reason of a refusal is OLD_VIEW.
        """
        answer = refuse_everywhere(self.plans, member, self.rules, self.clock.monotonic())
        if answer.refusal is None or not (answer.retry or self.watches.may_be_old()):
            return answer
        detail = f"{answer.refusal.reason.value}: {answer.refusal.detail}"
        return replace(answer, refusal=Refusal(EventReason.OLD_VIEW, detail))
