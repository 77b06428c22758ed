"""Run the autoscaler as a program: it watches always, and decides and writes while it holds its Lease."""

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
from functools import partial
from pathlib import Path

from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.controller import AutoscalerController
from turnout.autoscaler.controller.decision_log_writer import DecisionLogWriter
from turnout.autoscaler.controller.event_recorder import DecisionEvents, NodeEvents, Refs
from turnout.autoscaler.controller.gang_min_writer import GangMinWriter
from turnout.autoscaler.controller.informers import AutoscalerInformers
from turnout.autoscaler.controller.memory_writer import MemoryWriter
from turnout.autoscaler.controller.metrics import Metrics
from turnout.autoscaler.controller.scale_writer import ScaleWriter
from turnout.autoscaler.controller.status_writer import StatusWriter
from turnout.autoscaler.controller.taint_writer import TaintWriter
from turnout.autoscaler.node_faults.cache import FaultReportCache
from turnout.autoscaler.reporting.queue_status import AnnotatedJobs, PodAnnotations, queue_configmaps
from turnout.autoscaler.settings import Settings, read_settings
from turnout.jobs.kinds.registry import KINDS
from turnout.kube.cli_flags import parse_address
from turnout.kube.client import logs
from turnout.kube.client.api_client import Client
from turnout.kube.client.clock import RealClock, SteadyTime
from turnout.kube.client.events import EventRecorder
from turnout.kube.client.lease import Elector, lease_settings
from turnout.kube.client.leased_calls import LeasedCalls
from turnout.kube.client.run_until_signal import lead, run_program, run_together, run_until_signal
from turnout.kube.server.probes import probe_pages, serve_pages

log = logging.getLogger("turnout.autoscaler")


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT. Return 0 then, and 1 if the program cannot start or ends by a fault of its own.

    argv: None for the process's own arguments. A bad command line ends the program with code 2.
    """
    settings = read_settings(argv)
    logs.setup(settings.log_level)
    return run_program("turnout-autoscaler", lambda: serve(settings))


async def serve(settings: Settings) -> None:
    """Watch always, and act while leading, until a signal to end.

    Raises the errors of `Client.open`, and OSError if the metrics page cannot listen at its address.
    """
    clock = RealClock()
    async with await Client.open(settings.kubeconfig, settings.context) as client:
        cache, news = Cache(KINDS, settings.gpu_resource, settings.schedulers), asyncio.Event()
        fault_reports = _fault_reports(settings, news)
        watched, hold_large = settings.configmaps(), settings.confirm_large_changes
        informers = AutoscalerInformers(
            cache, client, KINDS, clock, random.Random(), watched, fault_reports, hold_large
        )
        elector, recorder = _elector(client, settings, clock), _recorder(client, settings, clock)
        metrics, refs = Metrics(settings.gpu_resource, restart_s=settings.restart_s), Refs(cache)
        metrics.show_client(lambda: client.requests.counts, informers.reflectors.items, clock)
        events = DecisionEvents(recorder, refs.job, refs.leaving, metrics)

        def time() -> SteadyTime:
            """Return a new wall clock that shows jumps."""
            return SteadyTime(clock, client.requests.server_clock.ahead_s)

        calls, namespace = LeasedCalls(client, lambda: elector.is_leading), settings.namespace()
        gang_mins = GangMinWriter(calls, cache.group_uses, events.report_gang_min)
        scale_writer = _scale_writer(calls, elector, events, cache, gang_mins, dry_run=not settings.act)
        with open_decision_log(settings.decision_log) as decision_log:
            _show_cluster(metrics, cache, decision_log, settings)
            follow_ups = []
            if fault_reports is not None:
                rules, dry_run = settings.rules(), not settings.act
                reporter = NodeEvents(recorder, rules, metrics)
                taints = TaintWriter(calls, fault_reports, rules, reporter, clock, news, dry_run=dry_run, time=time())
                follow_ups.append(taints.run)
            memory, policy = MemoryWriter(calls, namespace, clock), settings.policy()
            controller = AutoscalerController(
                cache, informers, scale_writer, policy, clock, events, metrics, decision_log, time(), memory, gang_mins
            )
            address = parse_address(settings.metrics_bind, "--metrics-bind")
            status = _status_writer(calls, elector, clock, ReportSource(controller, refs, settings), namespace)
            async with serve_pages(*address, probe_pages(informers.unready_reason, metrics.page)) as port:
                log.info("serving", extra={"metrics_port": port})
                synced = partial(wait_until_synced, informers)
                leading = lead(elector, synced, partial(run_together, controller.run, *follow_ups))
                await run_until_signal(informers.run(), leading, recorder.run(), status.run())


def _elector(client: Client, settings: Settings, clock: RealClock) -> Elector:
    """Return the elector of our Lease, with an identity that no other process has."""
    namespace, _, name = settings.lease.partition("/")
    identity = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    terms = lease_settings(settings.lease_seconds)
    return Elector(client, namespace, name, identity, clock=clock, rng=random.Random(), settings=terms)


def _fault_reports(settings: Settings, news: asyncio.Event) -> FaultReportCache | None:
    """Return the cache of reports on nodes; None if nodes are not tainted. news: set when there may be a decision."""
    if not settings.taint_nodes:
        return None
    return FaultReportCache(settings.taint_key, settings.gpu_resource, news.set)


def _scale_writer(
    calls: LeasedCalls,
    elector: Elector,
    events: DecisionEvents,
    cache: Cache,
    gang_mins: GangMinWriter,
    *,
    dry_run: bool,
) -> ScaleWriter:
    """Return the writer of decisions, which writes as the leader that `elector` elects.

    cache: learns which annotations were written. gang_mins: lowers minCounts before a shrink. dry_run: report only.
    """

    def leader_term() -> int | None:
        """Return the number of our term; None if another replica leads."""
        return elector.transitions if elector.is_leading else None

    return ScaleWriter(
        calls,
        KINDS,
        leader_term,
        events.report_outcome,
        dry_run=dry_run,
        confirm_lease=elector.confirm,
        on_written=cache.reader.store_written_annotations,
        before_shrink=gang_mins.lower,
    )


def _status_writer(
    calls: LeasedCalls, elector: Elector, clock: RealClock, reports: ReportSource, namespace: str
) -> StatusWriter:
    """Return the writer of queue statuses and pod annotations. namespace: of the ConfigMaps.

    reports: what is to be written. elector: only the leader writes.
    """
    return StatusWriter(
        calls,
        namespace,
        clock,
        configmap_data=reports.configmap_data,
        missing_annotations=reports.missing_annotations,
        leads=lambda: elector.is_leading,
    )


def _recorder(client: Client, settings: Settings, clock: RealClock) -> EventRecorder:
    """Return the recorder of the autoscaler's Events."""
    host, site = socket.gethostname(), settings.docs_base_url
    return EventRecorder(client, "turnout-autoscaler", host, clock=clock, docs=site)


class ReportSource:
    """Queue statuses and pod annotations of the last decision. An autoscaler that only observes annotates no pods."""

    def __init__(self, controller: AutoscalerController, refs: Refs, settings: Settings) -> None:
        self._controller, self._refs, self._settings, self._marked = controller, refs, settings, AnnotatedJobs()

    def configmap_data(self) -> dict[str, dict[str, str]]:
        """Return the data of each queue's ConfigMap, by queue; empty before the first decision."""
        controller, settings = self._controller, self._settings
        if controller.observation is None:
            return {}
        return queue_configmaps(
            controller.observation, controller.steps, settings.gpu_resource, dry_run=not settings.act
        )

    def missing_annotations(self) -> Iterable[PodAnnotations]:
        """Return the annotations that pods lack; () in a dry run, before the first decision, or if pods are not
        annotated.
        """
        if self._controller.observation is None or not (self._settings.act and self._settings.mark_pods):
            return ()
        return self._marked.missing_annotations(self._controller.observation.jobs, self._refs.annotations)


def _show_cluster(metrics: Metrics, cache: Cache, decision_log: DecisionLogWriter | None, settings: Settings) -> None:
    """Give the metrics their sources: GPUs of nodes, entries that the decision log lost, owner labels and headroom.

    decision_log: the decision log, None for none.
    """
    gpus_by_state = partial(cache.nodes.gpus_by_state, settings.gpu_resource, settings.taint_key)
    metrics.show_cluster(
        gpus_by_state,
        lambda: 0 if decision_log is None else decision_log.left_out,
        lambda: ((key, cache.usage.queue_of(pod)) for key, pod in cache.unmanaged.scraped_jobs()),
    )
    metrics.usage.set_sources(
        lambda: gpus_by_state()["free"], partial(cache.jobs.label_of, settings.owner_label), settings.policy().headroom
    )


def open_decision_log(path: str | None) -> AbstractContextManager[DecisionLogWriter | None]:
    """Return a context that yields the writer of the decision log at a path; it yields None if `path` is None."""
    return nullcontext() if path is None else DecisionLogWriter(Path(path))


async def wait_until_synced(informers: AutoscalerInformers) -> None:
    """Wait until all watches have delivered their first lists, then exclude these objects from garbage collection.

    Also makes later collections rarer, for the whole process.
    """
    await informers.wait_for_sync()
    freeze_objects()


def freeze_objects() -> None:
    """Exclude all present objects from garbage collection, and collect less often.

    Each observation creates many objects that are freed by reference counting.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


if __name__ == "__main__":
    sys.exit(main())
