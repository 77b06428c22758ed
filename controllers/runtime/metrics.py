"""The job controllers' metrics page."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from turnout.kube.server.probes import build_info

_LOOK_S = (0.0005, 0.001, 0.005, 0.02, 0.1, 0.5)


class Metrics:
    """One page. waiting: how many jobs wait to be looked at."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        build_info(registry)
        self.look_s = Histogram(
            "turnout_controller_decide_seconds", "Time for one decision on one job.", buckets=_LOOK_S, registry=registry
        )
        self.writes = Counter("turnout_controller_writes", "Objects created, changed or deleted.", registry=registry)
        self.faults = Counter(
            "turnout_controller_faults",
            "Looks at a job or a ScalePlan that a fault of ours has ended.",
            registry=registry,
        )
        self.events = Counter(
            "turnout_controller_events",
            "Events on jobs and ScalePlans, by reason.",
            ["kind", "reason"],
            registry=registry,
        )
        self.jumped_s = Gauge(
            "turnout_controller_clock_jumped_seconds",
            "By how much a clock has jumped just now, while nothing that only time decides is done; else 0.",
            registry=registry,
        )
        self.leading = Gauge("turnout_controller_leading", "1 while this replica writes.", registry=registry)
        Gauge("turnout_controller_queue", "Jobs that wait to be looked at.", registry=registry).set_function(waiting)

    def page(self) -> bytes:
        """Return the page as Prometheus reads it."""
        return generate_latest(self.registry)
