"""Kueue's words on a pod: `podset-*-topology`, whose levels are keys of node labels."""

from __future__ import annotations

import json
from collections.abc import Mapping

from turnout.jobs.wishes.model import Mode, Slices, Wish
from turnout.jobs.wishes.notes import count, level

_KUEUE = "kueue.x-k8s.io/podset-"
REQUIRED, PREFERRED = f"{_KUEUE}required-topology", f"{_KUEUE}preferred-topology"
UNCONSTRAINED = f"{_KUEUE}unconstrained-topology"
SLICE_LEVEL, SLICE_SIZE = f"{_KUEUE}slice-required-topology", f"{_KUEUE}slice-size"
LAYERS = f"{_KUEUE}slice-required-topology-constraints"


def read(notes: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return what the annotations of a pod say; None when they say nothing."""
    source = next((key for key in (REQUIRED, PREFERRED, UNCONSTRAINED, SLICE_LEVEL, LAYERS) if key in notes), None)
    if source is None:
        return None
    mode = Mode.FILL if source == UNCONSTRAINED and notes[source].lower() == "true" else Mode.NEAR
    unkept: list[str] = []
    slices = _slices(notes, faults, unkept)
    return Wish(source, level(notes, REQUIRED, faults), slices=slices, mode=mode, unkept=tuple(unkept))


def _slices(notes: Mapping[str, str], faults: list[str], unkept: list[str]) -> Slices | None:
    """Return the outermost layer of slices, which is the one that is kept."""
    if (at := level(notes, SLICE_LEVEL, faults)) is not None:
        size = count(notes, SLICE_SIZE, faults)
        if size is None:
            unkept.append(f"{SLICE_LEVEL} has no meaning without {SLICE_SIZE}")
            return None
        return Slices(at, size)
    if LAYERS not in notes:
        return None
    try:
        layers = [Slices(str(each["topology"]), int(each["size"])) for each in json.loads(notes[LAYERS][:4096])]
    except (ValueError, TypeError, KeyError, RecursionError):
        faults.append(f"{LAYERS} cannot be read: it must be a JSON list of topology and size")
        return None
    if len(layers) > 1:
        unkept.append(f"{LAYERS} has {len(layers)} layers, of which the first is kept")
    return layers[0] if layers and layers[0].size > 0 else None
