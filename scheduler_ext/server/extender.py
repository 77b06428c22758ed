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
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.request_hints import PodGroupState
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
from turnout.scheduler_ext.planner.request import planned_members
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.owner_reports import OwnerReports, missing_pod_group
from turnout.scheduler_ext.server.request_pods import PostponedPods, UnconfirmedPods
from turnout.scheduler_ext.server.watches import WatchState
from turnout.scheduler_ext.wire.pod_messages import GateRule, Review, needs_gate
from turnout.topology.model import Refusal, RefusalReason

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
