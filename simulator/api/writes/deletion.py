"""Delete an object: at once, after a grace that its kubelet needs, or when the last finalizer is removed.

Source: Kubernetes, registry/rest/delete.go and the pod strategy.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from turnout.simulator.api.model import ApiRefusal, Object, ResourceKind, conflict, value_at

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_BY_POLICY = {"Foreground": FOREGROUND, "Orphan": ORPHAN, "Background": ""}
_DEFAULT_GRACE_S = 30


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """The options of a DELETE."""

    grace_s: int | None = None  # seconds; None: as the object says
    policy: str = "Background"  # of the dependents
    only_if: tuple[tuple[str, str], ...] = ()  # preconditions: (key, value) with the key uid or resourceVersion


def delete_options(options: dict[str, Any], query: dict[str, str]) -> DeleteOptions:
    """Return the DeleteOptions of a body; the query counts for a grace period or policy that the body lacks.

    options: of the body, {} for none. Raises ApiRefusal: 400 for a grace that is no number, 422 for an unknown policy,
    501 for an option that is not supported.
    """
    for key in ("dryRun", "orphanDependents"):
        if options.get(key) or query.get(key):
            raise ApiRefusal("NotImplemented", f"the embedded API does not support deletions with {key}")
    grace = options.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
    policy = options.get("propagationPolicy") or query.get("propagationPolicy") or "Background"
    if policy not in _BY_POLICY:
        raise ApiRefusal("Invalid", f"DeleteOptions: propagationPolicy: Unsupported value: {policy!r}")
    preconditions = [(key, value_at(options, "preconditions", key)) for key in ("uid", "resourceVersion")]
    return DeleteOptions(_grace_s(grace), policy, tuple((key, value) for key, value in preconditions if value))


def _grace_s(text: Any) -> int | None:
    """Return a grace period in seconds; None if it is absent, 1 for a negative one.

    text: of the options or the query. Raises ApiRefusal (400) for a value that is no number.
    """
    try:
        grace_s = None if text is None else int(text)
    except (TypeError, ValueError) as error:
        raise ApiRefusal("BadRequest", f"gracePeriodSeconds {text!r} is no number") from error
    return 1 if grace_s is not None and grace_s < 0 else grace_s  # as the API server reads a negative one


def check_preconditions(kind: ResourceKind, obj: Object, options: DeleteOptions) -> None:
    """Raise ApiRefusal (409) if an object is not the one that the preconditions of a deletion name.

    options: of the deletion; without preconditions nothing is checked.
    """
    meta = obj["metadata"]
    for key, expected in options.only_if:
        if expected != meta[key]:
            word = "UID" if key == "uid" else "ResourceVersion"
            message = f"Precondition failed: {word} in precondition: {expected}, {word} in object meta: {meta[key]}"
            raise conflict(kind.resource, meta["name"], message)


def mark_for_deletion(kind: ResourceKind, obj: Object, options: DeleteOptions, now: str, later: str) -> Object | None:
    """Return a copy of the object that is marked for deletion; an equal copy if it is marked already and nothing
    changes.

    None if it is to be removed at once. now, later: the time now and at the end of grace_period_s(), RFC 3339. An
    object that is marked already keeps its time, unless the new grace period is shorter. options: of the deletion.
    """
    meta = obj["metadata"]
    finalizers = _finalizers_for(options.policy, meta.get("finalizers") or ())
    grace_s = grace_period_s(kind, obj, options)
    if not finalizers and not grace_s:
        return None
    marked_obj = {**obj, "metadata": dict(meta)}
    if finalizers:
        marked_obj["metadata"]["finalizers"] = finalizers
    if not meta.get("deletionTimestamp") or grace_s < meta.get("deletionGracePeriodSeconds", 0):
        marked_obj["metadata"].update(deletionTimestamp=later if grace_s else now, deletionGracePeriodSeconds=grace_s)
    return marked_obj


def _finalizers_for(policy: str, before: Iterable[str]) -> list[str]:
    """Return the finalizers of an object that is deleted with a policy. A new list.

    Foreground and Orphan replace each other's finalizer; Background keeps all. before: its finalizers now.
    """
    finalizers, own = list(before), _BY_POLICY[policy]
    if own and own not in finalizers:
        finalizers.append(own)
    if policy != "Background":
        finalizers = [each for each in finalizers if each == own or each not in (FOREGROUND, ORPHAN)]
    return finalizers


def final_state(kind: ResourceKind, obj: Object, now: str) -> Object:
    """Return the last state of an object that is removed, as its deletion event has it: a copy. now: RFC 3339.

    An object of a graceful kind has a deletionTimestamp and the grace period 0. If it was not marked for deletion
    before, its generation is one higher.
    """
    meta = dict(obj["metadata"])
    if kind.graceful:
        if not meta.get("deletionTimestamp"):
            meta["generation"] = meta.get("generation", 1) + 1
        meta.update(deletionTimestamp=meta.get("deletionTimestamp") or now, deletionGracePeriodSeconds=0)
    return {**obj, "metadata": meta}


def grace_period_s(kind: ResourceKind, obj: Object, options: DeleteOptions) -> int:
    """Return the grace period of a deletion in seconds; 0 for an object that no kubelet runs, or that has ended.

    A second deletion can only shorten the grace period. options: of the deletion; without `grace_s` the pod's own
    period counts.
    """
    if not kind.graceful or not value_at(obj, "spec", "nodeName"):
        return 0
    if value_at(obj, "status", "phase") in ("Succeeded", "Failed"):
        return 0
    own = value_at(obj, "spec", "terminationGracePeriodSeconds")
    own = own if isinstance(own, int) else _DEFAULT_GRACE_S
    grace_s = options.grace_s if options.grace_s is not None else own
    meta = obj["metadata"]
    if meta.get("deletionTimestamp"):
        return min(grace_s, int(meta.get("deletionGracePeriodSeconds") or 0))
    return int(grace_s)


def terminating_namespace(namespace: Object, now: str) -> Object:
    """Return a copy of the namespace with a deletionTimestamp and the phase Terminating. now: that time, RFC 3339."""
    meta = {**namespace["metadata"], "deletionTimestamp": now}
    return {**namespace, "metadata": meta, "status": {**(namespace.get("status") or {}), "phase": "Terminating"}}
