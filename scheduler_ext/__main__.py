"""Run the extender as a program: watches, verbs and the two ports, started and ended together."""

from __future__ import annotations

import gc
import logging
import os
import random
import socket
import sys
from collections.abc import Sequence

from turnout.kube.cli_flags import parse_address
from turnout.kube.client import logs
from turnout.kube.client.api_client import Client
from turnout.kube.client.clock import Clock, RealClock
from turnout.kube.client.events import EventRecorder
from turnout.kube.client.run_until_signal import CANNOT_START, run_program, run_until_signal
from turnout.scheduler_ext.model import BadCertificate
from turnout.scheduler_ext.planner.plans import plans_by
from turnout.scheduler_ext.server.events import DecisionEvents
from turnout.scheduler_ext.server.extender import Extender
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.ports import Listen, Listeners, TlsFiles
from turnout.scheduler_ext.server.watches import Watches
from turnout.scheduler_ext.settings import Settings, extender_settings

log = logging.getLogger("turnout.extender")

LEAVE_S = 2.0  # between "not ready" and the end, so that a Service stops sending


def main(argv: Sequence[str] | None = None) -> int:
    """Run the extender until SIGTERM or SIGINT. Returns 0 then, and 1 if the program cannot start or fails.

    argv: None for the process's own arguments. A bad command line ends the program with code 2.
    """
    settings = extender_settings(argv)
    logs.setup(settings.log_level)
    return run_program("turnout-extender", lambda: serve(settings), (*CANNOT_START, BadCertificate))


async def serve(settings: Settings, metrics: Metrics | None = None) -> None:
    """Serve until the process receives a signal to end. metrics: None for new ones.

    Raises the errors of `Client.open`, OSError if a port cannot be opened, and BadCertificate.
    """
    clock, metrics = RealClock(), metrics or Metrics()
    async with await Client.open(settings.kubeconfig, settings.context) as client:
        events = EventRecorder(client, "turnout-extender", _instance(), clock=clock, docs=settings.docs_base_url)
        decision_events = DecisionEvents(events, settings.configmap, clock)
        rules = settings.rules()
        watches = Watches(
            plans_by(rules),
            client,
            settings.configmap,
            clock,
            random.Random(),
            metrics,
            decision_events.notify,
            settings.confirm_large_changes,
            settings.read_queues,
            settings.reservations,
        )
        extender = Extender(rules, clock, metrics, decision_events.notify, watches)
        metrics.show_client(lambda: client.requests.counts, watches.reflectors.items, clock)
        async with Listeners(extender, metrics, _listen(settings)) as listeners:
            log.info("listening", extra={"port": listeners.port, "health_port": listeners.health_port})
            if settings.port_file is not None:
                _write(settings, listeners.port)
            await run_all_parts(watches, extender, events, decision_events, listeners, clock)


async def run_all_parts(
    watches: Watches,
    extender: Extender,
    events: EventRecorder,
    decision_events: DecisionEvents,
    listeners: Listeners,
    clock: Clock,
) -> None:
    """Run every part until SIGTERM or SIGINT, then report "not ready" and answer for LEAVE_S more.

    Raises the error of the first part that fails.
    """

    async def leave() -> None:
        listeners.leave()
        await clock.sleep(LEAVE_S)

    may_end = (listeners.follow(clock), _freeze_after_sync(watches))
    work = (watches.run(), extender.run(), events.run(), decision_events.run())
    await run_until_signal(*work, may_end=may_end, leave=leave)


async def _freeze_after_sync(watches: Watches) -> None:
    """Wait for the first lists, then exclude all present objects from garbage collection.

    Scanning them would slow requests down.
    """
    await watches.wait_for_sync()
    log.info("synced")
    gc.collect()
    gc.freeze()


def _listen(settings: Settings) -> Listen:
    """Return the addresses and TLS files of both listeners. Raises BadSetting for an invalid address."""
    host, port = parse_address(settings.bind, "--bind")
    health_host, health_port = parse_address(settings.metrics_bind, "--metrics-bind")
    tls = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        tls = TlsFiles(settings.tls_cert, settings.tls_key, settings.client_ca)
    return Listen(host, port, health_host, health_port, tls)


def _write(settings: Settings, port: int) -> None:
    """Write the port and a line feed to the port file, whole or not at all.

    Does nothing without a port file. Raises OSError if the file, or its neighbour with the ending `.part`, cannot be
    written.
    """
    if settings.port_file is not None:
        part = settings.port_file.with_suffix(".part")
        part.write_text(f"{port}\n")
        part.rename(settings.port_file)


def _instance() -> str:
    """Return the name of this process's pod, else of its host."""
    return os.environ.get("POD_NAME") or socket.gethostname()


if __name__ == "__main__":
    sys.exit(main())
