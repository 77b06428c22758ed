"""Read an AdmissionReview of a pod that is created, and answer with our scheduling gate as a JSONPatch, or without one.

A pod is never refused. What cannot be read is allowed as it is, so that a fault of ours stops nobody.
Source: k8s.io/api/admission/v1; docs/managed-clusters.md
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import msgspec

from turnout.jobs.gate import wants_gate
from turnout.kube.labels import GPU_RESOURCES, PLACEMENT_GATE
from turnout.kube.objects import Pod
from turnout.scheduler_ext.body_bounds import check_size
from turnout.scheduler_ext.errors import BadRequest

_GATES = "/spec/schedulingGates"
_MAX_UID_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class GateRule:
    """The pods that get the gate: of these schedulers, with one of these accelerators, in no system namespace."""

    schedulers: frozenset[str] = frozenset({"default-scheduler"})
    gpu_resources: tuple[str, ...] = GPU_RESOURCES
    system_prefixes: tuple[str, ...] = ("kube-",)  # beginnings of the names of namespaces


class _Request(msgspec.Struct):
    uid: str
    namespace: str = ""
    operation: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")


class _Review(msgspec.Struct):
    request: _Request


_reviews, _pods = msgspec.json.Decoder(_Review), msgspec.json.Decoder(Pod)


@dataclass(frozen=True, slots=True)
class Review:
    """One question of an API server. pod: None where what it asks about is no pod that can be read."""

    uid: str
    namespace: str
    pod: Pod | None


def decode_review(body: bytes) -> Review:
    """Read a question. Raises BadRequest for one that has no uid, so that nobody can answer it, or is too large."""
    check_size(body, "an AdmissionReview")
    try:
        review = _reviews.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadRequest("no AdmissionReview") from None
    request = review.request
    if not 0 < len(request.uid) <= _MAX_UID_CHARACTERS:
        raise BadRequest("an AdmissionReview without a uid")
    try:
        pod = _pods.decode(request.object) if request.operation == "CREATE" else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pod = None
    return Review(request.uid, request.namespace, pod)


def needs_gate(review: Review, rule: GateRule) -> bool:
    """True if the pod is to be created behind our gate."""
    pod = review.pod
    if pod is None or pod.spec.node_name or review.namespace.startswith(rule.system_prefixes):
        return False
    return pod.spec.scheduler_name in rule.schedulers and wants_gate(pod, rule.gpu_resources)


def encode_review(review: Review, gate: bool) -> bytes:
    """Write the answer: allowed, with the gate where that is said."""
    response: dict[str, Any] = {"uid": review.uid, "allowed": True}
    if gate and review.pod is not None:
        patch = msgspec.json.encode([_gate_patch(bool(review.pod.spec.scheduling_gates))])
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


def _gate_patch(others: bool) -> dict[str, Any]:
    gate = {"name": PLACEMENT_GATE}
    if others:
        return {"op": "add", "path": f"{_GATES}/-", "value": gate}
    return {"op": "add", "path": _GATES, "value": [gate]}
