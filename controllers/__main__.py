"""Run the job controllers as a program: they always watch, and write only while this process holds the Lease."""

from __future__ import annotations

import logging
import os
import random
import socket
import sys
import uuid
from collections.abc import Sequence

from turnout.controllers.kinds.registry import by_api
from turnout.controllers.model import JobKey
from turnout.controllers.runtime.controller import JobController, Metrics
from turnout.controllers.runtime.owned_objects import ChildCache
from turnout.controllers.runtime.scale_plans import ScalePlans
from turnout.controllers.runtime.watches import ControllerInformers
from turnout.controllers.runtime.work_queue import WorkQueue
from turnout.controllers.runtime.writer import ChildWriter
from turnout.controllers.settings import Settings, read_settings
from turnout.kube.backoff import Backoff
from turnout.kube.cli_flags import parse_address
from turnout.kube.client import logs
from turnout.kube.client.api_client import Client
from turnout.kube.client.clock import RealClock, SteadyTime
from turnout.kube.client.events import EventRecorder
from turnout.kube.client.lease import Elector, lease_settings
from turnout.kube.client.leased_calls import LeasedCalls
from turnout.kube.client.run_until_signal import lead, run_program, run_together, run_until_signal
from turnout.kube.server.probes import probe_pages, serve_pages

log = logging.getLogger("turnout.controllers")

MAX_IN_FLIGHT = 16  # calls: as many as one core sends at 16 ms each; the TLS of each connection holds 256 KiB


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Return 0 then, and 1 if the program cannot start or ends by an internal error.

    argv: None for the process's own arguments. A bad command line ends the program with code 2.
    """
    settings = read_settings(argv)
    logs.setup(settings.log_level)
    return run_program("turnout-controller", lambda: serve(settings))


async def serve(settings: Settings) -> None:
    """Watch always, and write while leading, until a signal to end.

    Raises the errors of `Client.open`, and OSError if the metrics address is in use.
    """
    clock, rng = RealClock(), random.Random()
    kinds, gang_settings = by_api(settings.kinds, settings.master_image), settings.gang_settings()
    open_ = Client.open(settings.kubeconfig, settings.context, max_in_flight=MAX_IN_FLIGHT, qps=settings.qps or None)
    async with await open_ as client:
        backoff = Backoff(first_s=0.05, max_s=60.0)
        queue, leading = WorkQueue(clock, backoff, rng.random), list[bool]()

        def changed(key: JobKey) -> None:
            if leading:  # else all are looked at when the term begins
                queue.add(key)

        cache = ChildCache(changed, kinds)
        informers = ControllerInformers(cache, client, kinds, gang_settings, clock, rng, settings.namespace)
        elector, host = _elector(client, settings, clock, rng), socket.gethostname()
        events = EventRecorder(client, "turnout-controller", host, clock=clock, docs=settings.docs_base_url)
        metrics = Metrics(queue.__len__, settings.kinds, lambda: cache.count_by_phase() if leading else None)
        metrics.show_client(lambda: client.requests.counts, informers.reflectors.items, clock)
        calls = LeasedCalls(client, lambda: elector.is_leading)
        plans = ScalePlans(calls, WorkQueue(clock, backoff, rng.random, one_per_namespace=True), clock, events, metrics)
        if has_scale_plans := "ElasticJob" in settings.kinds:
            informers.watch_plans(plans)
        writer = ChildWriter(calls, cache, kinds, gang_settings)
        time = SteadyTime(clock, client.requests.server_clock.ahead_s)
        controller = JobController(cache, queue, writer, kinds, gang_settings, clock, events, metrics, time)

        async def term() -> None:
            """Run the controller and report that this process leads."""
            leading.append(True)
            metrics.leading.set(1)
            try:
                await run_together(controller.run, *([plans.run] if has_scale_plans else []))
            finally:
                leading.clear()
                metrics.leading.set(0)

        address = parse_address(settings.metrics_bind, "--metrics-bind")
        async with serve_pages(*address, probe_pages(informers.unready_reason, metrics.page)) as port:
            log.info("serving", extra={"metrics_port": port, "kinds": ",".join(settings.kinds)})
            await run_until_signal(informers.run(), lead(elector, informers.wait_for_sync, term), events.run())


def _elector(client: Client, settings: Settings, clock: RealClock, rng: random.Random) -> Elector:
    """Return the elector of our Lease, with an identity that no other process has."""
    namespace, _, name = settings.lease.partition("/")
    identity = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    terms = lease_settings(settings.lease_seconds)
    return Elector(client, namespace, name, identity, clock=clock, rng=rng, settings=terms)


if __name__ == "__main__":
    sys.exit(main())
