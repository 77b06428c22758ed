"""Watches the cluster for the page, and computes a new state at most once a second."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from turnout.autoscaler.controller.informers import AutoscalerInformers
from turnout.autoscaler.decide import decide, decide_safely
from turnout.autoscaler.model import Observation, Step
from turnout.autoscaler.reporting.forecast import ForecastCache
from turnout.autoscaler.reporting.why import ClusterContext, chain
from turnout.autoscaler.settings import Settings
from turnout.cli.page.cluster_state import (
    ClusterState,
    gang_items,
    hosts_of,
    job_items,
    map_shape,
    placed_pods,
    queue_items,
)
from turnout.cli.page.decisions import DecisionStore
from turnout.cli.page.history import PastSizes
from turnout.cli.verb_support.autoscaler_view import AutoscalerView
from turnout.cli.views.history import OURS
from turnout.cli.views.queues import rows as queue_rows
from turnout.cli.why import rows as why_rows
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import JobLifecycle
from turnout.kube.client.clock import Clock
from turnout.kube.client.informer_factory import CallbackSink
from turnout.kube.client.reflector import ListerWatcher
from turnout.kube.client.run_until_signal import run_together
from turnout.kube.objects import ObjectMeta, Struct
from turnout.kube.server.client_metrics import Watch
from turnout.kube.watch_events import Key

log = logging.getLogger("turnout.page")

OBSERVE_S = 1.0  # between two observations at least
QUIET_S = 9.0  # seconds added to OBSERVE_S while nothing changes: curves continue, and time alone may change a decision


class _Event(Struct):
    """An Event of v1, with the fields that `read_event` reads."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    involved_object: dict[str, Any] | None = None
    type: str = ""
    reason: str = ""
    message: str = ""
    reporting_component: str = ""
    source: dict[str, Any] | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    event_time: str | None = None
    count: int | None = None


def _ignore(key: Key) -> None:
    """Keep a decision whose Event the API server has deleted."""


class PageWatches:
    """The watches of the page: which of them have listed everything, and which are interrupted."""

    def __init__(self, informers: AutoscalerInformers, clock: Clock) -> None:
        self._informers, self._clock = informers, clock

    def unsynced(self) -> list[str]:
        """Return what is watched and whose first list is not complete, each with its error if it has one."""
        reflectors = self._informers.reflectors
        errors = {name: reflectors[name].last_error for name in self._informers.unsynced_watches()}
        return [f"{name} ({error})" if error else name for name, error in errors.items()]

    def interrupted_s(self) -> float:
        """Return the longest time since the last event of an interrupted watch, in seconds.

        0 if no watch is interrupted.
        """
        now_s = self._clock.monotonic()
        silent = [
            now_s - each.last_event_s
            for each in self._informers.reflectors.values()
            if each.watching_since_s is None and not each.is_unserved
        ]
        return max(silent, default=0.0)

    def items(self) -> Iterable[tuple[str, Watch]]:
        """Return all watches, each as (what it watches, watch)."""
        return self._informers.reflectors.items()

    def last_error(self) -> str:
        """Return the error of an interrupted watch; "" if all are open or those that are not have no error."""
        found = (each for each in self._informers.reflectors.values() if each.watching_since_s is None)
        return next((each.last_error for each in found if each.last_error), "")


class PageSource:
    """The state of the cluster, updated by watches. `changed` is set and replaced at each new version."""

    def __init__(self, client: ListerWatcher, settings: Settings, clock: Clock, rng: random.Random) -> None:
        """Begin with an empty state. client: lists and watches. rng: for the back-off of watches."""
        self._settings, self._clock = settings, clock
        self._view = AutoscalerView(settings.gpu_resource)
        maps = settings.configmaps()
        self._informers = AutoscalerInformers(self._view, client, KINDS, clock, rng, maps)
        self._decisions = DecisionStore()
        for component in sorted(OURS):
            self._informers.watch(
                f"events of {component}",
                "/api/v1/events",
                _Event,
                CallbackSink(self._put_event, _ignore, self._informers.news.set),
                params={"fieldSelector": f"reportingComponent={component}"},
            )
        self.watches = PageWatches(self._informers, clock)
        self._forecasts = ForecastCache()
        self._observation: Observation | None = None
        self._steps: list[Step] = []
        self.past = PastSizes()
        self.state = ClusterState()
        self.changed = asyncio.Event()
        self._observed_s = clock.monotonic()  # of the last observation; of the start before the first

    def _put_event(self, obj: _Event) -> None:
        raw = msgspec.json.decode(msgspec.json.encode(obj))
        self._decisions.put(obj.metadata.uid, obj.metadata.namespace, raw, self._clock.wall())

    @property
    def has_synced(self) -> bool:
        """True after the first observation of everything."""
        return self.state.version > 0

    def data_age_s(self) -> float:
        """Return the time since the last observation with all watches open, in seconds."""
        return max(self._clock.monotonic() - self._observed_s, self.watches.interrupted_s())

    async def run(self) -> None:
        """Watch and observe until cancelled. An unexpected error ends it."""
        await run_together(self._informers.run, self._observe_for_ever)

    async def _observe_for_ever(self) -> None:
        """Observe the cluster after each change, at most every OBSERVE_S seconds and at least every QUIET_S, until
        cancelled.
        """
        await self._informers.wait_for_sync()
        while True:
            self._informers.news.clear()
            self.observe()
            await self._clock.sleep(OBSERVE_S)
            with suppress(TimeoutError):
                async with self._clock.timeout(QUIET_S):
                    await self._informers.news.wait()

    def observe(self) -> None:
        """Compute the state from the watches, and append the present queues and jobs to `past`, also if none changed.

        If the state changed, it gets a new version, and all who wait for `changed` are woken.
        """
        now_s = self._clock.wall()
        observation = self._view.observation(now_s)
        policy = self._settings.policy()
        steps, _ = decide_safely(decide, observation, policy, now_s)
        starts = self._forecasts.start_times(observation, steps, partial(_ended, self._view), now_s, dry_run=False)
        gpus = self._settings.gpu_resource
        pods = placed_pods(self._view.gpu_pods(), observation)
        gangs = self._view.bare_gangs()
        jobs = (*job_items(observation, steps, starts, pods, gpus), *gang_items(observation, gangs, pods))
        queues, namespaces = queue_items(queue_rows(observation, gangs, gpus), pods)
        fabric = self._view.nodes.fabric
        new = replace(
            self.state,
            hosts=hosts_of(self._view.nodes.by_name.values(), fabric, gpus),
            pods=pods,
            jobs=jobs,
            queues=queues,
            queue_namespaces=namespaces,
            fabric=fabric,
            map_fault=self._map_fault(),
            decisions=self._decisions.items({job.job: job.queue for job in jobs}),
        )
        self._observation, self._steps, self._observed_s = observation, steps, self._clock.monotonic()
        self.past.add(now_s, queues, jobs)
        if new != self.state:
            version = self.state.version + 1
            if map_shape(new) != map_shape(self.state):
                new = replace(new, map_at_s=now_s, map_version=version)
            self.state = replace(new, observed_at_s=now_s, version=version)
            self.changed.set()
            self.changed = asyncio.Event()

    def _map_fault(self) -> str:
        """Return why there is no map or why the newest one is not used; "" if it is used."""
        if self._informers.map.fault:
            return f"{self._settings.configmap} is not used: {self._informers.map.fault}"
        return "" if self._view.nodes.fabric.mapped_count else f"{self._settings.configmap} names no host"

    def reason_chain(self, job: str) -> tuple[tuple[str, str], ...]:
        """Return the chain of causes of a job's state, each as (what the link is about, text); () for an unknown job.

        job: KIND/NAMESPACE/NAME.
        """
        observation = self._observation
        key = (
            next((each.job.key for each in observation.jobs if str(each.job.key) == job), None) if observation else None
        )
        if observation is None or key is None:
            return ()
        found = chain(
            key,
            observation,
            self._steps,
            self._settings.policy(),
            self._clock.wall(),
            tuple(self._view.nodes.by_name.values()),
            self._settings.gpu_resource,
            None,
            ClusterContext(self._view.bare_gangs()),
        )
        return () if found is None else tuple(why_rows(found))


def _ended(view: AutoscalerView) -> Any:
    """Return (uid, queue, object) of each job that has ended. Its objects are read as the result is iterated."""
    done = {uid: job for uid, job in view.jobs.by_uid.items() if job.lifecycle is JobLifecycle.DONE}
    return ((uid, job.queue, view.jobs.raw[job.key]) for uid, job in done.items() if job.key in view.jobs.raw)
