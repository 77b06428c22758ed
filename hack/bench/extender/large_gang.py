"""What one large gang costs: each further question about it, and another tenant's question after one of its bindings.

Runs in this process, without HTTP: every pod of the gang is one question, and the answer is bound before the next.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import msgspec

from hack.bench.extender.cluster import GPUS_PER_NODE, Gang, Raw, node, node_name, pod, pod_group, topology_map
from turnout.jobs.gang import Dialect
from turnout.kube.objects import Node, Pod, PodGroup
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.planner.answers import answer_filter
from turnout.scheduler_ext.planner.plans import Plans, plans_by
from turnout.topology.fabric import build
from turnout.topology.map_formats import read_map

SPARE_NODES = 64  # beside those that the gang fills
OTHER_PODS = 8  # of the other tenant's gang, with 8 GPUs each
BUDGET_MS, BUDGET_MS_PER_HOST = 15.0, 0.004  # for a further question


@dataclass(frozen=True, slots=True)
class LargeGang:
    """Times of the questions about one gang, ms."""

    pods: int
    nodes: int
    first_ms: float  # of the question that plans the gang
    further_ms: tuple[float, ...]
    others_ms: tuple[float, ...]  # another tenant's question after each binding

    @property
    def limit_ms(self) -> float:
        """The most that a further question may take."""
        return BUDGET_MS + BUDGET_MS_PER_HOST * self.nodes

    def row(self) -> tuple[object, ...]:
        """Return the row of the table."""
        times = (median(self.further_ms), max(self.further_ms), median(self.others_ms), max(self.others_ms))
        return f"{self.pods:,}", self.nodes, self.first_ms, *times


COLUMNS = {
    "one gang, pods": "",
    "nodes": ",d",
    "first ms": ".1f",
    "further p50": ".2f",
    "further worst": ".1f",
    "others p50": ".2f",
    "others worst": ".1f",
}


def measure(pods: int, questions: int) -> LargeGang:
    """Time filter requests about pods of one large gang, then about another tenant's pod after each binding.

    pods: size of the gang, more than twice `questions`. questions: number of requests of each kind.
    """
    nodes = -(-pods // GPUS_PER_NODE) + SPARE_NODES
    plans, names = _plans(nodes), [node_name(number) for number in range(nodes)]
    large, other = Gang("large", pods, 1), Gang("other", OTHER_PODS, GPUS_PER_NODE)
    members, others = (_add_gang(plans.view, gang) for gang in (large, other))
    first_ms, _ = _ask(plans, members[0], names)
    _ask(plans, others[0], names)
    further_ms: list[float] = []
    others_ms: list[float] = []
    for at, member in enumerate(members[1 : 2 * questions + 1]):
        milliseconds, chosen = _ask(plans, member, names)
        _bind(plans.view, member, chosen)
        if at < questions:  # the next question about the gang meets the binding
            further_ms.append(milliseconds)
        else:
            others_ms.append(_ask(plans, others[1], names)[0])
    return LargeGang(pods, nodes, first_ms, tuple(further_ms), tuple(others_ms))


def _plans(nodes: int) -> Plans:
    """Return the plans of a cluster of empty nodes."""
    plans = plans_by(Rules())
    for number in range(nodes):
        plans.view.layout.put_node(msgspec.convert(node(number), Node))
    plans.view.layout.set_map(build(read_map(topology_map(nodes)["data"]).entries))
    return plans


def _add_gang(view: ClusterView, gang: Gang) -> list[Raw]:
    """Put a gang's PodGroup and pods into the view; return the pods."""
    pods = [pod(f"{gang.name}-{index}", gang.gpus, gang=gang, index=index) for index in range(gang.pods)]
    for each in pods:
        each["metadata"]["uid"] = each["metadata"]["name"]
        view.put_pod(msgspec.convert(each, Pod))
    view.groups.put_group(Dialect.VOLCANO, msgspec.convert(pod_group(gang), PodGroup))
    return pods


def _ask(plans: Plans, member: Raw, names: list[str]) -> tuple[float, str]:
    """Ask filter about a pod, and store the chosen node in the view. Return (milliseconds, node); node "" if none is
    kept.

    names: candidate nodes. member: the pod, which the view has.
    """
    now_s, member_state = time.monotonic(), plans.view.pods[member["metadata"]["uid"]]
    began_s = time.perf_counter()
    answer = answer_filter(plans, member_state, names, Rules(), now_s)
    milliseconds = (time.perf_counter() - began_s) * 1e3
    chosen = answer.nodes[0] if answer.nodes else ""
    if chosen:
        plans.view.assume(member_state, chosen, now_s)
    return milliseconds, chosen


def _bind(view: ClusterView, member: Raw, node_of_pod: str) -> None:
    """Put the pod into the view as bound to its node. node_of_pod: "" to do nothing."""
    if node_of_pod:
        member["spec"]["nodeName"] = node_of_pod
        view.put_pod(msgspec.convert(member, Pod))
