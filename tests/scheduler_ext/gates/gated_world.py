"""An API server as far as a writer of gates needs one: pods with versions, and writers that may be killed."""

from __future__ import annotations

import asyncio
import copy

import msgspec
from prometheus_client import CollectorRegistry

from tests.kit import cluster
from tests.kit.clock import ManualClock, settle
from tests.kit.world import World, group
from tests.scheduler_ext.reservation_map import ReservationMap
from tests.scheduler_ext.shown import ShownExtender
from turnout.jobs.gang import Dialect
from turnout.kube import labels
from turnout.kube.client.leased_calls import LeasedCalls
from turnout.kube.client.run_until_signal import run_together
from turnout.kube.errors import Conflict, NotFound, ServerFault, TooManyRequests
from turnout.kube.objects import Pod
from turnout.scheduler_ext.model import Rules
from turnout.scheduler_ext.planner.nominations import NominationChoices
from turnout.scheduler_ext.server.metrics import Metrics, NominatorMetrics
from turnout.scheduler_ext.writers.eviction_writer import Evictor
from turnout.scheduler_ext.writers.gate_writer import GateWriter
from turnout.scheduler_ext.writers.reservation_writer import ReservationWriter

GATE = [{"name": labels.PLACEMENT_GATE}]
CHOICES = NominationChoices(Rules(), frozenset({"default-scheduler"}))


def gang(name, size, gates=GATE, make=cluster.koordinator_gang, **more):
    """The pods of a gang behind our gate."""
    return make(name, size, schedulingGates=gates, **more)


class Killed(BaseException):
    """The writer's process ends here."""


class Api:
    """Pods by name. kill_at: the number of the write at which the writer is killed, before or after it is done.

    writes: (pod, what) in the order in which they were done. away: True while nothing is answered. slow_after: how many
    writes are done at once; further ones wait for `goes_on`. faults: what
    the next write of a pod gets. delete_in_flight: names of pods that are deleted, and shown as deleted, before the
    answer to their next write is read.
    """

    def __init__(self, *pods):
        self.pods, self.writes, self.seen_by, self.reservations = {}, [], [], ReservationMap()
        self.asked, self.kill_at, self.kill_after, self.away = 0, None, False, False
        self.slow_after, self.goes_on, self.faults = None, asyncio.Event(), {}
        self.delete_in_flight = set()
        self.budgets = set()  # names of pods that no eviction takes
        self._number = 100
        for pod in pods:
            self.create(pod)

    def create(self, pod):
        stored = copy.deepcopy(pod)
        self._number += 1
        name = stored["metadata"]["name"]
        created = f"2026-01-01T00:00:{self._number % 60:02d}Z"
        stored["metadata"] |= {"uid": f"uid-{name}", "creationTimestamp": created}
        stored["status"] = {"phase": "Pending"}
        self.pods[name] = stored
        self._show(stored)

    def delete(self, name):
        deleted_pod = self.pods.pop(name)
        for view in self.seen_by:
            view.drop_pod(deleted_pod["metadata"]["uid"])

    def change(self, name, do):
        do(self.pods[name])
        self._show(self.pods[name])

    def bind(self, name, node):
        self.change(name, lambda pod: pod["spec"].update(nodeName=node))

    def _show(self, raw):
        self._number += 1
        raw["metadata"]["resourceVersion"] = str(self._number)
        for view in self.seen_by:
            view.put_pod(self.read(raw))

    @staticmethod
    def read(raw):
        return msgspec.json.decode(msgspec.json.encode(raw), type=Pod)

    async def patch(self, path, body, content_type=None, field_manager=None):
        self._ask()
        if self.slow_after is not None and self.asked > self.slow_after:
            await self.goes_on.wait()
        if self.away:
            raise ServerFault("PATCH", path, 503, "away")
        parts = path.split("/")
        name = parts[6]
        if (fault := self.faults.pop(name, None)) is not None:
            raise fault
        pod = self.pods.get(name)
        if pod is None:
            raise NotFound("PATCH", path, 404, "gone")
        meta = pod["metadata"]
        if any(meta[key] != value for key, value in body["metadata"].items()):
            raise Conflict("PATCH", path, 409, "changed")
        if parts[-1] == "status":
            self._nominate(pod, body["status"]["nominatedNodeName"])
        else:
            self._lift(pod, body["spec"])
        if self.asked == self.kill_at:
            self._number += 1
            meta["resourceVersion"] = str(self._number)
            raise Killed
        self._show(pod)
        if name in self.delete_in_flight:
            self.delete(name)
        return msgspec.json.encode(pod)

    def _ask(self):
        self.asked += 1
        if self.kill_at and (self.asked > self.kill_at or (self.asked == self.kill_at and not self.kill_after)):
            raise Killed  # and so is whatever the process had on its way

    async def evict(self, path, body):
        """Let a pod begin to leave, unless its budget keeps it."""
        self._ask()
        if self.away:
            raise ServerFault("POST", path, 503, "away")
        name = path.split("/")[6]
        if (pod := self.pods.get(name)) is None:
            raise NotFound("POST", path, 404, "gone")
        if pod["metadata"]["uid"] != body["deleteOptions"]["preconditions"]["uid"]:
            raise Conflict("POST", path, 409, "another")
        if name in self.budgets:
            raise TooManyRequests("POST", path, 429, "its disruption budget", retry_after_s=10.0)
        self.writes.append((name, "evicted"))
        pod["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
        if self.asked == self.kill_at:
            self._number += 1
            pod["metadata"]["resourceVersion"] = str(self._number)
            raise Killed
        self._show(pod)
        return b"{}"

    def _nominate(self, pod, node):
        self.writes.append((pod["metadata"]["name"], f"to {node}" if node else "cleared"))
        pod["status"].pop("nominatedNodeName", None)
        pod["metadata"].pop("managedFields", None)
        if node:
            pod["status"]["nominatedNodeName"] = node
            owned = {"f:status": {"f:nominatedNodeName": {}}}
            entry = {"manager": labels.FIELD_MANAGER_NOMINATOR, "subresource": "status", "fieldsV1": owned}
            pod["metadata"]["managedFields"] = [entry]

    def _lift(self, pod, spec):
        self.writes.append((pod["metadata"]["name"], "lifted"))
        pod["spec"].update({key: value for key, value in spec.items() if value})
        if not spec["schedulingGates"]:
            del pod["spec"]["schedulingGates"]

    def start_anew(self):
        """Nobody is killed any more, and nobody watches yet."""
        self.kill_at = None
        self.seen_by.clear()

    # What a test asks.

    def gated(self):
        """The names of the pods behind a gate."""
        return sorted(name for name, pod in self.pods.items() if pod["spec"].get("schedulingGates"))

    def nominated(self):
        """{pod: node} of the nominated ones."""
        node_by_pod = {name: pod["status"].get("nominatedNodeName") for name, pod in self.pods.items()}
        return {name: node for name, node in node_by_pod.items() if node}

    def orders(self, *names):
        """True if every one of these pods was nominated before the first of them was let go."""
        mine = [what for name, what in self.writes if name in names]
        first = mine.index("lifted")
        return all(what == "lifted" for what in mine[first:])


class Evictions:
    """The eviction subresource of an Api's pods, and its reservations."""

    def __init__(self, api):
        self.api, self.patch = api, api.reservations.patch

    async def create(self, path, body):
        return await (self.api.reservations.create if path.endswith("/configmaps") else self.api.evict)(path, body)


class Writer:
    """A writer of gates as a process of its own: it knows what an API server shows it, and no more."""

    def __init__(self, api, *leaves, groups=(), mapped=True, leads=True, rules=None, preempts=False):
        self.api, self.clock, self.notices, self.leads = api, ManualClock(), [], leads
        rules = rules or Rules()
        view = ShownExtender(rules, self.clock, Metrics(), lambda notice: None)
        world = World(*leaves)
        for node in world.nodes:
            view.view.layout.put_node(node)
        if mapped:
            view.use_map(world.fabric)
        self.registry = CollectorRegistry()
        self.view = view
        choices = NominationChoices(rules, CHOICES.schedulers)
        tools = self.clock, NominatorMetrics(self.registry), self.notices.append
        evictions, patches = (LeasedCalls(calls, lambda: self.leads) for calls in (Evictions(api), api))
        self.reservations = ReservationWriter(view.watches, evictions, *tools, "turnout-system/reservations")
        evictor = Evictor(view.watches, evictions, *tools, self.reservations) if preempts else None
        self.writer = GateWriter(view.watches, patches, choices, *tools, evictor)
        for name, minimum in groups:
            self.put_group(name, minimum)
        for raw in api.pods.values():
            view.put_pod(api.read(raw))
        api.seen_by.append(view)
        api.reservations.show(view.watches)

    def put_group(self, name, minimum):
        """Show it a PodGroup."""
        self.view.view.groups.put_group(Dialect.VOLCANO, group(name, minimum))

    async def work(self, for_s=0.0):
        """Work until nothing moves any more, and for so long after that. Raises Killed when the process was."""
        work = asyncio.create_task(run_together(self.reservations.run, self.writer.run))
        try:
            await self._quiet(work)
            if for_s:
                await self.clock.advance(for_s)
                await self._quiet(work)
        finally:
            work.cancel()
            (ended,) = await asyncio.gather(work, return_exceptions=True)
            self.api.seen_by = [view for view in self.api.seen_by if view is not self.view or not work.done()]
            self.api.seen_by.append(self.view)
        while isinstance(ended, BaseExceptionGroup):
            ended = ended.exceptions[0]
        if ended is not None and not isinstance(ended, asyncio.CancelledError):
            raise ended

    async def _quiet(self, work):
        before = -1
        while before != self.api.asked and not work.done():
            before = self.api.asked
            await settle(60)

    def metric(self, name, **labels_):
        return self.registry.get_sample_value(name, labels_)
