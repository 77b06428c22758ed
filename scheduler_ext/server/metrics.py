"""The metrics of the extender and the nominator, in a registry of their own.

Names follow the rules of promtool. Source: docs/facts/ecosystem.md 3.1; CS-21
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from turnout.kube.client.clock import Clock
from turnout.kube.server.probes import build_info

DURATIONS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
NAMES = (0, 1, 8, 64, 256, 1024, 4096, 16384, 65536)


class Metrics:
    """All series of one extender process. A label never contains text of a caller or tenant."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        build_info(registry)
        self._requests(registry)
        self._map(registry)
        self.refusals = Counter("turnout_refusals", "Gangs that got no placement.", ["reason"], registry=registry)
        self.gangs_partial = Gauge(
            "turnout_gangs_partial", "Gangs with some members placed and no plan for the rest.", registry=registry
        )
        self.unenforced_pods = Gauge(
            "turnout_unenforced_pods",
            "Bound pods of gangs that lie wider than required, or are held and not whole.",
            registry=registry,
        )
        self.no_opinion = Counter(
            "turnout_no_opinion",
            "Answers without an opinion for pods that ask for GPUs.",
            ["reason"],
            registry=registry,
        )
        self._tls_expiry: Gauge | None = None
        self.tls_reloads = Counter(
            "turnout_tls_reloads", "Changed certificates that were taken or refused.", ["outcome"], registry=registry
        )

    def _requests(self, registry: CollectorRegistry) -> None:
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
        self.names = Histogram(
            f"{prefix}answer_names", "Nodes that an answer names.", ["verb"], buckets=NAMES, registry=registry
        )
        self.requests = Counter(
            f"{prefix}requests", "Requests by what became of them.", ["verb", "outcome"], registry=registry
        )
        self.errors = Counter(
            f"{prefix}errors", "Neutral answers given in place of advice.", ["verb", "reason"], registry=registry
        )
        self.in_flight = Gauge(f"{prefix}requests_in_flight", "Requests being read or answered.", registry=registry)
        self.connections = Gauge(f"{prefix}connections", "Open connections to the verbs.", registry=registry)

    def _map(self, registry: CollectorRegistry) -> None:
        """Create the series about the map of switches."""
        prefix = "turnout_topology_"
        self.hosts = Gauge(f"{prefix}hosts", "Hosts on the map in use.", registry=registry)
        self.faults = Gauge(
            f"{prefix}faults", "Faults of the newest map text; the map in use has none.", registry=registry
        )
        self.reloads = Counter(
            f"{prefix}reloads", "Map texts that were taken, held or refused.", ["outcome"], registry=registry
        )
        self.last_reload = Gauge(
            f"{prefix}last_reload_timestamp_seconds",
            "When the map in use was taken, in seconds since 1970.",
            registry=registry,
        )

    def certificate_ends(self, expiry_s: float) -> None:
        """Show when the serving certificate ends. Without TLS there is no such series, and so no alert."""
        if self._tls_expiry is None:
            self._tls_expiry = Gauge(
                "turnout_tls_certificate_expiry_timestamp_seconds",
                "When the serving certificate ends, in seconds since 1970.",
                registry=self.registry,
            )
        self._tls_expiry.set(expiry_s)

    def pass_through(self, watches: Callable[[], Iterable[tuple[str, Watch]]], clock: Clock) -> None:
        """Show the reflectors' own numbers.

        watches: gives (kind of object, reflector); it is called at each scrape.
        """
        self.registry.register(_Watches(watches, clock))

    def page(self) -> bytes:
        """Return the scrape in Prometheus' text format."""
        return generate_latest(self.registry)


class Watch(Protocol):
    """The numbers of a reflector that are shown."""

    has_synced: bool
    last_event_s: float  # of the monotonic clock

    @property
    def object_count(self) -> int: ...
    @property
    def relist_count(self) -> int: ...
    @property
    def reconnect_count(self) -> int: ...
    @property
    def skipped_count(self) -> int: ...


class _Watches(Collector):
    """Reads the reflectors at each scrape, so that they need no knowledge of Prometheus."""

    def __init__(self, watches: Callable[[], Iterable[tuple[str, Watch]]], clock: Clock) -> None:
        self._watches, self._clock = watches, clock

    def collect(self) -> Iterator[Metric]:
        """Yield the series of all watches, as they are when Prometheus asks."""
        gauge, counter, prefix, kind = GaugeMetricFamily, CounterMetricFamily, "turnout_watch_", ["kind"]
        synced = gauge(f"{prefix}synced", "1 once a whole list has been told.", labels=kind)
        objects = gauge(f"{prefix}objects", "Objects in hand.", labels=kind)
        age = gauge(f"{prefix}last_event_age_seconds", "Time since anything came.", labels=kind)
        relists = counter(f"{prefix}relists", "Lists after the first.", labels=kind)
        reconnects = counter(f"{prefix}reconnects", "Watches after the first.", labels=kind)
        skipped = counter(f"{prefix}skipped", "Objects and lines that could not be used.", labels=kind)
        for name, watch in self._watches():
            synced.add_metric([name], float(watch.has_synced))
            objects.add_metric([name], watch.object_count)
            age.add_metric([name], max(0.0, self._clock.monotonic() - watch.last_event_s))
            relists.add_metric([name], watch.relist_count)
            reconnects.add_metric([name], watch.reconnect_count)
            skipped.add_metric([name], watch.skipped_count)
        yield from (synced, objects, age, relists, reconnects, skipped)


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
    """The series of evictions for gangs behind our gates."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.outcomes = Counter(
            "turnout_gate_evictions",
            "Evictions for gangs behind our gates, by what came of each.",
            ["came"],
            registry=registry,
        )


class NominationMetrics:
    """The counters for the metrics page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.writes = Counter(
            "turnout_nominations", "Nominations written or cleared, by why.", ["why"], registry=registry
        )
        self.failures = Counter(
            "turnout_nomination_failures", "Patches that were refused, by error.", ["error"], registry=registry
        )


class SwitchPathMetrics:
    """The counters for the metrics page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.writes = Counter("turnout_switch_paths", "Switch paths written on pods.", registry=registry)
        self.failures = Counter(
            "turnout_switch_path_failures", "Patches that were refused, by error.", ["error"], registry=registry
        )
