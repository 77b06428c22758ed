"""Readers of what an API server hands on: watches, objects that tenants write, and what the autoscaler keeps."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from hack.fuzz.target import Target
from turnout.autoscaler import memory
from turnout.autoscaler.model import Reason, Step
from turnout.autoscaler.node_faults import model as node_record
from turnout.autoscaler.reporting import decision_log
from turnout.controllers import scale_plan
from turnout.jobs.model import JobKey, Sizes
from turnout.kube.nodes import fault_report
from turnout.kube.objects import Pod
from turnout.kube.watch_events import UNREADABLE, Feed

GPU, NOW_S = "nvidia.com/gpu", 1_767_225_600.0
_POD = {"metadata": {"name": "a-0", "namespace": "team", "uid": "u", "resourceVersion": "7"}, "spec": {"nodeName": "n"}}
_GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
_JOB = JobKey("Job", "team", "bert")
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_TERMS = memory.Terms(2, Sizes(2, doubles=True), {"turnout.dev/min-workers": "2"}, able=True)
_STRIKES = (memory.Strike(_JOB, 2, 10.0, 50.0), memory.Strike("team", 1, 0.0, 9.5))
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
    Target(
        "a line of a decision log",
        (decision_log.encode([Step(_JOB, 2, 4, Reason.MAKES_ROOM, "2 of 4", _JOB)], NOW_S),),
        decision_log.read,
        (decision_log.BadLine,),
    ),
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
