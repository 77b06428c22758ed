"""Finds what a waiting job lacks that neither its scheduler nor the end of other jobs can give it.

That is members that do not exist, or a place that these nodes do not have even when they are empty.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.model import UNKNOWN_NODE, JobState, Observation, Reason, Step
from turnout.autoscaler.reporting.forecast import Estimate
from turnout.autoscaler.reporting.queue_simulation import NEVER
from turnout.jobs.model import JobKey
from turnout.kube.pod_shape import PodShape
from turnout.kube.reasons import AUTOSCALER, Meaning

BoundPod = tuple[int, PodShape]  # row of a node, and what stands there


@dataclass(frozen=True, slots=True)
class UnmanagedGang:
    """Pods that belong together and to no job of a known kind. there: how many exist. placed: those with a node."""

    key: JobKey
    queue: str
    existing: int
    bound_pods: tuple[BoundPod, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """The cluster besides its jobs. map_seen: whether the map of switches could be read."""

    gangs: Mapping[JobKey, UnmanagedGang] = field(default_factory=dict)
    map_read: bool = True


Cause = tuple[Meaning, Estimate | None]  # advice "" and start None leave those of the decision


def cause(state: JobState, step: Step, observation: Observation, cluster: ClusterContext) -> Cause | None:
    """Return what a job lacks first; None if its step explains it well."""
    if not state.is_waiting or step.reason not in (Reason.SCHEDULERS_TURN, Reason.WAITS_FOR_ROOM, Reason.NEEDS_MORE):
        return None
    least, tier = state.job.bounds.least - state.finished, state.job.spread.tier
    if tier is not None and not observation.room.switches:
        return _without_map(tier, cluster.map_read)
    most = most_together(state, observation, cluster.gangs.values())
    if most < least and step.reason is Reason.NEEDS_MORE:
        return _no_place(least, most, tier)
    existing = members(state, cluster)
    if existing < least and (existing or state.job.foreign):
        return _incomplete(least, existing)
    return None


def members(state: JobState, cluster: ClusterContext) -> int:
    """Return the number of pods of a job that exist, with a node or without."""
    gang = cluster.gangs.get(state.job.key)
    return gang.existing if gang is not None else len(state.living)


def most_together(state: JobState, observation: Observation, gangs: Collection[UnmanagedGang]) -> int:
    """Return how many workers empty nodes hold, under one switch if the job requests that."""
    removed = [
        *((pod.row, pod.shape) for pod in observation.leaving),
        *(each for gang in gangs for each in gang.bound_pods),
    ]
    gang_keys = {gang.key for gang in gangs}
    for each in (job for job in observation.jobs if job.job.key not in gang_keys):
        removed += [(worker.row, each.job.shape) for worker in each.workers if worker.row is not None]
    fits = _emptied(observation.room, state.job.shape, removed)
    tier, switches = state.job.spread.tier, observation.room.switches
    if tier is None or not switches:
        return int(fits.sum())
    of = switches[min(tier, len(switches)) - 1]
    known = of >= 0
    return int(np.bincount(of[known], weights=fits[known], minlength=1).max())


def _emptied(room: Capacity, shape: PodShape, removed: Sequence[BoundPod]) -> NDArray[np.int64]:
    """Return how many pods of a shape each node holds after others are removed."""
    free = room.free.copy()
    for row, other in removed:
        if row != UNKNOWN_NODE:
            requests = dict(other.requests)
            free[row] += [requests.get(name, 0) for name in room.names]
    takes = room.takes[shape]
    asks = takes > 0
    if not asks.any():
        return np.where(room.admits[shape], 1_000_000, 0)
    fits = np.maximum((free[:, asks] // takes[asks]).min(axis=1), 0)
    return np.where(room.admits[shape], fits, 0)


def _without_map(tier: int, map_read: bool) -> Cause:
    if not map_read:
        why = "the map of switches cannot be read, so nobody can say here whether it fits"
        help_ = "Ask somebody who may read it."
    else:
        why, help_ = "there is no map of the switches", "The admin writes the map, or its owner asks for no tier."
    means = f"It must stay under one switch of tier {tier}, and {why}."
    return Meaning(means, help_), Estimate(NEVER, NEVER, NEVER, f"nobody can say: {why}")


def _no_place(least: int, most: int, tier: int | None) -> Cause:
    where = "these nodes hold" if tier is None else f"a switch of tier {tier} holds"
    needs = f"it needs {least} workers together, and {where} {most} at most"
    never = f"It can never start as it is: {needs}, even if all else were gone."
    if tier is None:
        help_ = "Lower its min, make its workers smaller, or add nodes: that other jobs end does not help."
        return Meaning(f"{AUTOSCALER[Reason.NEEDS_MORE.value].means} {never}", help_), None
    advice = "Raise turnout.dev/topology-tier, lower its min, or make its workers smaller: waiting does not help."
    return (
        Meaning(never, advice),
        Estimate(NEVER, NEVER, NEVER, f"never: {where} {most} of its {least} workers at most"),
    )


def _incomplete(least: int, existing: int) -> Cause:
    more = f"{least - existing} more member{'' if least - existing == 1 else 's'}"
    present = f"{existing} of the {least} that must start together exist"
    meaning = f"It waits for {more}: {present}, so its scheduler holds them."
    advice = "Look at who creates its pods: its controller's Events, a ResourceQuota; or lower its min."
    because = f"not before {more} {'exists' if least - existing == 1 else 'exist'}"
    return Meaning(meaning, advice), Estimate(NEVER, NEVER, NEVER, because)
