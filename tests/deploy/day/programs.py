"""The programs of the day: their shipped parts on the API server in memory, by a clock that the day moves.

Not run are the Lease, the recorder of Events and the server of probes. A term begins and ends where the day says so.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress

from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.controller import AutoscalerController
from turnout.autoscaler.controller.event_recorder import DecisionEvents, NodeEvents, Refs
from turnout.autoscaler.controller.informers import AutoscalerInformers
from turnout.autoscaler.controller.metrics import Metrics as AutoscalerMetrics
from turnout.autoscaler.controller.scale_writer import ScaleWriter
from turnout.autoscaler.controller.taint_writer import TaintWriter
from turnout.autoscaler.node_faults.cache import FaultReportCache
from turnout.autoscaler.node_faults.model import TaintRules
from turnout.autoscaler.settings import Settings as AutoscalerSettings
from turnout.autoscaler.settings import WatchedConfigMaps
from turnout.cli.page.metrics import PageMetrics
from turnout.cli.page.source import PageSource
from turnout.controllers.kinds.registry import by_api
from turnout.controllers.model import GangSettings
from turnout.controllers.runtime.controller import JobController
from turnout.controllers.runtime.controller import Metrics as ControllerMetrics
from turnout.controllers.runtime.owned_objects import ChildCache
from turnout.controllers.runtime.watches import ControllerInformers
from turnout.controllers.runtime.work_queue import WorkQueue
from turnout.controllers.runtime.writer import ChildWriter
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.reservation import CONFIGMAP
from turnout.kube import labels
from turnout.kube.backoff import Backoff
from turnout.kube.client.clock import SteadyTime
from turnout.kube.client.leased_calls import LeasedCalls
from turnout.kube.server.http_connection import ConnectionLimits
from turnout.kube.server.sockets import bind
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.nominator import NominatorSettings
from turnout.scheduler_ext.planner.plans import plans_by
from turnout.scheduler_ext.server.extender import Extender
from turnout.scheduler_ext.server.http import VerbHandler
from turnout.scheduler_ext.server.metrics import Metrics as ExtenderMetrics
from turnout.scheduler_ext.server.metrics import NominatorMetrics
from turnout.scheduler_ext.server.ports import Certificates
from turnout.scheduler_ext.server.watches import Watches
from turnout.scheduler_ext.writers.eviction_writer import Evictor, Repairer
from turnout.scheduler_ext.writers.gate_writer import GateWriter
from turnout.scheduler_ext.writers.nomination_writer import NominationWriter
from turnout.scheduler_ext.writers.reservation_writer import ReservationWriter
from turnout.scheduler_ext.writers.switch_path_writer import SwitchPathWriter

MAP = "turnout-system/node-topology-config"
GPUS = ("nvidia.com/gpu",)


class Quiet:
    """A recorder of Events that drops them."""

    def emit(self, *_):
        """Drop an Event."""


class Program:
    """A process of the day. Its tasks end with it."""

    def __init__(self, server, name):
        self.server, self.clock, self.client = server, server.clock, server.client(name)
        self.leads = False
        self._tasks = []

    def set_term(self, leads):
        """Begin or end a term, as the program does when it gets or loses its Lease."""
        self.leads = leads
        self.leading.set(int(leads))

    def start(self, *works):
        """Run coroutines until the program ends."""
        self._tasks += [asyncio.create_task(work) for work in works]

    async def end(self):
        """End the process."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    def check(self):
        """Raise the error of a task that has failed."""
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()

    def has_synced(self):
        """True once the watches have shown their lists."""
        return self.watches.missing() is None

    async def minute(self):
        """Do what the program does once a minute of the day."""


class ExtenderProgram(Program):
    """The extender. slow_s: how long its CPU is taken away in each request."""

    def __init__(self, server, tls, name="extender"):
        super().__init__(server, name)
        self.metrics, rules, self.slow_s = ExtenderMetrics(), Rules(), 0.0
        self.watches = _watches(self, rules)
        self.extender = Extender(rules, self.clock, self.metrics, lambda notice: None, self.watches)
        self.metrics.show_client(lambda: self.client.requests.counts, self.watches.reflectors.items, self.clock)
        self.start(self.watches.run())
        self._owed_s, self.port = 0.0, 0
        self._certificates = Certificates(tls, self.metrics)

    def _cpu_clock(self):
        self._owed_s += self.slow_s
        return time.perf_counter() + self._owed_s

    async def listen(self):
        """Serve the verbs on a free port of the loopback interface."""
        self._socket = bind("127.0.0.1", 0)
        self.port = self._socket.getsockname()[1]
        self._http = VerbHandler(self.extender, self.metrics, ConnectionLimits(), self._cpu_clock).server()
        await self._http.listen(self._socket)

    async def end(self):
        """Close the port and end."""
        await self._http.close()
        self._socket.close()
        await super().end()

    async def minute(self):
        """Plan ahead, clean up, and look at the certificate."""
        self.extender.clean_up()
        self._certificates.refresh(self.clock.wall())

    def page(self):
        """Return the metrics page."""
        return self.metrics.page()


class NominatorProgram(Program):
    """The nominator with all of its writers."""

    def __init__(self, server, name="nominator"):
        super().__init__(server, name)
        settings = NominatorSettings(gates=True, preempt=False, repair=True, annotate_switch_path=True)
        choices, self.metrics = settings.choices(), ExtenderMetrics("nominator")
        series = NominatorMetrics(self.metrics.registry)
        self.leading = series.leading
        self.watches = watches = _watches(self, choices.rules)
        self.extender = Extender(choices.rules, self.clock, self.metrics, lambda notice: None, watches)
        self.metrics.show_client(lambda: self.client.requests.counts, watches.reflectors.items, self.clock)
        calls, clock = LeasedCalls(self.client, lambda: self.leads), self.clock
        tools = watches, calls, clock, series, lambda notice: None
        reservations = ReservationWriter(*tools, CONFIGMAP)
        evictor = Evictor(*tools, reservations)
        self._writers = [
            NominationWriter(watches, calls, choices, clock, series),
            reservations,
            GateWriter(watches, calls, choices, clock, series, lambda notice: None, evictor),
            Repairer(*tools, reservations),
            SwitchPathWriter(watches, calls, clock, series),
        ]
        self.start(watches.run())

    def lead(self):
        """Begin the first term."""
        self.set_term(leads=True)
        self.start(*(writer.run() for writer in self._writers))

    async def minute(self):
        """Plan ahead and clean up."""
        self.extender.clean_up()

    def page(self):
        """Return the metrics page."""
        return self.metrics.page()


def _watches(program, rules):
    return Watches(
        plans_by(rules),
        program.client,
        MAP,
        program.clock,
        random.Random(1),
        program.metrics,
        lambda notice: None,
        reservations=CONFIGMAP,
    )


class AutoscalerProgram(Program):
    """The autoscaler. It looks once a minute, and taints nodes that pods have proven faulty."""

    def __init__(self, server, journal=None, name="autoscaler"):
        super().__init__(server, name)
        settings = AutoscalerSettings(cooldown_s=60.0, restart_s=5.0)
        self.view, clock, news = Cache(KINDS, GPUS), self.clock, asyncio.Event()
        rules = TaintRules(min_namespaces=1, share=0.3)
        reports = FaultReportCache(rules.key, GPUS, news.set)
        watched = WatchedConfigMaps(MAP, settings.orders, CONFIGMAP)
        self.informers = AutoscalerInformers(self.view, self.client, KINDS, clock, random.Random(1), watched, reports)
        self.metrics = AutoscalerMetrics(GPUS, clock, settings.restart_s)
        self.leading = self.metrics.leading
        self.metrics.show_client(lambda: self.client.requests.counts, self.informers.reflectors.items, clock)
        events = DecisionEvents(Quiet(), Refs(self.view).job, Refs(self.view).leaving, self.metrics)
        calls = LeasedCalls(self.client, lambda: self.leads)
        writer = ScaleWriter(
            calls, KINDS, self._term, events.report_outcome, False, None, self.view.reader.store_written_annotations
        )
        acts = writer, settings.policy(), clock, events, self.metrics, journal
        self.controller = AutoscalerController(self.view, self.informers, *acts)
        self.metrics.show_cluster(self._gpus, lambda: 0 if journal is None else journal.left_out)
        self.metrics.usage.set_sources(lambda: self._gpus()["free"], lambda key: "", {})
        node_events = NodeEvents(Quiet(), rules, self.metrics)
        self.taints = TaintWriter(calls, reports, rules, node_events, clock, news, False)
        self.stuck = False
        self.start(self.informers.run())

    def _term(self):
        return 1 if self.leads else None

    def _gpus(self):
        return self.view.nodes.gpus_by_state(GPUS, labels.FAULTY)

    def has_synced(self):
        """True once the watches have shown their lists."""
        return self.informers.has_synced

    def lead(self):
        """Begin the first term."""
        self.set_term(leads=True)

    async def minute(self):
        """Observe, decide and write."""
        if self.leads and not self.stuck:
            await self.controller.look(self.clock.wall())
            await self.taints.run_once()

    def page(self):
        """Return the metrics page."""
        return self.metrics.page()


class SkewedClock:
    """The day's clock as a node has it whose time of day is wrong. ahead_s: by how much, in seconds."""

    def __init__(self, clock):
        self._clock, self.ahead_s = clock, 0.0
        self.monotonic, self.sleep, self.timeout = clock.monotonic, clock.sleep, clock.timeout

    def wall(self):
        """Return the wrong time of day."""
        return self._clock.wall() + self.ahead_s


class ControllerProgram(Program):
    """The controllers of PyTorchJobs, whose pods wait behind our gate."""

    def __init__(self, server, name="controller"):
        super().__init__(server, name)
        self.clock = clock = SkewedClock(server.clock)
        kinds, setup, names = by_api(("PyTorchJob",), ""), GangSettings(), ("PyTorchJob",)
        self.queue = WorkQueue(clock, Backoff(first_s=1.0, max_s=60.0), lambda: 0.5)
        cache = ChildCache(lambda key: self.queue.add(key) if self.leads else None, kinds)
        self.informers = ControllerInformers(cache, self.client, kinds, setup, clock, random.Random(1))
        self.metrics = metrics = ControllerMetrics(
            self.queue.__len__, names, lambda: cache.count_by_phase() if self.leads else None
        )
        self.leading = metrics.leading
        metrics.show_client(lambda: self.client.requests.counts, self.informers.reflectors.items, clock)
        writer = ChildWriter(LeasedCalls(self.client, lambda: self.leads), cache, kinds, setup)
        parts = self.queue, writer, kinds, setup, clock, Quiet(), metrics
        self.controller = JobController(cache, *parts, SteadyTime(clock))
        self.start(self.informers.run())

    def has_synced(self):
        """True once the watches have shown their lists."""
        return self.informers.has_synced

    def lead(self):
        """Begin the first term."""
        self.set_term(leads=True)
        self.start(self.controller.run())

    def page(self):
        """Return the metrics page."""
        return self.metrics.page()


class PageProgram(Program):
    """The live page for many viewers. viewers: browsers that follow it."""

    def __init__(self, server, name="page"):
        super().__init__(server, name)
        self.viewers = 0
        self.source = PageSource(self.client, AutoscalerSettings(), self.clock, random.Random(1))
        self.metrics = PageMetrics(self.source.data_age_s, lambda: self.viewers)
        self.metrics.show_client(lambda: self.client.requests.counts, self.source.watches.items, self.clock)
        self.start(self.source.run())

    def has_synced(self):
        """True after the first picture."""
        return self.source.has_synced

    def page(self):
        """Return the metrics page."""
        return self.metrics.page()
