"""Koordinator's words on a pod: the gather strategy of `network-topology-spec`, whose levels are names of layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turnout.jobs.wishes.model import Level, Slices, Wish

SPEC = "gang.scheduling.koordinator.sh/network-topology-spec"
INDEX = "gang.scheduling.koordinator.sh/network-topology-index"
_WHOLE_CLUSTER, _HOST = "ClusterTopologyLayer", "NodeTopologyLayer"
_MUST = "MustGather"


def read(notes: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return what the annotation of a pod says; None when it says nothing.

    Of several layers that must hold all pods the last is kept: layers are listed from the outermost inwards.
    """
    text = notes.get(SPEC)
    if text is None:
        return None
    try:
        rules = [each for each in json.loads(text[:8192])["gatherStrategy"] if isinstance(each, dict)]
    except (ValueError, TypeError, KeyError, RecursionError):
        faults.append(f"{SPEC} cannot be read: it must be JSON with a list gatherStrategy")
        return Wish(SPEC)
    must = [_level(each) for each in rules if each.get("strategy") == _MUST and each.get("layer") != _WHOLE_CLUSTER]
    multiples = [(_level(each), each["podCountMultiple"]) for each in rules if _counts(each)]
    on_host = next((size for at, size in multiples if at == 0), 1)
    above = [Slices(at, size) for at, size in multiples if at != 0 and size > 1]
    unkept = (f"{SPEC} counts multiples in {len(above)} layers above the host, of which the first is kept",)
    return Wish(SPEC, must[-1] if must else None, on_host, above[0] if above else None, unkept=unkept[: len(above) > 1])


def _level(rule: Mapping[str, Any]) -> Level:
    layer = str(rule.get("layer", ""))[:253]
    return 0 if layer == _HOST else layer


def _counts(rule: Mapping[str, Any]) -> bool:
    size = rule.get("podCountMultiple")
    return isinstance(size, int) and not isinstance(size, bool) and 0 < size < 1_000_000
