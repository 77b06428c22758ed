"""The series of a program's own calls and watches of the API server. Every service has them.

They are read from the client and the reflectors at each scrape, so that those need no knowledge of Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Protocol

from prometheus_client import Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from turnout.kube.client.clock import Clock


class Watch(Protocol):
    """The numbers of a reflector that are shown."""

    has_synced: bool  # True if a first list is complete
    last_event_s: float  # the time of the last event, list or answered watch, on the monotonic clock

    @property
    def object_count(self) -> int:
        """Return the number of objects in the cache."""

    @property
    def relist_count(self) -> int:
        """Return the number of lists after the first."""

    @property
    def reconnect_count(self) -> int:
        """Return the number of watches after the first."""

    @property
    def skipped_count(self) -> int:
        """Return the number of objects and lines that could not be used."""


class ClientMetrics(Collector):
    """The calls and the watches of one program."""

    def __init__(
        self,
        component: str,
        requests: Callable[[], Mapping[tuple[str, str], int]],
        watches: Callable[[], Iterable[tuple[str, Watch]]],
        clock: Clock,
    ) -> None:
        """Take the sources of the series, which are read at each scrape.

        component: the name of the program. requests: returns the number of calls by (verb, code). watches: returns
        (name of the resource, watch) of each watch.
        """
        self._component, self._requests, self._watches, self._clock = component, requests, watches, clock

    def collect(self) -> Iterator[Metric]:
        """Yield the series with their current values."""
        gauge, counter, prefix = GaugeMetricFamily, CounterMetricFamily, "turnout_watch_"
        text = "Calls to the API server, by verb and code: 403, 404, 409, 429 and 422, else the class; none: no answer."
        requests = counter("turnout_api_requests", text, labels=["component", "verb", "code"])
        for (verb, code), calls in sorted(self._requests().items()):
            requests.add_metric([self._component, verb, code], calls)
        labels = ["component", "resource"]
        synced = gauge(f"{prefix}synced", "1 once a complete list has been received.", labels=labels)
        objects = gauge(f"{prefix}objects", "Objects in the cache.", labels=labels)
        age = gauge(
            f"{prefix}last_event_age_seconds", "Time since the last event, list or answered watch.", labels=labels
        )
        relists = counter(f"{prefix}relists", "Lists after the first.", labels=labels)
        reconnects = counter(f"{prefix}reconnects", "Watches after the first.", labels=labels)
        skipped = counter(f"{prefix}skipped", "Objects and lines that could not be used.", labels=labels)
        for name, watch in self._watches():
            values = [self._component, name]
            synced.add_metric(values, float(watch.has_synced))
            objects.add_metric(values, watch.object_count)
            age.add_metric(values, max(0.0, self._clock.monotonic() - watch.last_event_s))
            relists.add_metric(values, watch.relist_count)
            reconnects.add_metric(values, watch.reconnect_count)
            skipped.add_metric(values, watch.skipped_count)
        yield from (requests, synced, objects, age, relists, reconnects, skipped)


def start_at_zero(counter: Counter, *values: Iterable[str]) -> None:
    """Create the series of each combination of label values with the value 0.

    Without it `increase` of Prometheus would miss the first event of a series. values: all values of each label, in the
    order of the counter's labels.
    """
    for combination in product(*values):
        counter.labels(*combination)
