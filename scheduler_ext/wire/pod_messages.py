"""Translate messages about one pod: the AdmissionReview of a new pod, patches of a gated pod, and evictions.

A new pod is never refused. A pod that cannot be read is allowed unchanged, so that a fault of ours blocks no pod. A
patch is valid for one version of one pod and only narrows the pod. An eviction names the uid of the pod.

Source: k8s.io/api/admission/v1; docs/managed-clusters.md
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import msgspec

from turnout.jobs.gang import wants_gate
from turnout.kube.labels import GPU_RESOURCES, PLACEMENT_GATE
from turnout.kube.objects import NodeSelectorRequirement, NodeSelectorTerm, Pod
from turnout.scheduler_ext.model import BadRequest, Evict, GatedPod, Lift, Nominate
from turnout.scheduler_ext.wire.extender_v1 import check_size

_GATES = "/spec/schedulingGates"


_MAX_UID_CHARACTERS = 128


@dataclass(frozen=True, slots=True)
class GateRule:
    """The pods that get the gate: of these schedulers, with one of these accelerators, outside system namespaces."""

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
    """One question of an API server."""

    uid: str
    namespace: str

    pod: Pod | None  # None if the request does not create a pod, or the pod cannot be read


def decode_review(body: bytes) -> Review:
    """Decode an AdmissionReview. The pod is None if the request does not create a pod, or the pod cannot be read.

    Raises BadRequest if the body is too large, is no AdmissionReview, or has no uid of 1 to _MAX_UID_CHARACTERS
    characters and so cannot be answered.
    """
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
    """Return True if the webhook adds our gate to the created pod.

    Such a pod is in a gang, requests an accelerator, names a scheduler of the rule, and does not have the gate yet.
    False for a bound pod, in a system namespace, and if the review has no readable pod.
    """
    pod = review.pod
    if pod is None or pod.spec.node_name or review.namespace.startswith(rule.system_prefixes):
        return False
    return pod.spec.scheduler_name in rule.schedulers and wants_gate(pod, rule.gpu_resources)


def encode_review(review: Review, add_gate: bool) -> bytes:
    """Encode the answer: allowed, with a patch that adds our gate if `add_gate` is True and the pod could be read."""
    response: dict[str, Any] = {"uid": review.uid, "allowed": True}
    if add_gate and review.pod is not None:
        patch = msgspec.json.encode([_gate_patch(bool(review.pod.spec.scheduling_gates))])
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch).decode()}
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


def _gate_patch(others: bool) -> dict[str, Any]:
    """Return the JSON patch operation that adds our gate. others: True if the pod has other gates already."""
    gate = {"name": PLACEMENT_GATE}
    if others:
        return {"op": "add", "path": f"{_GATES}/-", "value": gate}
    return {"op": "add", "path": _GATES, "value": [gate]}


def gates_of(pod: Pod) -> set[str]:
    """Return the names of a pod's scheduling gates."""
    return {str(gate.get("name")) for gate in pod.spec.scheduling_gates or () if isinstance(gate, dict)}


def gated_pod(pod: Pod) -> GatedPod | None:
    """Read a pod; None if it does not carry our gate, is bound, or is being deleted."""
    gates = gates_of(pod)
    if PLACEMENT_GATE not in gates or pod.spec.node_name or pod.metadata.deletion_timestamp is not None:
        return None
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required if affinity else None
    return GatedPod(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        version=pod.metadata.resource_version,
        nominated=pod.status.nominated_node_name,
        other_gates=tuple(sorted(gates - {PLACEMENT_GATE})),
        required_terms=None if required is None else tuple(required.node_selector_terms),
        created=pod.metadata.creation_timestamp or "",
    )


_FIELD = "metadata.name"  # the only field of node affinity; the scheduler then considers that node only


def nomination_patch(nomination: Nominate) -> dict[str, Any]:
    """Return the merge patch of a pod's status that writes its nominated node, or clears it for node "".

    The API server rejects it if the pod has another uid or, if the version is known, another resourceVersion.
    """
    return {"metadata": _meta(nomination.pod), "status": {"nominatedNodeName": nomination.node or None}}


def lift_patch(lift: Lift) -> dict[str, Any]:
    """Return the merge patch that removes our gate and leaves the gates of others.

    With `only_this_node` and a node, the pod may run on that node only, besides the terms of its own affinity. The API
    server allows a gated pod to be narrowed, never widened. The API server rejects the patch if the pod has another
    uid or, if the version is known, another resourceVersion.
    """
    left: list[dict[str, str]] | None = [{"name": name} for name in lift.pod.other_gates] or None
    spec: dict[str, Any] = {"schedulingGates": left}
    if lift.only_this_node and lift.node:
        terms = msgspec.to_builtins(
            [_add_node(lift.node, term) for term in lift.pod.required_terms or (NodeSelectorTerm(),)]
        )
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        spec["affinity"] = {"nodeAffinity": required}
    return {"metadata": _meta(lift.pod), "spec": spec}


def eviction_body(eviction: Evict) -> dict[str, Any]:
    """Return the body of an eviction of the pod with this uid only. Disruption budgets may refuse it."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": eviction.name, "namespace": eviction.namespace},
        "deleteOptions": {"preconditions": {"uid": eviction.uid}},
    }


def _add_node(node: str, term: NodeSelectorTerm) -> NodeSelectorTerm:
    requirement = NodeSelectorRequirement(_FIELD, "In", [node])
    return NodeSelectorTerm(term.match_expressions, [*(term.match_fields or ()), requirement])


def _meta(pod: GatedPod) -> dict[str, str]:
    return {"uid": pod.uid} | ({"resourceVersion": pod.version} if pod.version else {})
