"""The extender that the HTTP handlers call: the answers of the planner on the watched state, with a clock.

`watches.py` updates the state between requests. No method waits, so one request sees one state of the cluster.
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

CLEAN_UP_S = 5.0  # between two clean-ups
PLANNING_PAUSE_S = 0.02  # between two rounds of planning
MAX_PLANNING_ROUNDS = 250  # before a clean-up, however much is left to plan
RETRY_S = 0.2  # pause between two refusals of a pod from an old view
POD_GROUP_NOTICE_S = 1.0  # a PodGroup that is awaited for longer is reported; most PodGroups come earlier
UNCONFIRMED_S = 30.0  # how long a pod stays that only a request has shown
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
        self._unconfirmed_until_s: dict[str, float] = {}
        self._reported_terms: dict[GangKey, tuple[str, ...]] = {}
        self._postponed_s: dict[str, float] = {}  # uid -> when it was last refused from an old view
        self._lagging = LaggingView()
        self._reported_pod_groups: dict[GangKey, PodGroupState] = {}  # the last reported state of missing PodGroups
        self._queried_gangs: set[GangKey] = set()  # gangs in the scheduler's questions that are not whole yet
        self._reported_gangs: set[GangKey] = (
            set()
        )  # gangs whose placement was reported, or that started before this process
        watches.follow_pods(self._confirm_pod, self._forget_pod)

    # Requests.

    def filter(self, pod: Pod, names: Sequence[str]) -> Answer:
        """Narrow the nodes of a pod as answer_filter() does, and assume for a while that it goes to the first of them.

        names: nodes that passed every earlier filter. A pod that cannot be read gets no opinion. A pod whose PodGroup
        is awaited, and a refusal from a view that may be old, get an answer after which the scheduler asks again.
        Counts refusals, and reports them and terms that are not kept to the owner.
        """
        member = self._member(pod)
        if member is None:
            self.metrics.unjudged_answers.labels("Unreadable").inc()
            return Answer()
        if member.no_opinion_reason in COUNTED_SILENCE:
            self.metrics.unjudged_answers.labels(member.no_opinion_reason).inc()
        now_s = self.clock.monotonic()
        if (group := self.watches.pod_group_state(member.membership.key)) is not PodGroupState.KNOWN:
            refusal = _missing_pod_group(self.view, member, group)
            self._report_missing_pod_group(member, group, refusal)
            if group is PodGroupState.AWAITED:
                self.metrics.refused_answers.labels(EventReason.GANG_UNKNOWN.value).inc()
                return postpone(refusal, self.clock.wall(), 0.0)
        self._note_query(member)
        answer = answer_filter(self.plans, member, names, self.rules, now_s)
        if answer.nodes:
            self.view.assume(member, answer.nodes[0], now_s)
        if answer.refusal is not None:
            if answer.retry or self.watches.may_be_old() or self._lagging.should_retry(self.view, member, names, now_s):
                return self._postpone(member, answer.refusal)
            self._report_refusal(member, answer.refusal)
        self._report_faults(member)
        return answer

    def prioritize(self, pod: Pod, names: Sequence[str]) -> Sequence[tuple[str, int]]:
        """Return (name, score 1..10), the best first; nodes with score 0 are left out.

        [] for a pod that cannot be read or whose PodGroup is awaited, without a map, and if the planner has no opinion.
        If the best node has score 10, the pod is assumed to go there, because filter may not have been called. names:
        the nodes of the request.
        """
        member = self._member(pod)
        if member is None or self._awaits_pod_group(member):
            return []
        now_s = self.clock.monotonic()
        self._note_query(member)
        scored = answer_prioritize(self.plans, member, names, self.rules, now_s)
        if scored and scored[0][1] == 10:
            self.view.assume(member, scored[0][0], now_s)
        if member.membership.key.dialect == Dialect.VOLCANO.value:  # Volcano requests only scores
            self._report_faults(member)
        return scored

    def preempt(self, pod: Pod, victims: Mapping[str, Victims]) -> Mapping[str, Victims]:
        """Return the entries of `victims` whose node lets the whole gang start after a preemption.

        All of them for a pod that cannot be read; none while the pod's PodGroup is awaited.
        """
        member = self._member(pod)
        if member is None:
            return victims
        if self._awaits_pod_group(member):
            return {}
        return answer_preempt(self.plans, member, victims, self.clock.monotonic(), self.clock.wall())

    def refusal_of_pod(self, pod: Pod) -> Answer:
        """Answer about all nodes: the refusal is None if the pod can go to one of them, or if that is not known.

        A refusal is counted and reported to the owner, unless its reason is OLD_VIEW.
        """
        member = self._member(pod)
        if member is None:
            return Answer()
        if self._awaits_pod_group(member):
            detail = _missing_pod_group(self.view, member, PodGroupState.AWAITED).detail
            return Answer((), Refusal(EventReason.OLD_VIEW, detail), None)
        answer = self._refusal_of(member)
        if answer.refusal is not None and answer.refusal.reason is not EventReason.OLD_VIEW:
            self._report_refusal(member, answer.refusal)
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

    def unready(self) -> str | None:
        """Return what is missing until every watch has shown a whole list and the map was read; None after that."""
        return self.watches.missing()

    def describe(self) -> dict[str, Any]:
        """Return the state for a person, in JSON types: sizes, and the plans of at most GANGS_DESCRIBED gangs.

        Calls plan_some() first, so that missing plans are in it.
        """
        self.plan_some()
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
        """Every CLEAN_UP_S seconds, plan the gangs without a plan and clean up, until cancelled."""
        while True:
            await self.clock.sleep(CLEAN_UP_S)
            for _ in range(MAX_PLANNING_ROUNDS):
                if not self.plan_some():
                    break
                await self.clock.sleep(PLANNING_PAUSE_S)  # requests are answered meanwhile
            self.clean_up()

    def plan_some(self) -> bool:
        """Plan as much as one question may. True while gangs without a plan are left.

        The amount is counted in steps, so all replicas have the same plans, whichever of them is asked.
        """
        return self.plans.plan_some(self.clock.monotonic())

    def clean_up(self) -> None:
        """Remove unconfirmed pods, deleted gangs and ended reservations, report newly placed gangs, plan, and set the
        gauges. Called every CLEAN_UP_S seconds.

        Pods are unconfirmed if no watch has shown them within UNCONFIRMED_S.
        """
        now_s = self.clock.monotonic()
        for uid in [uid for uid, until_s in self._unconfirmed_until_s.items() if until_s <= now_s]:
            self.watches.drop_pod(uid)
        for key in [key for key in self._reported_terms if key not in self.view.gangs]:
            del self._reported_terms[key]
        for key in self._reported_pod_groups.keys() - self.view.gangs.keys():
            del self._reported_pod_groups[key]
        self.watches.forget_deleted_gangs()
        self.plans.reservations.expire(self.clock.wall())
        for reason in PUBLISHED_REASONS:
            nodes = sum(len(each.nodes) for each in self.plans.reservations if each.reason is reason)
            self.metrics.reserved_hosts.labels(reason).set(nodes)
        self._report_placed(now_s + REPORT_S)
        self.plan_some()
        self._count_rejected_plans()
        for state, gangs in gang_states(self.plans).items():
            self.metrics.gangs.labels(state.value).set(gangs)
        self.metrics.set_violations(
            (key.namespace, key.name, rule.value, pods)
            for key, (rule, pods) in broken_rules(self.plans, self.rules).items()
        )
        self.metrics.set_excess(excess_leaves(self.view))
        gpus = self.rules.gpu_resources
        self.metrics.set_fabric(largest_gang_gpus(self.view, gpus), unmapped_hosts(self.view, gpus))

    # Inside.

    def _count_rejected_plans(self) -> None:
        """Add the plans that broke a hard term since the last call to the metric."""
        for term, count in self.plans.rejected_plans.items():
            self.metrics.plans_rejected.labels(term.value).inc(count)
        self.plans.rejected_plans.clear()

    def _confirm_pod(self, pod: Pod) -> None:
        """Note that a watch shows a pod."""
        self._unconfirmed_until_s.pop(pod.metadata.uid, None)

    def _forget_pod(self, uid: str) -> None:
        """Forget a deleted pod."""
        self._unconfirmed_until_s.pop(uid, None)
        self._postponed_s.pop(uid, None)
        self._lagging.forget(uid)

    def _refusal_of(self, member: GangMember) -> Answer:
        """Return the planner's answer about all nodes; without a refusal if the member can go to one.

        If the view may be outdated, the reason of a refusal is OLD_VIEW.
        """
        answer = refuse_everywhere(self.plans, member, self.rules, self.clock.monotonic())
        if answer.refusal is None or not (answer.retry or self.watches.may_be_old()):
            return answer
        detail = f"{answer.refusal.reason.value}: {answer.refusal.detail}"
        return replace(answer, refusal=Refusal(EventReason.OLD_VIEW, detail))

    def _report_refusal(self, member: GangMember, refusal: Refusal) -> None:
        """Count a refusal, and report it to the owner of the pod."""
        reason = EventReason(refusal.reason.value)
        self.metrics.refused_answers.labels(reason.value).inc()
        self._notify_owner(member, reason, refusal.detail)

    def _notify_owner(self, member: GangMember, reason: EventReason, detail: str) -> None:
        self.notify(Notice(reason, member.namespace, member.name, member.uid, detail[:500]))

    def _note_query(self, member: GangMember) -> None:
        """Remember the gang of a question, so that its placement is reported once, by this replica.

        A gang that has started before its first question here is not reported: another replica has reported it.
        """
        key = member.membership.key
        if key in self._queried_gangs or key in self._reported_gangs or key.dialect == Dialect.ALONE.value:
            return
        gang = self.view.gangs.get(key)
        started = gang is not None and any(each.node for each in gang.members.values())
        (self._reported_gangs if started else self._queried_gangs).add(key)

    def _report_placed(self, until_s: float) -> None:
        """Report each remembered gang that is whole now, once. until_s: monotonic time at which the rest is left for
        the next call.
        """
        self._queried_gangs &= self.view.gangs.keys()
        self._reported_gangs &= self.view.gangs.keys()
        for key in [key for key in self._queried_gangs if is_whole(self.view, self.view.gangs[key])]:
            if self.clock.monotonic() > until_s:
                break
            self._queried_gangs.discard(key)
            self._reported_gangs.add(key)
            notice = placed_notice(self.view, self.view.gangs[key])
            if notice is not None:
                self.notify(notice)

    def _report_faults(self, member: GangMember) -> None:
        """Report to the owner the annotations of a pod that cannot be read, and newly the parts of wishes that are not
        kept.
        """
        if member.membership.faults:
            self._notify_owner(member, EventReason.BAD_ANNOTATION, "; ".join(member.membership.faults))
        self._report_ignored_terms(member)

    def _awaits_pod_group(self, member: GangMember) -> bool:
        """Return True while the PodGroup of a pod is awaited: without its terms the pod is given no place."""
        return self.watches.pod_group_state(member.membership.key) is PodGroupState.AWAITED

    def _report_missing_pod_group(self, member: GangMember, state: PodGroupState, refusal: Refusal) -> None:
        """Report once that a gang waits for its PodGroup, and once that it is placed without its PodGroup.

        A wait of less than POD_GROUP_NOTICE_S is not reported. state: AWAITED or NEVER_CAME. refusal: its detail is the
        text.
        """
        key = member.membership.key
        is_early = state is PodGroupState.AWAITED and self.watches.pod_group_wait_s(key) < POD_GROUP_NOTICE_S
        if not is_early and self._reported_pod_groups.get(key) is not state:
            self._reported_pod_groups[key] = state
            self._notify_owner(member, EventReason.GANG_UNKNOWN, refusal.detail)

    def _report_ignored_terms(self, member: GangMember) -> None:
        """Report once which parts of a gang's wishes are not kept, and again when they change."""
        gang = self.view.gangs.get(member.membership.key)
        if not member.membership.wish.source and (gang is None or not gang.terms.wishes):
            return
        sentences = tuple(ignored_wishes(self.view, member))
        if sentences and self._reported_terms.get(member.membership.key) != sentences:
            self._reported_terms[member.membership.key] = sentences
            self._notify_owner(member, EventReason.WISH_NOT_KEPT, "; ".join(sentences))

    def _postpone(self, member: GangMember, refusal: Refusal) -> Answer:
        """Return a refusal after which the scheduler asks again, at most once in RETRY_S for a pod, and count it.

        The owner gets no notice, because the refusal may be wrong.
        """
        now_s = self.clock.monotonic()
        due_s = self._postponed_s.get(member.uid, now_s - RETRY_S) + RETRY_S
        pause_s = min(max(0.0, due_s - now_s), RETRY_S)  # far below the scheduler's patience
        self._postponed_s[member.uid] = now_s + pause_s
        self.metrics.refused_answers.labels(EventReason.OLD_VIEW.value).inc()
        return postpone(refusal, self.clock.wall(), pause_s)

    def _member(self, pod: Pod) -> GangMember | None:
        """Return the pod as the view has it; None if it is finished or cannot be read, which is reported.

        A pod that the watch has not shown yet is added to the view for UNCONFIRMED_S, until the watch confirms it.
        """
        uid = pod.metadata.uid
        if uid not in self.view.pods:
            if (error := self.view.put_pod(pod)) is not None:
                meta = pod.metadata
                self.notify(Notice(EventReason.POD_UNREADABLE, meta.namespace, meta.name, uid, error_text(error)))
            if uid in self.view.pods:
                self._unconfirmed_until_s[uid] = self.clock.monotonic() + UNCONFIRMED_S
        return self.view.pods.get(uid)


def _missing_pod_group(view: ClusterView, member: GangMember, state: PodGroupState) -> Refusal:
    """Return the refusal of a pod that waits for its PodGroup or for one above it, or that is placed without it.

    state: AWAITED or NEVER_CAME.
    """
    gang, name = view.gangs.get(member.membership.key), member.membership.key.name
    is_awaited = state is PodGroupState.AWAITED
    then = f"it is awaited for {POD_GROUP_WAIT_S:g} s" if is_awaited else "the gang is placed by what its pods state"
    group = f"its PodGroup {name}"
    if gang is not None and gang.sizing is not None:
        group = f"a CompositePodGroup above {group}"
        then = then.replace("its pods state", "the known PodGroups state")
    return Refusal(EventReason.GANG_UNKNOWN, f"{group} is not there: {then}")
