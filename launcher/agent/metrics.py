"""Serves an agent's metrics on the port of --metrics-port. They count the same words as its log.

Every agent reports about itself. Only the coordinator reports about the whole job: rounds, restarts, members.
"""

from __future__ import annotations

import errno
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, make_wsgi_app

from turnout.launcher.model import Reason

MAX_CALLERS = 16  # concurrent connections: a few Prometheus servers and some people
CALLER_S = 5.0  # seconds for a caller to send its request and read the answer
LOSSES = (Reason.MEMBER_LOST, Reason.MEMBER_SILENT)  # of a connection, seen from either end
ROUND_CAUSES = (  # what ends a world, so that another one forms
    Reason.FIRST_ROUND,
    Reason.PROCESS_FAILED,
    Reason.PROCESS_HUNG,
    *LOSSES,
    Reason.MEMBER_LEFT,
    Reason.MEMBER_JOINED,
    Reason.COORDINATOR_LOST,
)
_FULL_S = 0.2  # pause after running out of file descriptors
_WAITED_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)


class Metrics:
    """Counts the events of one agent. run: the job's id, a label of every metric, so that jobs with equal pod names
    differ.
    """

    def __init__(self, run: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = registry = CollectorRegistry()
        self._run = run

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"turnout_launcher_{name}", text, ["run", *labels], registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"turnout_launcher_{name}", text, ["run", *labels], registry=registry)

        self._coordinates = gauge("is_coordinator", "1 on the agent that decides the rounds.")
        self._round = gauge("round", "Number of the round that this agent trains in, or trained in last.")
        self._group_rank = gauge("group_rank", "This agent's place in that round's world.")
        self._members = gauge("members", "Workers in the world. Reported by the coordinator only.")
        self._ranks = gauge("ranks", "Training processes in the world. Reported by the coordinator only.")
        self._crossings = gauge("ring_crossings", "Edges of the ring of workers that leave a leaf switch.")
        self._excess = gauge("ring_crossings_excess", "Edges of that ring beyond the fewest that any order has.")
        self._restarts = gauge("restarts", "Restarts charged to the job so far. Reported by the coordinator only.")
        self._rounds = counter("rounds", "Worlds formed, by what ended the one before.", "reason")
        self._lost = counter("members_lost", "Members whose connection closed or that fell silent.", "reason")
        self._failed = counter("process_failures", "Training processes of this agent that ended with an error.")
        self._spawned = counter("spawned_rounds", "Rounds in which this agent could not fork its processes.")
        self._left = counter("coordinators_lost", "Coordinators that this agent has lost.", "reason")
        self._hangs = gauge("rank_hung", "1 for a training process that has stopped making progress.", "rank")
        suspect_text = "1 for a rank that others wait for in a hang. Reported by the coordinator only."
        self._suspects = gauge("rank_suspected", suspect_text, "rank")
        self._waited_s = Histogram(
            "turnout_launcher_round_wait_seconds",
            "Seconds from the end of a round, or for the first round from the coordinator's start, to the next world.",
            ["run"],
            buckets=_WAITED_S,
            registry=registry,
        )
        self._handlers = self._make_handlers(run)
        self._coordinates.labels(run).set(0)
        for counter_of_agent in (self._failed, self._spawned):
            counter_of_agent.labels(run)
        for reason in LOSSES:
            self._left.labels(run, reason.value)

    def _make_handlers(self, run: str) -> dict[str, Callable[[Mapping[str, Any]], None]]:
        """Return event name -> function that updates the metrics from the event's fields. run: label of the job."""
        return {
            "world_formed": self._on_world_formed,
            "processes_started": self._on_processes_started,
            "member_lost": lambda fields: self._lost.labels(run, fields["reason"]).inc(),
            "process_failed": lambda fields: self._failed.labels(run).inc(),
            "process_hung": lambda fields: self._hangs.labels(run, fields["rank"]).set(1),
            "process_moved": lambda fields: self._hangs.labels(run, fields["rank"]).set(0),
            "stacks_gathered": self._on_stacks_gathered,
            "hang_over": lambda fields: self._suspects.clear(),
            "processes_spawned": lambda fields: self._spawned.labels(run).inc(),
            "coordinator_lost": lambda fields: self._left.labels(run, fields["reason"]).inc(),
            "coordinator_begun": lambda fields: self._begin(),
            "stepped_down": lambda fields: self._coordinates.labels(run).set(0),
            "handed_over": lambda fields: self._coordinates.labels(run).set(0),
        }

    def count_event(self, event: str, fields: Mapping[str, object]) -> None:
        """Update the metrics that belong to an event of the log; events without metrics are ignored. fields: of the
        event.
        """
        if (handle := self._handlers.get(event)) is not None:
            handle(fields)

    def _begin(self) -> None:
        """Mark this agent as coordinator, and create every counter of the job with value 0.

        `increase` of Prometheus cannot see the first event of a series that begins with it.
        """
        self._coordinates.labels(self._run).set(1)
        for reason in ROUND_CAUSES:
            self._rounds.labels(self._run, reason.value)
        for reason in LOSSES:
            self._lost.labels(self._run, reason.value)

    def _on_stacks_gathered(self, fields: Mapping[str, Any]) -> None:
        """Mark the ranks whose stacks differ from most others as suspects of a hang.

        fields: of the event stacks_gathered; `apart`, the list of those ranks, is read.
        """
        for rank in fields["apart"]:
            self._suspects.labels(self._run, rank).set(1)

    def _on_world_formed(self, fields: Mapping[str, Any]) -> None:
        """Update the metrics of a world that has formed. fields: of the event world_formed."""
        run = self._run
        self._suspects.clear()  # the ranks belong to new processes now
        self._members.labels(run).set(fields["members"])
        self._ranks.labels(run).set(fields["ranks"])
        self._crossings.labels(run).set(fields["crossings"])
        self._excess.labels(run).set(fields["excess"])
        self._restarts.labels(run).set(fields["restarts"])
        self._rounds.labels(run, fields["reason"]).inc()
        self._waited_s.labels(run).observe(fields["waited_s"])

    def _on_processes_started(self, fields: Mapping[str, Any]) -> None:
        """Set the metrics of the round in which this worker's processes were started, and remove the hangs of the round
        before.

        fields: of the event processes_started; `round` and `group_rank` are read.
        """
        self._hangs.clear()  # the ranks that this agent had in the last round
        self._round.labels(self._run).set(fields["round"])
        self._group_rank.labels(self._run).set(fields["group_rank"])

    def serve(self, address: str, port: int, caller_s: float = CALLER_S) -> MetricsServer:
        """Start an HTTP server for the metrics in a daemon thread, and return it; it runs until it is closed.

        address, port: where it listens. caller_s: seconds that one caller may take. Raises OSError if it cannot listen.
        """
        server = MetricsServer((address, port), caller_s)
        server.set_app(make_wsgi_app(self.registry))
        threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        return server


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves the metrics page over HTTP. It refuses callers above MAX_CALLERS, and drops callers that stay silent."""

    daemon_threads = True

    def __init__(self, at: tuple[str, int], caller_s: float) -> None:
        self._caller_s = caller_s
        self.address_family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
        self._callers = threading.BoundedSemaphore(MAX_CALLERS)
        super().__init__(at, _Quiet)

    def server_bind(self) -> None:
        """Bind the socket without asking a name server for the host's name. Called by socketserver."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; wait _FULL_S if no more files can be opened. Called by socketserver."""
        try:
            request, address = super().get_request()
            request.settimeout(self._caller_s)
            return request, address
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                time.sleep(_FULL_S)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return True if there is a place for this caller. Called by socketserver."""
        return self._callers.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own; release the caller's place if none can be started. Called by socketserver."""
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._callers.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a request, then release the caller's place. Called by socketserver."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._callers.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a caller that left or was silent. Called by socketserver."""

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop serving; the thread that serves ends too."""
        self.shutdown()
        self.server_close()


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Write no line for a request."""
