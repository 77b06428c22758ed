"""The metrics of the extender and the nominator, in a registry of their own.

Names follow the rules of promtool. Source: docs/facts/ecosystem.md 3.1; CS-21
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from turnout.jobs.gang import GangKey
from turnout.jobs.reservation import PUBLISHED_REASONS
from turnout.kube.client.clock import Clock
from turnout.kube.server.client_metrics import ClientMetrics, Watch, start_at_zero
from turnout.kube.server.probes import leading_gauge, register_build_info
from turnout.scheduler_ext.gates.evictions import ReservationEnd
from turnout.scheduler_ext.model import EventReason, LiftReason
from turnout.scheduler_ext.planner.fabric_quality import EXCESS_CLASSES, gangs_by_excess
from turnout.scheduler_ext.planner.request import PLANNING_FAILED, HardTerm
from turnout.topology.map_update import MapOutcome

DURATIONS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
UNJUDGED = ("ResourceClaims", "PodLevelGpus", "Unreadable")  # reasons of unjudged answers
GANG_RULES = ("tier", "whole")  # values of GangRule
MAX_GANGS = 50  # gangs that a metric names
NODES = (0, 1, 8, 64, 256, 1024, 4096, 16384, 65536)


class Metrics:
    """All series of an extender, or of a nominator's planner. A label never contains text of a caller or tenant."""

    def __init__(self, component: str = "extender") -> None:
        """Create all series. component: the program that serves these metrics, extender or nominator."""
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._component = component
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        register_build_info(registry, component)
        self._add_request_series(registry)
        self._add_map_series(registry)
        self.refused_answers = Counter(
            "turnout_extender_refused_answers",
            "Answers that give a pod no place, retries included.",
            ["reason"],
            registry=registry,
        )
        self._add_gang_series(registry)
        self.unjudged_answers = Counter(
            "turnout_extender_unjudged_answers",
            "Answers without a decision for pods that request GPUs.",
            ["reason"],
            registry=registry,
        )
        start_at_zero(self.unjudged_answers, UNJUDGED)
        self._tls_expiry: Gauge | None = None
        self.tls_reloads = Counter(
            "turnout_tls_reloads", "Changed certificates that were loaded or refused.", ["outcome"], registry=registry
        )
        start_at_zero(self.reloads, (outcome.value for outcome in MapOutcome))
        start_at_zero(self.tls_reloads, ("taken", "refused"))

    def _add_request_series(self, registry: CollectorRegistry) -> None:
        """Create the series about requests."""
        prefix = "turnout_extender_"
        self.duration = Histogram(
            f"{prefix}request_duration_seconds",
            "From a request's head to its answer, its body's journey included.",
            ["verb"],
            buckets=DURATIONS_S,
            registry=registry,
        )
        self.phase = Histogram(
            f"{prefix}phase_duration_seconds",
            "Time to decode, to plan and to encode.",
            ["verb", "phase"],
            buckets=DURATIONS_S,
            registry=registry,
        )
        self.answer_nodes = Histogram(
            f"{prefix}answer_nodes", "Nodes per answer.", ["verb"], buckets=NODES, registry=registry
        )
        self.requests = Counter(f"{prefix}requests", "Requests, by outcome.", ["verb", "outcome"], registry=registry)
        self.errors = Counter(
            f"{prefix}errors", "Answers without advice because of an error.", ["verb", "reason"], registry=registry
        )
        self.in_flight = Gauge(f"{prefix}requests_in_flight", "Requests being read or answered.", registry=registry)
        self.connections = Gauge(f"{prefix}connections", "Open connections to the verbs.", registry=registry)

    def _add_gang_series(self, registry: CollectorRegistry) -> None:
        """Create the series about gangs."""
        self.gangs = Gauge("turnout_gangs", "Gangs, by state.", ["state"], registry=registry)
        self.plans_rejected = Counter(
            "turnout_plans_rejected",
            "Gangs that are refused for a fault of the planner: by the required term that the plan broke, or "
            "planning_failed after an error.",
            ["term"],
            registry=registry,
        )
        start_at_zero(self.plans_rejected, [*(term.value for term in HardTerm), PLANNING_FAILED])
        self.gang_pods_violating = Gauge(
            "turnout_gang_pods_violating",
            "Bound pods of gangs that break a rule: the gang is wider than its tier, or it must be whole and is not.",
            ["rule"],
            registry=registry,
        )
        self.gang_violation_pods = Gauge(
            "turnout_gang_violation_pods",
            f"Bound pods of a gang that breaks a rule; the {MAX_GANGS} gangs with most such pods.",
            ["gang_namespace", "gang_name"],
            registry=registry,
        )
        self.gangs_by_excess = Gauge(
            "turnout_gangs_by_excess_leaves",
            "Gangs by how many leaves more than the fewest their bound pods use.",
            ["excess"],
            registry=registry,
        )
        for each in EXCESS_CLASSES:
            self.gangs_by_excess.labels(each)
        self.gang_excess_leaves = Gauge(
            "turnout_gang_excess_leaves",
            f"Leaves that the bound pods of a gang use above the fewest; the {MAX_GANGS} gangs with most such leaves.",
            ["gang_namespace", "gang_name"],
            registry=registry,
        )

    def _add_map_series(self, registry: CollectorRegistry) -> None:
        """Create the series about the map of switches."""
        prefix = "turnout_topology_"
        self.hosts = Gauge(f"{prefix}hosts", "Hosts on the map in use.", registry=registry)
        self.map_errors = Gauge(
            f"{prefix}map_errors", "Errors in the newest map text; the map in use has none.", registry=registry
        )
        self.reloads = Counter(
            f"{prefix}reloads", "Map texts that were taken, held or refused.", ["outcome"], registry=registry
        )
        self.last_reload = Gauge(
            f"{prefix}last_reload_timestamp_seconds",
            "When the map in use was taken, in seconds since 1970.",
            registry=registry,
        )
        self.reserved_hosts = Gauge(
            "turnout_reserved_hosts",
            "Nodes that are reserved for gangs through the API server, by why.",
            ["reason"],
            registry=registry,
        )
        self.unmapped_hosts = Gauge(
            "turnout_unmapped_hosts", "Nodes that offer GPUs and are not on the map in use.", registry=registry
        )
        self.largest_gang_gpus = Gauge(
            "turnout_fabric_largest_gang_gpus",
            "GPUs of the largest gang of whole free hosts that fits under one switch of a tier; 1 is the leaves.",
            ["tier"],
            registry=registry,
        )

    def set_violations(self, violations: Iterable[tuple[str, str, str, int]]) -> None:
        """Set the gauges of gangs that break a rule. violations: (namespace, name, rule, bound pods) of each such
        gang.
        """
        worst = sorted(violations, key=lambda each: (-each[3], each[:2]))
        for rule in GANG_RULES:
            self.gang_pods_violating.labels(rule).set(sum(pods for *_, broken, pods in worst if broken == rule))
        self.gang_violation_pods.clear()
        for namespace, name, _, pods in worst[:MAX_GANGS]:
            self.gang_violation_pods.labels(namespace, name).set(pods)

    def set_excess(self, excess: Mapping[GangKey, int]) -> None:
        """Set the gauges of excess leaves.

        Gangs that were named before are forgotten. Of the gangs with an excess above 0, the MAX_GANGS worst are named.
        excess: gang -> leaves that it uses above the fewest possible.
        """
        for each, gangs in gangs_by_excess(excess.values()).items():
            self.gangs_by_excess.labels(each).set(gangs)
        self.gang_excess_leaves.clear()
        worst = sorted(
            (key for key, leaves in excess.items() if leaves), key=lambda key: (-excess[key], key.namespace, key.name)
        )
        for key in worst[:MAX_GANGS]:
            self.gang_excess_leaves.labels(key.namespace, key.name).set(excess[key])

    def set_fabric(self, largest_gang_gpus: Mapping[str, int], unmapped_hosts: int) -> None:
        """Set the gauges of the fabric. largest_gang_gpus: tier -> GPUs. unmapped_hosts: number of nodes off the
        map.
        """
        self.unmapped_hosts.set(unmapped_hosts)
        self.largest_gang_gpus.clear()
        for tier, gpus in largest_gang_gpus.items():
            self.largest_gang_gpus.labels(tier).set(gpus)

    def set_certificate_expiry(self, expiry_s: float) -> None:
        """Set the metric of the time at which the serving certificate ends, in seconds since 1970.

        Without TLS there is no such series, and so no alert.
        """
        if self._tls_expiry is None:
            self._tls_expiry = Gauge(
                "turnout_tls_certificate_expiry_timestamp_seconds",
                "When the serving certificate ends, in seconds since 1970.",
                registry=self.registry,
            )
        self._tls_expiry.set(expiry_s)

    def show_client(
        self,
        requests: Callable[[], Mapping[tuple[str, str], int]],
        watches: Callable[[], Iterable[tuple[str, Watch]]],
        clock: Clock,
    ) -> None:
        """Register the series about calls to the API server and about watches, read at each scrape.

        requests: returns (method, outcome) -> calls. watches: returns (kind, watch).
        """
        self.registry.register(ClientMetrics(self._component, requests, watches, clock))

    def page(self) -> bytes:
        """Return all series of the registry in Prometheus' text format, with the values of now."""
        return generate_latest(self.registry)


# Names of the errors of a refused patch. NotLeading is none: then the patch is not sent.
PATCH_ERRORS = (
    "BadResponse",
    "Conflict",
    "DecodeError",
    "Forbidden",
    "Gone",
    "NotFound",
    "Rejected",
    "ServerFault",
    "TooManyRequests",
    "Unauthorised",
    "Unreachable",
)
WAIT_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0)


class NominatorMetrics:
    """The series of the writers of a nominator, in the registry of its planner's series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Create the series, the counters at 0, in this registry."""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"turnout_{name}", text, labels, registry=registry)

        self._registry = registry
        self.leading = leading_gauge(registry, "nominator")
        self.nominations = counter("nominations", "Nominations written or cleared, by reason.", "reason")
        self.patch_failures = counter(
            "nominator_patch_failures", "Refused patches, by what they write and by error.", "what", "error"
        )
        self.switch_paths = counter("switch_paths_written", "Switch paths written on pods.")
        self.lifts = counter("gates_lifted", "Scheduling gates lifted, by reason.", "reason")
        self.gate_wait_s = Histogram(
            "turnout_gate_wait_seconds",
            "Time from the creation of a pod until its scheduling gate is lifted.",
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        self.bindings = counter(
            "gate_bindings",
            "Pods bound after their gate was lifted, by whether they are on the nominated node.",
            "as_nominated",
        )
        self.evictions = counter("gate_evictions", "Evictions for gated gangs, by outcome.", "outcome")
        self.repairs = counter("gang_repairs", "Pods evicted from gangs below their min, by reason.", "reason")
        self.reservations_ended = counter(
            "reservations_ended",
            "Reservations of nodes that ended, by why nodes were reserved and why it ended.",
            "reason",
            "end",
        )
        start_at_zero(self.patch_failures, ("nomination", "gate", "switch_path", "reservation"), PATCH_ERRORS)
        start_at_zero(self.reservations_ended, PUBLISHED_REASONS, ReservationEnd)
        start_at_zero(self.lifts, (reason.value for reason in LiftReason))
        start_at_zero(self.bindings, ("true", "false"))
        start_at_zero(self.repairs, (EventReason.GANG_MOVED.value, EventReason.GANG_GIVEN_UP.value))

    def show_gated_pods(self, count: Callable[[], int]) -> None:
        """Show the number of gated pods. A nominator that lifts no gates has no such series."""
        gauge = Gauge("turnout_gated_pods", "Pods behind our scheduling gate now.", registry=self._registry)
        gauge.set_function(count)

    def show_oldest_gates(self, gate_waits: Callable[[], Iterable[GateWait]]) -> None:
        """Show the gangs that have waited longest behind our gate.

        gate_waits: returns the waits of all gated pods; none while this process does not lead.
        """
        self._registry.register(_OldestGates(gate_waits))


class GateWait(NamedTuple):
    """A gang behind our scheduling gate."""

    age_s: float  # since the creation of its oldest gated pod, >= 0
    namespace: str
    name: str
    reason: str  # why it waits: a word of EventReason, PLANNED or OTHER_GATE


PLANNED = "planned"  # the reason of a gang whose gates are about to be lifted
OTHER_GATE = "other_gate"  # the reason of pods that also wait for a gate that another program lifts


def oldest_waits(gate_waits: Iterable[GateWait], limit: int = MAX_GANGS) -> list[GateWait]:
    """Return the gangs that have waited longest, at most `limit`, the oldest first; one for each namespace, name and
    reason.
    """
    found: dict[tuple[str, str, str], GateWait] = {}
    for each in sorted(gate_waits, key=lambda each: (-each.age_s, each)):
        found.setdefault((each.namespace, each.name, each.reason), each)
        if len(found) == limit:
            break
    return list(found.values())


class _OldestGates(Collector):
    """The gangs that have waited longest, computed only when the page is read."""

    def __init__(self, gate_waits: Callable[[], Iterable[GateWait]]) -> None:
        self._gate_waits = gate_waits

    def collect(self) -> Iterator[Metric]:
        """Yield the gauge turnout_gate_oldest_seconds with the MAX_GANGS oldest gangs."""
        text = (
            "Age of the oldest gated pod of a gang, by why it waits; planned: the gang has a plan. "
            f"The {MAX_GANGS} oldest gangs."
        )
        gauge = GaugeMetricFamily("turnout_gate_oldest_seconds", text, labels=["gang_namespace", "gang_name", "reason"])
        for each in oldest_waits(self._gate_waits()):
            gauge.add_metric([each.namespace, each.name, each.reason], each.age_s)
        yield gauge
