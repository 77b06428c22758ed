"""The metrics of the page that serves many viewers: how old its data is, and how many viewers follow it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest

from turnout.kube.client.clock import Clock
from turnout.kube.server.client_metrics import ClientMetrics, Watch
from turnout.kube.server.probes import register_build_info


class PageMetrics:
    """The metrics of one page."""

    def __init__(self, data_age_s: Callable[[], float], viewers: Callable[[], int]) -> None:
        """Register the metrics.

        data_age_s: returns the age of the page's data in seconds. viewers: returns the number of open streams.
        """
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        register_build_info(registry, "page")
        Gauge(
            "turnout_page_data_age_seconds",
            "Time since the page last made its picture of the cluster while all of its watches were open.",
            registry=registry,
        ).set_function(data_age_s)
        Gauge("turnout_page_viewers", "Browsers that follow the page now.", registry=registry).set_function(viewers)

    def show_client(
        self,
        requests: Callable[[], Mapping[tuple[str, str], int]],
        watches: Callable[[], Iterable[tuple[str, Watch]]],
        clock: Clock,
    ) -> None:
        """Register the metrics of the API client: calls and watches. The arguments are those of ClientMetrics."""
        self.registry.register(ClientMetrics("page", requests, watches, clock))

    def page(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        return generate_latest(self.registry)
