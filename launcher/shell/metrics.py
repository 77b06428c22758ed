"""An agent's metrics page, told by the same words as its log. Served where --metrics-port says.

Every agent tells of itself; what is of the whole job (rounds, restarts, members) only its coordinator does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, start_http_server

_WAITED_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)


class Metrics:
    """Counts what `told` hears. run: the job's id, a label of all of them, so that two jobs of a pod's name differ."""

    def __init__(self, run: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self._run = run

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"turnout_launcher_{name}", text, ["run"], registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"turnout_launcher_{name}", text, ["run", *labels], registry=registry)

        self._coordinates = gauge("coordinates", "1 on the agent that decides the rounds.")
        self._round = gauge("round", "Number of the round that this agent trains in, or trained in last.")
        self._group_rank = gauge("group_rank", "This agent's place in that round's world.")
        self._members = gauge("members", "Workers in the world. The coordinator tells.")
        self._ranks = gauge("ranks", "Training processes in the world. The coordinator tells.")
        self._crossings = gauge("ring_crossings", "Edges of the ring of workers that leave a leaf switch.")
        self._restarts = gauge("restarts", "Restarts charged to the job so far. The coordinator tells.")
        self._rounds = counter("rounds", "Worlds formed, by what ended the one before.", "reason")
        self._lost = counter("members_lost", "Members whose connection closed or that fell silent.", "reason")
        self._failed = counter("process_failures", "Training processes of this agent that ended with an error.")
        self._spawned = counter("rounds_spawned", "Rounds in which this agent could not fork its processes.")
        self._left = counter("coordinators_lost", "Coordinators that this agent has lost.", "reason")
        self._hangs = Gauge(
            "turnout_launcher_rank_hangs", "1 for a training process that has stopped making progress.",
            ["run", "rank"], registry=registry,
        )  # fmt: skip
        self._apart = Gauge(
            "turnout_launcher_rank_stands_apart", "1 for a rank that others wait for in a hang. The coordinator tells.",
            ["run", "rank"], registry=registry,
        )  # fmt: skip
        self._waited_s = Histogram(
            "turnout_launcher_round_wait_seconds", "From the end of a round, or the first knock, to the next world.",
            ["run"], buckets=_WAITED_S, registry=registry,
        )  # fmt: skip
        self._heard = self._hears(run)
        self._coordinates.labels(run).set(0)
        self._failed.labels(run)

    def _hears(self, run: str) -> dict[str, Callable[[Mapping[str, Any]], None]]:
        return {
            "world_formed": self._formed,
            "processes_started": self._started,
            "member_lost": lambda fields: self._lost.labels(run, fields["reason"]).inc(),
            "process_failed": lambda fields: self._failed.labels(run).inc(),
            "process_hung": lambda fields: self._hangs.labels(run, fields["rank"]).set(1),
            "process_moved": lambda fields: self._hangs.labels(run, fields["rank"]).set(0),
            "stacks_gathered": self._gathered,
            "hang_over": lambda fields: self._apart.clear(),
            "processes_spawned": lambda fields: self._spawned.labels(run).inc(),
            "coordinator_lost": lambda fields: self._left.labels(run, fields["reason"]).inc(),
            "coordinator_begun": lambda fields: self._coordinates.labels(run).set(1),
            "stepped_down": lambda fields: self._coordinates.labels(run).set(0),
            "handed_over": lambda fields: self._coordinates.labels(run).set(0),
        }

    def told(self, what: str, fields: Mapping[str, object]) -> None:
        """Something happened."""
        if (hear := self._heard.get(what)) is not None:
            hear(fields)

    def _gathered(self, fields: Mapping[str, Any]) -> None:
        for rank in fields["apart"]:
            self._apart.labels(self._run, rank).set(1)

    def _formed(self, fields: Mapping[str, Any]) -> None:
        run = self._run
        self._apart.clear()  # ranks are of other processes now
        self._members.labels(run).set(fields["members"])
        self._ranks.labels(run).set(fields["ranks"])
        self._crossings.labels(run).set(fields["crossings"])
        self._restarts.labels(run).set(fields["restarts"])
        self._rounds.labels(run, fields["reason"]).inc()
        self._waited_s.labels(run).observe(fields["waited_s"])

    def _started(self, fields: Mapping[str, Any]) -> None:
        self._hangs.clear()  # the ranks that this agent had before
        self._round.labels(self._run).set(fields["round"])
        self._group_rank.labels(self._run).set(fields["group_rank"])

    def serve(self, address: str, port: int) -> closing[Any]:
        """Answer there, in a thread, until closed. Raises OSError."""
        server, _ = start_http_server(port, addr=address, registry=self.registry)
        return closing(_Server(server))


class _Server:
    def __init__(self, server: Any) -> None:
        self.server = server

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
