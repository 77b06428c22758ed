"""Translate the wire format of Volcano's `extender` plugin: bytes to requests, answers to bytes.

Volcano sends one task (its pod) and whole nodes under Go's field names. Only the pod and the names are read. Volcano
adds our scores as they are to those of other plugins, which reach 100 times their weight.

Source: volcano.sh/volcano pkg/scheduler/plugins/extender/argument.go; docs/facts/schedulers.md 1.1; CS-10
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from turnout.kube.objects import Pod
from turnout.scheduler_ext.model import Answer, BadRequest
from turnout.scheduler_ext.wire.extender_v1 import MAX_MESSAGE_BYTES, MAX_NAMES, clip

POINT = 10_000.0  # Volcano's score for one point of ours: the planned node outranks other plugins


SUCCESS, UNSCHEDULABLE, UNRESOLVABLE = 0, 2, 3  # codes of predicate; UNSCHEDULABLE: a preemption may help


ABSTAIN, REJECT = 0, -1  # votes; a vote for a job would skip the plugins of later tiers, such as its quota


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VolcanoRequest:
    """The pod of a task and the nodes of the request."""

    pod: Pod
    names: tuple[str, ...]


class _Node(msgspec.Struct):
    name: str = msgspec.field(name="Name")


class _Task(msgspec.Struct):
    pod: Pod = msgspec.field(name="Pod")


class _PredicateBody(msgspec.Struct):
    task: _Task
    node: _Node


class _PrioritizeBody(msgspec.Struct):
    task: _Task
    nodes: list[_Node]


class _Job(msgspec.Struct):
    uid: str = msgspec.field(name="UID")


class _EnqueueableBody(msgspec.Struct):
    job: _Job


_predicate_body = msgspec.json.Decoder(_PredicateBody)
_prioritize_body = msgspec.json.Decoder(_PrioritizeBody)
_enqueueable_body = msgspec.json.Decoder(_EnqueueableBody)


def decode_predicate(body: bytes) -> VolcanoRequest:
    """Decode a PredicateRequest. Raises BadRequest if the body is none, or its pod cannot be decoded."""
    request = _decode(_predicate_body, body)
    return VolcanoRequest(request.task.pod, (request.node.name,))


def decode_prioritize(body: bytes) -> VolcanoRequest:
    """Decode a PrioritizeRequest. Raises BadRequest if the body is invalid or names more than MAX_NAMES nodes."""
    request = _decode(_prioritize_body, body)
    if len(request.nodes) > MAX_NAMES:
        raise BadRequest(f"nodes holds more than {MAX_NAMES} nodes")
    return VolcanoRequest(request.task.pod, tuple(node.name for node in request.nodes))


def decode_job(body: bytes) -> tuple[str, str]:
    """Return (namespace, name) of the PodGroup in a JobEnqueueableRequest.

    Raises BadRequest if the body is none, or if the UID of its job is not `namespace/name`.
    """
    namespace, slash, name = _decode(_enqueueable_body, body).job.uid.partition("/")
    if not (namespace and slash and name):
        raise BadRequest("the job's UID is not namespace/name")
    return namespace, name


def encode_predicate(answer: Answer) -> bytes:
    """Encode a PredicateResponse: success without a refusal, else the refusal and whether a preemption may help."""
    if answer.refusal is None:
        return _encode({"status": "", "code": SUCCESS})
    why = clip(f"{answer.refusal.reason.value}: {answer.refusal.detail}", MAX_MESSAGE_BYTES)
    return _encode({"status": why, "code": UNSCHEDULABLE if answer.may_preempt else UNRESOLVABLE})


def encode_prioritize(request: VolcanoRequest, scores: Iterable[tuple[str, int]]) -> bytes:
    """Encode a PrioritizeResponse: node -> POINT times the score, for scores above 0 and nodes of the request.

    The map is there even if empty.
    """
    names = set(request.names)
    found = {name: POINT * score for name, score in scores if score > 0 and name in names}
    return _encode({"nodeScore": found, "errorMessage": ""})


def encode_vote(answer: Answer) -> bytes:
    """Encode a JobEnqueueableResponse: reject a job that cannot start even after preemption, else abstain."""
    return _encode({"status": REJECT if answer.refusal is not None and not answer.may_preempt else ABSTAIN})


def _decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Decode a request of Volcano's extender plugin.

    Raises BadRequest, which quotes nothing of the body, if it is not JSON, or a field is missing or of the wrong type.
    """
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError):  # malformed, of wrong types, or not UTF-8
        raise BadRequest("the body is no request of Volcano's extender plugin") from None


def _encode(answer: dict[str, Any]) -> bytes:
    return msgspec.json.encode(answer)
