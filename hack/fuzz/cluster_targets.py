"""Readers of what an API server hands on: watches, objects that tenants write, and what the autoscaler keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np

from hack.fuzz.target import Target
from turnout.autoscaler import memory
from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import JobState, Observation, Policy, Queue, Worker
from turnout.autoscaler.node_faults import model as node_record
from turnout.autoscaler.reporting.decision_log import DecisionLogEncoder
from turnout.autoscaler.reporting.replay import replay
from turnout.controllers import scale_plan
from turnout.jobs.model import Bounds, Job, JobKey, Sizes
from turnout.kube.nodes import fault_report
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import PodShape
from turnout.kube.watch_events import UNREADABLE, Feed

GPU, NOW_S = "nvidia.com/gpu", 1_767_225_600.0
_POD = {"metadata": {"name": "a-0", "namespace": "team", "uid": "u", "resourceVersion": "7"}, "spec": {"nodeName": "n"}}
_GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_TERMS = memory.Terms(2, Sizes(2, doubles=True), {"turnout.dev/min-workers": "2"}, able=True)
_STRIKES = (memory.Strike(JobKey("Job", "team", "bert"), 2, 10.0, 50.0), memory.Strike("team", 1, 0.0, 9.5))
_PROOF = node_record.Proof("team/a-0", "u", _NOW)
_STATE = next(iter(node_record.State))
_RECORD = node_record.Record(_STATE, _NOW, _NOW, times=1, proofs=(_PROOF,), told=(("team", _NOW),))
_FAULTY = fault_report.Verdict(fault_report.Kind.FAULTY, _NOW, 3, "w0", 2, "bert", "n", "slow", "x")
_FINE = fault_report.Verdict(fault_report.Kind.FINE, _NOW, 1, "w1", compute_s=0.5)
_PLAN = {"ownerJob": "bert", "replicaResourceSpecs": {"worker": {"replicas": 3, "resource": {"cpu": "1"}}}}
_ELASTIC = {"metadata": {"name": "bert"}, "spec": {"replicaSpecs": {"worker": {"replicas": 2}}}}


class NoObject(Exception):
    """No API server takes these bytes as an object."""


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _object(data: bytes) -> dict[str, Any]:
    """Return what an API server would take as an object. Raises NoObject for all else."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoObject from error


def _plan(data: bytes) -> object:
    """Carry out a plan whose spec this is: an API server lets only an object in there."""
    plan = {"metadata": {"name": "plan", "labels": {"scale-type": "manual"}}, "spec": _object(data)}
    return scale_plan.waits(plan), scale_plan.owner_of(plan), scale_plan.scale(plan, _ELASTIC, NOW_S)


def _memory(data: bytes) -> object:
    """Read what a leader finds, and write it anew. data: the three texts of its ConfigMap, a line each."""
    texts = data.decode("utf-8", "replace").split("\n", 2)
    return memory.written(memory.read(dict(zip(("terms", "strikes", "at"), texts, strict=False)), NOW_S), NOW_S)


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("utf-8", "replace"))


def _looks() -> bytes:
    """Return the lines of two looks at a small cluster, the second of which builds on the first."""
    shape = PodShape(requests=((GPU, 1), ("pods", 1)))
    takes, admits = {shape: np.array([1, 1], dtype=np.int64)}, {shape: np.ones(2, dtype=bool)}
    switches = (np.array([0, 0], dtype=np.int32),)
    job = Job(
        JobKey("Job", "team", "bert"), "u", "1", replicas=1, bounds=Bounds(1, 4), shape=shape,
        sizes=Sizes(1), queue="q", created="2026-01-01T00:00:00Z",
    )  # fmt: skip
    scribe, policy, lines = DecisionLogEncoder("1.0"), Policy(), []
    for second, left in enumerate((4, 3)):
        room = Capacity((GPU, "pods"), np.array([[left, 100], [8, 100]], dtype=np.int64), takes, admits, switches)
        seen = JobState(job, (Worker(0, 0, since_s=NOW_S - 5, name="bert-0"),))
        look = Observation((seen,), {"q": Queue("q", {}, {GPU: 8}, {GPU: 1}, True)}, room)
        lines.append(scribe.line(look, policy, NOW_S + second, decide(look, policy, NOW_S + second)))
    return b"".join(lines)


CLUSTER_TARGETS = (
    Target(
        "a line of a watch",
        (
            _json({"type": "ADDED", "object": _POD}),
            _json({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}),
            _json({"type": "ERROR", "object": _GONE}),
        ),
        Feed(Pod).line,
    ),
    Target(
        "a page of a list",
        (_json({"metadata": {"resourceVersion": "9"}, "items": [_POD, _POD]}),),
        Feed(Pod).page,
        UNREADABLE,
    ),
    Target(
        "a ScalePlan",
        (_json(_PLAN), _json({**_PLAN, "removePods": [{"name": "a"}]})),
        _plan,
        (NoObject,),
    ),
    Target(
        "the autoscaler's memory",
        ("\n".join(memory.written(memory.Memory({"u": _TERMS}, _STRIKES), NOW_S).values()).encode(),),
        _memory,
    ),
    Target("a decision log", (_looks(),), lambda data: list(replay(data.splitlines(keepends=True)))),
    Target(
        "a verdict on a node",
        (fault_report.write(_FAULTY).encode(), fault_report.write(_FINE).encode()),
        _text(fault_report.read),
        (fault_report.BadVerdict,),
    ),
    Target(
        "a node's record", (node_record.write(_RECORD).encode(),), _text(node_record.read), (node_record.BadRecord,)
    ),
)
