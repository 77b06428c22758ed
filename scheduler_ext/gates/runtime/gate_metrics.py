"""The metrics of gates: how many pods wait behind ours, for how long, why gates were lifted, and what came of it."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

WAIT_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0)


class GateMetrics:
    """The series of the metrics page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.gated = Gauge("turnout_gated_pods", "Pods behind our scheduling gate now.", registry=registry)
        self.leading = Gauge("turnout_gates_leading", "1 while this process lifts gates, else 0.", registry=registry)
        self.lifts = Counter("turnout_gates_lifted", "Gates lifted, by why.", ["why"], registry=registry)
        self.failures = Counter(
            "turnout_gate_failures", "Patches of gated pods that were refused, by error.", ["error"], registry=registry
        )
        self.wait_s = Histogram(
            "turnout_gated_seconds",
            "From a pod's creation to its gate being lifted.",
            buckets=WAIT_BUCKETS_S,
            registry=registry,
        )
        self.bindings = Counter(
            "turnout_gate_nominations",
            "Pods bound after their gate was lifted, by whether they are where they were nominated.",
            ["obeyed"],
            registry=registry,
        )


class RepairMetrics:
    """The series of pods that are evicted of gangs below their minimum."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.evictions = Counter(
            "turnout_gang_repairs", "Pods evicted of gangs below their min, by why.", ["why"], registry=registry
        )


class EvictionMetrics:
    """The series of who leaves for gangs behind our gates."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.outcomes = Counter(
            "turnout_gate_evictions",
            "Evictions for gangs behind our gates, by what came of each.",
            ["came"],
            registry=registry,
        )
