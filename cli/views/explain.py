"""Computes where a gang would be placed if it arrived now, and why: `turnout explain`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np

from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import Gpus, Observation, Policy, Reason
from turnout.autoscaler.reporting.why import Chain, ClusterContext, UnmanagedGang, chain, count_refusals
from turnout.cli.views.listing import Column, Listing
from turnout.jobs.gang import Dialect, GangKey
from turnout.jobs.model import JobKey
from turnout.kube import labels
from turnout.kube.errors import KubeError
from turnout.kube.node_capacity import Charge, Rows
from turnout.kube.objects import Node, Pod
from turnout.kube.pod_shape import PodShape, shape_of
from turnout.kube.times import rfc3339
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.planner.plans import Plans
from turnout.scheduler_ext.planner.request import GangPlan
from turnout.topology.fabric import Fabric
from turnout.topology.switch_paths import natural_key

MAX_PODS = 4_096
_NAME = "turnout-explain"
_SCHEDULER = "default-scheduler"
_HINDER = (Reason.OVER_QUOTA, Reason.QUEUE_CLOSED, Reason.UNSCHEDULABLE)  # whatever room there is


class Autoscaler(Protocol):
    """The part of the autoscaler's cache that is used here."""

    def put_pod(self, pod: Pod) -> None:
        """Take a pod in."""

    def observation(self, now_s: float) -> Observation:
        """Return everything at this moment."""

    def bare_gangs(self) -> Mapping[JobKey, UnmanagedGang]:
        """Return the gangs that are nobody's job."""


class BadGang(ValueError):
    """A gang that cannot be submitted. The message names the fault."""


@dataclass(frozen=True, slots=True)
class AskedGang:
    """A gang that might arrive. Raises BadGang if a number is out of range."""

    pods: int  # 1 to MAX_PODS
    gpus: int  # of each pod, >= 1
    namespace: str
    resource: str  # name of the GPU resource
    minimum: int  # pods that must start together, 1 to `pods`
    tier: int | None = None  # of the widest switch that it may span, 1 for a leaf; None if it only prefers
    requests: Mapping[str, str] = field(default_factory=dict)  # of each pod: resource -> quantity, besides GPUs
    selector: Mapping[str, str] = field(default_factory=dict)  # of nodes: label -> value
    tolerations: tuple[str, ...] = ()  # keys of taints
    priority: int = 0
    queue: str = ""  # "" for that of the namespace

    def __post_init__(self) -> None:
        if not 1 <= self.pods <= MAX_PODS or self.gpus < 1:
            raise BadGang(f"{self.pods}x{self.gpus}: 1 to {MAX_PODS} pods of at least one GPU")
        if not 1 <= self.minimum <= self.pods:
            raise BadGang(f"--min is {self.minimum}: it must be from 1 to {self.pods}")
        if self.tier is not None and self.tier < 1:
            raise BadGang(f"--tier is {self.tier}: a leaf switch is tier 1")


def gang_of(text: str, namespace: str, resource: str, *, minimum: int | None = None, **more: Any) -> AskedGang:
    """Return the gang described by a text like 16x8 (PODSxGPUS). Raises BadGang for any other text, and for a number of
    pods or GPUs, a minimum or a tier out of range.

    resource: name of the GPU resource. minimum: minimum number of pods, None for all. more: further fields of
    AskedGang.
    """
    found = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,4})", text)
    if found is None:
        raise BadGang(f"{text!r} is no gang: PODSxGPUS, as in 4x8")
    pods, gpus = int(found[1]), int(found[2])
    return AskedGang(pods, gpus, namespace, resource, pods if minimum is None else minimum, **more)


@dataclass(frozen=True, slots=True)
class Landing:
    """One node of the plan."""

    node: str
    switch: str  # its switches from the root down, "" off the map
    pods: int  # of the gang on this node
    ranks: tuple[int, ...]  # of these pods, ascending
    gpus: int  # of these pods together
    free_gpus: int  # before the gang


@dataclass(frozen=True, slots=True)
class Explained:
    """The answer of `explain`."""

    fits: bool  # all pods of the gang would find a place
    landings: tuple[Landing, ...]  # by rank; also of a part of the gang; () if the planner has no opinion
    why: tuple[str, ...]  # sentences, the verdict first


def explain(
    gang: AskedGang,
    view: ClusterView,
    nodes: Sequence[Node],
    map_fault: str,
    autoscaler: Autoscaler,
    policy: Policy,
    gpus: Gpus,
    now_s: float,
) -> Explained:
    """Return where a gang would be placed beside all gangs that wait now, and what the autoscaler would decide on it.

    If no node is on the map and the gang asks for no tier, there are no landings, and `fits` only says whether the
    cluster has room. view, autoscaler: the caches of extender and autoscaler; the gang's pods are added to them and
    stay. nodes: all nodes of the cluster. map_fault: why there is no map, "" if there is one. policy, gpus: the
    autoscaler's policy, and its names of GPU resources. now_s: since 1970. Raises BadGang if a resource
    quantity of the gang is invalid.
    """
    pods = _pods(gang, now_s)
    shape = _shape(pods[0])
    for pod in pods:
        view.put_pod(pod)
    plans = Plans(view)
    plans.plan_all(0.0)
    key = GangKey(gang.namespace, _NAME, Dialect.KOORDINATOR.value)
    plan = plans.plan_of(key, 0.0) or GangPlan(key)
    others = [each for each in plans.current_plans() if each.key != key]
    _reserve(view, others)
    room = view.snapshot.room(shape).copy()
    blind = not view.fabric.mapped_count and gang.tier is None
    fits = int(room.sum()) >= gang.pods if blind else len(plan.hosts) == gang.pods
    chain = chain_of(gang, pods, autoscaler, nodes, policy, gpus, now_s)
    if blind:
        plan = GangPlan(key)
        why = _without_map(gang, int(room.sum()), map_fault)
    else:
        why = [_verdict(gang, plan, view.fabric), *_fit_by_tier(gang, plan, view.fabric, room)]
    why += _refusals(nodes, shape)
    if planned_pods := sum(len(each.reserved_pods()) for each in others):
        why.append(f"Room for {_count(planned_pods, 'pod')} of gangs that wait already is kept out of it.")
    why += [] if chain is None else _queue_and_decision(chain, fits)
    return Explained(fits, _landings(gang, plan, view, shape, room), tuple(why))


def _pods(gang: AskedGang, now_s: float) -> list[Pod]:
    """Return the pods of the gang, without a node, created at `now_s` (since 1970)."""
    notes = {labels.KOORD_NAME: _NAME, labels.KOORD_MIN: str(gang.minimum), labels.KOORD_TOTAL: str(gang.pods)}
    if gang.tier is not None:
        notes |= {labels.TOPOLOGY: "required", labels.TOPOLOGY_TIER: str(gang.tier)}
    requests = {**gang.requests, gang.resource: str(gang.gpus)}
    tolerated = [*gang.tolerations, gang.resource]  # the latter as the API server's ExtendedResourceToleration does
    spec = {
        "schedulerName": _SCHEDULER,
        "priority": gang.priority,
        "containers": [{"name": "main", "resources": {"requests": requests, "limits": requests}}],
        "nodeSelector": dict(gang.selector),
        "tolerations": [{"key": each, "operator": "Exists"} for each in tolerated],
    }
    found = []
    for at in range(gang.pods):
        meta = {
            "name": f"{_NAME}-{at}",
            "namespace": gang.namespace,
            "uid": f"~{_NAME}-{at:06}",  # after every real one
            "creationTimestamp": rfc3339(now_s),
            "annotations": notes,
            "labels": {labels.RANK: str(at), **({labels.VOLCANO_QUEUE: gang.queue} if gang.queue else {})},
        }
        found.append(msgspec.convert({"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}, Pod))
    return found


def _shape(pod: Pod) -> PodShape:
    """Return the shape of a pod. Raises BadGang if a resource quantity of it is invalid."""
    try:
        return shape_of(pod)
    except KubeError as error:
        raise BadGang(str(error)) from error


def _reserve(view: ClusterView, plans: Sequence[GangPlan]) -> None:
    """Charge the pods that other gangs' plans reserve to the snapshot of `view`, so that their room is not used
    twice.
    """
    for plan in plans:
        for at, (host, shape) in enumerate(plan.reserved_pods()):
            view.snapshot.charge(f"{plan.key} {at}", Charge(view.fabric.hosts[host], shape, 0))


def _landings(gang: AskedGang, plan: GangPlan, view: ClusterView, shape: PodShape, room: Rows) -> tuple[Landing, ...]:
    """Return the hosts on which the gang would land, each with its ranks and its GPUs that are free now.

    Sorted by rank. shape: of a pod of the gang, whose tolerations count for the free GPUs.
    """
    by_host: dict[int, list[int]] = {}
    for uid, host in plan.hosts.items():
        by_host.setdefault(host, []).append(plan.ranks.get(uid, 0))
    one = PodShape(requests=((gang.resource, 1),), tolerations=shape.tolerations)
    free = view.snapshot.room(one)
    found = [
        Landing(
            view.fabric.hosts[host],
            _path(view.fabric, host),
            len(ranks),
            tuple(sorted(ranks)),
            len(ranks) * gang.gpus,
            int(free[host]),
        )
        for host, ranks in by_host.items()
    ]
    return tuple(sorted(found, key=lambda each: (each.ranks, natural_key(each.node))))


def _path(fabric: Fabric, host: int) -> str:
    return "/".join(fabric.names[1][fabric.switch_of[1][host]]) if fabric.mapped[host] else ""


def _without_map(gang: AskedGang, room: int, map_fault: str) -> list[str]:
    """Return the sentences for a cluster without a map, for which the planner makes no plan.

    room: pods that fit in all. map_fault: why there is no map.
    """
    what = f"{gang.pods}x{gang.gpus} GPUs {'have room' if room >= gang.pods else 'have no room'} now"
    return [f"{what}: {_count(room, 'such pod')} would fit.", f"kube-scheduler chooses alone: {map_fault}."]


def _verdict(gang: AskedGang, plan: GangPlan, fabric: Fabric) -> str:
    """Return one sentence on where the gang would be placed, or that it does not fit."""
    size = f"{gang.pods}x{gang.gpus} GPUs"
    if not plan.hosts:
        reason = f": {plan.refusal.reason.value}, {plan.refusal.detail}" if plan.refusal else ""
        return f"{size} find no place now{reason}."
    hosts = sorted(set(plan.hosts.values()))
    where = f"on {_count(len(hosts), 'node')}"
    if plan.tier == 0:
        where = f"on one node, {fabric.hosts[hosts[0]]}"
    elif fabric.mapped[hosts].all():
        name = "/".join(fabric.names[plan.tier][fabric.switch_of[plan.tier][hosts[0]]])
        where += f" under {f'switch {name}' if name else 'the top of the map'} (tier {plan.tier})"
    if len(plan.hosts) < gang.pods:
        return f"{size}: {len(plan.hosts)} of its pods would land {where}; the others find no place now."
    return f"{size} would land {where}."


def _fit_by_tier(gang: AskedGang, plan: GangPlan, fabric: Fabric, room: Rows) -> list[str]:
    """Return a sentence for each tier, from the nodes up to that of the plan, or to the widest that the gang may span
    if no pod is planned: how many switches hold the gang's min.

    Ends early at a tier with a single switch. One sentence if there is neither room nor a plan; [] without a map. room:
    pods of the gang that each host still holds, by host ID.
    """
    if not fabric.mapped_count:
        return []
    known = np.array(fabric.mapped)
    own = np.where(known, room, 0)
    if not own.any() and not plan.hosts:
        return ["No node of the map has room for any of its pods."]
    top = min(gang.tier or fabric.tiers, fabric.tiers)
    found = []
    for tier in range((plan.tier if plan.hosts else top) + 1):
        sums = np.add.reduceat(own, fabric.starts[tier]) if tier else own
        first = fabric.starts[tier]
        mapped = known[first]  # strangers come last, each a switch of its own
        sums = sums[mapped]
        fitting = int((sums >= gang.minimum).sum())
        what = "host of the map" if tier == 0 else f"switch of tier {tier}"
        best = int(sums.argmax()) if len(sums) else 0
        name = "/".join(fabric.names[tier][best]) if tier else fabric.hosts[best]
        if len(sums) == 1:
            found.append(f"The whole map has room for {_count(int(sums[0]), 'such pod')}.")
            break
        if fitting:
            chosen = "; the planner takes the tightest that leaves large holes whole" if fitting > 1 else ""
            found.append(
                f"{fitting} of {len(sums)} {_plural(what)} {_hold(fitting)} {gang.minimum} of its pods{chosen}."
            )
        else:
            found.append(
                f"No {what} holds {gang.minimum} of its pods: {name} has room for {int(sums[best])}, the most."
            )
    return found


def _refusals(nodes: Sequence[Node], shape: PodShape) -> list[str]:
    """Return a line that counts, by reason, the nodes that can never take the pod; [] if there are none."""
    counts = Counter({why: number for why, number in count_refusals(nodes, shape).items() if why})
    if not counts:
        return []
    text = ", ".join(f"{number} {why}" for why, number in sorted(counts.items(), key=lambda each: (-each[1], each[0])))
    number = sum(counts.values())
    return [f"{number} of {_count(len(nodes), 'node')} {'takes' if number == 1 else 'take'} no such pod: {text}."]


def chain_of(
    gang: AskedGang,
    pods: Sequence[Pod],
    autoscaler: Autoscaler,
    nodes: Sequence[Node],
    policy: Policy,
    gpus: Gpus,
    now_s: float,
) -> Chain | None:
    """Return the chain of the autoscaler's decision on the gang as one that no controller owns.

    None if the autoscaler ignores the gang. pods: of the gang; they are added to `autoscaler` and stay there. nodes: of
    the cluster. gpus: names of GPU resources. now_s: since 1970.
    """
    for pod in pods:
        autoscaler.put_pod(pod)
    observed = autoscaler.observation(now_s)
    steps = decide(observed, policy, now_s)
    return chain(
        JobKey("Pod", gang.namespace, _NAME),
        observed,
        steps,
        policy,
        now_s,
        nodes,
        gpus,
        cluster=ClusterContext(autoscaler.bare_gangs()),
    )


def _queue_and_decision(chain: Chain, fits: bool) -> list[str]:
    """Return sentences on the queue and on the autoscaler's decision. fits: the gang has a place now.

    If it fits, the decision is only told if its reason is one of _HINDER, which counts whatever room there is.
    """
    queue = chain.queue
    limit = "no limit" if queue.limit is None else f"{queue.used} of {queue.limit} GPUs used"
    found = [f"Queue {queue.name}: {limit}."]
    if fits and chain.reason not in _HINDER:
        return found  # the scheduler may place it at once; the autoscaler may have meant that room for an older job
    found.append(f"Autoscaler: {chain.reason.value}. {chain.explanation}")
    if chain.shrinking_jobs:
        found.append(
            "Shrinks for it: " + ", ".join(f"{job} {was} to {size}" for job, was, size in chain.shrinking_jobs) + "."
        )
    return found


def listing(explained: Explained) -> Listing[Landing]:
    """Return the answer as a listing for all output formats: a table of nodes, with sentences below it."""
    return Listing(
        (
            Column("NODE", lambda row: row.node),
            Column("SWITCH", lambda row: row.switch or "-"),
            Column("PODS", lambda row: str(row.pods), number=True),
            Column("GPUS", lambda row: str(row.gpus), number=True),
            Column("FREE", lambda row: str(row.free_gpus), number=True),
            Column("RANKS", lambda row: ranges(row.ranks)),
        ),
        explained.landings,
        lambda row: f"node/{row.node}",
        "no place",
        explained.why,
        document=asdict(explained),
    )


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending distinct numbers as text, consecutive ones joined, as in "0-3,8"; "" for none."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, each)) for each in parts)


def _count(number: int, one: str) -> str:
    return f"{number} {one}{'' if number == 1 else 's'}"


def _plural(what: str) -> str:
    return what.replace("switch", "switches", 1) if what.startswith("switch") else what.replace("host", "hosts", 1)


def _hold(number: int) -> str:
    return "holds" if number == 1 else "hold"
