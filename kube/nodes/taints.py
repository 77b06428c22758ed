"""A node's taints as the API server has them, with one of a key put in or taken out; all others stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EFFECT = "NoSchedule"  # who trains there already goes on, or leaves by itself


def bears(node: Mapping[str, Any], key: str) -> bool:
    """True if this raw node has a taint of that key, whatever its effect."""
    return any(taint.get("key") == key for taint in _taints(node))


def with_taint(node: Mapping[str, Any], key: str, value: str) -> list[dict[str, Any]]:
    """Its taints with ours, once."""
    return [*without_taint(node, key), {"key": key, "value": value, "effect": EFFECT}]


def without_taint(node: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Its taints but those of the key."""
    return [dict(taint) for taint in _taints(node) if taint.get("key") != key]


def change(
    node: Mapping[str, Any], notes: Mapping[str, str | None], taints: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The merge patch that gives this raw node these notes and taints, valid for this version of it alone.

    notes: annotations, None takes one away. taints: all of them; None leaves them alone.
    """
    meta = {"resourceVersion": node["metadata"]["resourceVersion"], "annotations": dict(notes)}
    return {"metadata": meta, **({} if taints is None else {"spec": {"taints": taints or None}})}


def _taints(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    return (node.get("spec") or {}).get("taints") or []
