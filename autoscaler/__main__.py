"""The autoscaler as a program: watches always, decides and acts while it holds its Lease."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import socket
import sys
import uuid
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.controller import AutoscalerController
from turnout.autoscaler.controller.decision_log_writer import DecisionLogWriter
from turnout.autoscaler.controller.event_recorder import DecisionEvents, NodeEvents, Refs
from turnout.autoscaler.controller.informers import AutoscalerInformers
from turnout.autoscaler.controller.memory_writer import MemoryWriter
from turnout.autoscaler.controller.metrics import Metrics
from turnout.autoscaler.controller.scale_writer import ScaleWriter
from turnout.autoscaler.controller.status_writer import StatusWriter
from turnout.autoscaler.controller.taint_writer import TaintWriter
from turnout.autoscaler.node_faults.cache import FaultReportCache
from turnout.autoscaler.reporting.pod_annotations import Mark, Marked
from turnout.autoscaler.reporting.queue_status import pages as queue_pages
from turnout.autoscaler.settings import Settings, settings
from turnout.jobs.kinds.registry import KINDS
from turnout.kube.cli_flags import parse_address
from turnout.kube.client import logs
from turnout.kube.client.api_client import Client
from turnout.kube.client.clock import RealClock, SteadyTime
from turnout.kube.client.events import EventRecorder
from turnout.kube.client.lease import Elector, lease_settings
from turnout.kube.client.run_until_signal import lead, run_program, run_together, run_until_signal
from turnout.kube.server.probes import probe_pages, serve_pages

log = logging.getLogger("turnout.autoscaler")


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; return 0 then, 1 when it cannot start, or ends by a fault of ours."""
    wanted = settings(argv)
    logs.setup(wanted.log_level)
    return run_program("turnout-autoscaler", lambda: serve(wanted))


async def serve(wanted: Settings) -> None:
    """Watch always, act while leading, until the process is told to end."""
    clock = RealClock()
    async with await Client.open(wanted.kubeconfig, wanted.context) as client:
        view = Cache(KINDS, wanted.gpu_resource, wanted.schedulers)
        news = asyncio.Event()
        of_faults = wanted.taint_key, wanted.gpu_resource, news.set
        fault_reports = FaultReportCache(*of_faults) if wanted.taint_nodes else None
        watched, hold_large = (wanted.configmap, wanted.orders), wanted.confirm_large_changes
        informers = AutoscalerInformers(view, client, KINDS, clock, random.Random(), watched, fault_reports, hold_large)
        namespace, _, name = wanted.lease.partition("/")
        identity = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        terms, site = lease_settings(wanted.lease_seconds), wanted.docs_base_url
        elector = Elector(client, namespace, name, identity, clock=clock, rng=random.Random(), settings=terms)
        recorder = EventRecorder(client, "turnout-autoscaler", socket.gethostname(), clock=clock, docs=site)
        metrics, refs = Metrics(wanted.gpu_resource, restart_s=wanted.restart_s), Refs(view)
        events = DecisionEvents(recorder, refs.job, refs.leaving, metrics)

        def time() -> SteadyTime:
            return SteadyTime(clock, client.server_ahead_s)

        def term() -> int | None:
            return elector.transitions if elector.is_leading else None

        scale_writer = ScaleWriter(client, KINDS, term, events.became, not wanted.act, elector.confirm, view.wrote)
        with journal_at(wanted.decision_log) as journal:
            works = []
            if fault_reports is not None:
                tells, rules = NodeEvents(recorder, wanted.rules(), metrics), wanted.rules()
                told = tells, clock, news, not wanted.act, time()
                works.append(TaintWriter(client, fault_reports, rules, lambda: elector.is_leading, *told).run)
            acts = scale_writer, wanted.policy(), clock, events, metrics, journal, time()
            controller = AutoscalerController(view, informers, *acts, MemoryWriter(client, namespace, clock))
            words = Words(controller, refs, wanted)
            status = StatusWriter(client, namespace, clock, words.pages, words.marks, lambda: elector.is_leading)
            at = parse_address(wanted.metrics_bind, "--metrics-bind")
            async with serve_pages(*at, probe_pages(informers.unready_reason, metrics.page)) as port:
                log.info("serving", extra={"metrics_port": port})
                leading = lead(elector, lambda: settled(informers), lambda: run_together(controller.run, *works))
                await run_until_signal(informers.run(), leading, recorder.run(), status.run())


class Words:
    """The words written beside sizes, made of the last look. Pods are marked only by an autoscaler that acts."""

    def __init__(self, controller: AutoscalerController, refs: Refs, wanted: Settings) -> None:
        self._controller, self._refs, self._wanted, self._marked = controller, refs, wanted, Marked()

    def pages(self) -> dict[str, dict[str, str]]:
        """Each queue's status, by queue."""
        controller, wanted = self._controller, self._wanted
        if controller.seen is None:
            return {}
        return queue_pages(controller.seen, controller.steps, wanted.gpu_resource, dry_run=not wanted.act)

    def marks(self) -> Iterable[Mark]:
        """Give the annotations that pods lack."""
        if self._controller.seen is None or not (self._wanted.act and self._wanted.mark_pods):
            return ()
        return self._marked.missing(self._controller.seen.jobs, self._refs.notes)


def journal_at(path: str | None) -> AbstractContextManager[DecisionLogWriter | None]:
    """The decision log, if one is wanted."""
    return nullcontext() if path is None else DecisionLogWriter(Path(path))


async def settled(informers: AutoscalerInformers) -> None:
    """Wait until everything is seen."""
    await informers.wait_for_sync()
    settle()


def settle() -> None:
    """Tell the garbage collector that all objects of now stay.

    It need not walk them again then. Its thresholds are raised, since a look makes many objects that soon end by
    themselves.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


if __name__ == "__main__":
    sys.exit(main())
