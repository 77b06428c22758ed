"""The extender that the HTTP rim asks: decisions of verbs.py on what the watches show, with a clock.

Fed by informers.py between requests; nothing here waits, so that one request sees one world.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnout.kube.client.clock import Clock
from turnout.kube.objects import Pod
from turnout.scheduler_ext import verbs
from turnout.scheduler_ext.cache.cache import GangView
from turnout.scheduler_ext.cache.pod_info import Member
from turnout.scheduler_ext.model import Answer, Notice, Rules, Victims, Word
from turnout.scheduler_ext.planner.plan_cache import PlanCache
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.topology.fabric import Fabric
from turnout.topology.model import Rule

log = logging.getLogger("turnout.extender")

AGAIN_S = 0.2  # how soon the same pod is refused again from an old view
UNCONFIRMED_S = 30.0  # how long a pod that only a request has shown is believed
GANGS_DESCRIBED = 200
COUNTED_SILENCE = ("ResourceClaims", "PodLevelGpus")  # pods with GPUs of which we cannot tell where they fit


class Extender:
    """Implements Extender. tell: where notices go; it must not wait."""

    def __init__(self, rules: Rules, clock: Clock, metrics: Metrics, tell: Callable[[Notice], None]) -> None:
        self.rules, self.clock, self.metrics, self.tell = rules, clock, metrics, tell
        self.gangs = GangView(rules.gpu_resources)
        self.book = PlanCache(self.gangs, Rule.LEAF_ONLY if rules.leaf_only else Rule.ALL_TIERS, rules.hold_incomplete)
        self.waiting_for: Callable[[], str | None] = lambda: "no watch is running"
        self.may_be_old: Callable[[], bool] = lambda: False
        self.on_pod: list[Callable[[Pod], None]] = []  # the nominator looks over our shoulder
        self._unconfirmed: dict[str, float] = {}
        self._put_off_s: dict[str, float] = {}  # uid -> when it was last refused from an old view

    # What the rim asks.

    def filter(self, pod: Pod, names: Sequence[str]) -> Answer:
        """Narrow the nodes to the planned one; believe in it for a while."""
        member = self._member(pod)
        if member is None:
            self.metrics.no_opinion.labels("Unreadable").inc()
            return Answer((), all_kept=True)
        if member.silence in COUNTED_SILENCE:
            self.metrics.no_opinion.labels(member.silence).inc()
        now_s = self.clock.monotonic()
        advice = verbs.fit(self.book, member, names, self.rules, now_s)
        if advice.node:
            self.gangs.assume(member, advice.node, now_s)
        if advice.notice is not None and self.may_be_old():
            return self._put_off(member, advice.notice, names)
        if advice.notice is not None:
            self.metrics.refusals.labels(advice.notice.word.value).inc()
            self.tell(advice.notice)
        if member.belongs.faults:
            detail = "; ".join(member.belongs.faults)[:500]
            self.tell(Notice(Word.BAD_ANNOTATION, member.namespace, member.name, member.uid, detail))
        return advice.answer

    def prioritize(self, pod: Pod, names: Sequence[str]) -> Sequence[tuple[str, int]]:
        """Score the nodes; believe in the best for a while, since filter may not have been asked."""
        member = self._member(pod)
        if member is None:
            return []
        now_s = self.clock.monotonic()
        scored = verbs.rank(self.book, member, names, self.rules, now_s)
        if scored and scored[0][1] == 10:
            self.gangs.assume(member, scored[0][0], now_s)
        return scored

    def preempt(self, pod: Pod, victims: Mapping[str, Victims]) -> Mapping[str, Victims]:
        """Keep the nodes on which a preemption lets the whole gang start."""
        member = self._member(pod)
        return victims if member is None else verbs.yield_to(self.book, member, victims, self.clock.monotonic())

    def unready(self) -> str | None:
        """Not ready until every watch has shown a whole list and the map was looked at."""
        return self.waiting_for()

    def describe(self) -> dict[str, Any]:
        """The world for a person: sizes, and the gangs that wait with their plans."""
        now_s = self.clock.monotonic()
        plans = self.book.plan_all(now_s)
        hosts = self.gangs.fabric.hosts
        gangs = [
            {
                "gang": str(plan.key),
                "dialect": plan.key.dialect,
                "tier": plan.tier,
                "refusal": f"{plan.refusal.reason.value}: {plan.refusal.detail}" if plan.refusal else None,
                "hosts": {self.gangs.pods[uid].name: hosts[host] for uid, host in plan.hosts.items()},
                "spare": [hosts[seat.host] for seat in plan.spare],
            }
            for plan in plans[:GANGS_DESCRIBED]
        ]
        return {
            "hosts": len(hosts),
            "mapped_hosts": self.gangs.mapped_hosts(),
            "nodes": len(self.gangs.snapshot.nodes),
            "pods": len(self.gangs.pods),
            "gangs": len(self.gangs.gangs),
            "assumed": len(self.gangs.ledger),
            "plans": len(plans),
            "waiting": gangs,
        }

    # What the watches tell.

    def put_pod(self, pod: Pod) -> None:
        """A pod as the API server has it."""
        self._unconfirmed.pop(pod.metadata.uid, None)
        self.gangs.put_pod(pod)
        for told in self.on_pod:
            told(pod)

    def drop_pod(self, uid: str) -> None:
        """A pod is gone."""
        self._unconfirmed.pop(uid, None)
        self._put_off_s.pop(uid, None)
        self.gangs.drop_pod(uid)

    def use_map(self, fabric: Fabric) -> None:
        """Place by this map from the next request on."""
        self.gangs.set_map(fabric)
        self.metrics.hosts.set(fabric.mapped_count)
        self.metrics.last_reload.set(self.clock.wall())

    def tidy(self) -> None:
        """Once a few seconds: forget pods that nobody confirmed, and count the gangs in trouble."""
        now_s = self.clock.monotonic()
        for uid in [uid for uid, until_s in self._unconfirmed.items() if until_s <= now_s]:
            self.drop_pod(uid)
        self.book.plan_all(now_s)  # so that replicas hold the same plans, whoever is asked
        self.metrics.gangs_partial.set(len(verbs.partial_gangs(self.book)))
        self.metrics.unenforced_pods.set(verbs.unenforced_pods(self.book, self.rules))

    # Inside.

    def _put_off(self, member: Member, why: Notice, names: Sequence[str]) -> Answer:
        """Refuse so that the scheduler asks again. The owner is not told: it may be wrong."""
        now_s = self.clock.monotonic()
        due_s = self._put_off_s.get(member.uid, now_s - AGAIN_S) + AGAIN_S
        pause_s = min(max(0.0, due_s - now_s), AGAIN_S)  # far below the scheduler's patience
        self._put_off_s[member.uid] = now_s + pause_s
        self.metrics.refusals.labels(Word.OLD_VIEW.value).inc()
        return verbs.not_yet(why, names, self.clock.wall(), pause_s)

    def _member(self, pod: Pod) -> Member | None:
        """The pod as we know it; one that our watch has not shown yet is taken from the request."""
        uid = pod.metadata.uid
        if uid not in self.gangs.pods:
            self.gangs.put_pod(pod)
            if uid in self.gangs.pods:
                self._unconfirmed[uid] = self.clock.monotonic() + UNCONFIRMED_S
        return self.gangs.pods.get(uid)
