"""Kueue's placement terms on a pod: `podset-*-topology`, whose levels are keys of node labels."""

from __future__ import annotations

import json
from collections.abc import Mapping

from turnout.jobs.fields import MAX_COUNT, annotation_count, annotation_level, annotation_word, level_of_text
from turnout.jobs.wishes.model import Layer, Mode, Wish, nested

_KUEUE = "kueue.x-k8s.io/podset-"
REQUIRED, PREFERRED = f"{_KUEUE}required-topology", f"{_KUEUE}preferred-topology"
UNCONSTRAINED = f"{_KUEUE}unconstrained-topology"
SLICE_LEVEL, SLICE_SIZE = f"{_KUEUE}slice-required-topology", f"{_KUEUE}slice-size"
LAYERS = f"{_KUEUE}slice-required-topology-constraints"
GROUP = f"{_KUEUE}group-name"
_MAX_LAYERS = 3  # of slices, as in Kueue; further ones are ignored
_MAX_LIST_CHARS = 4096  # of the annotation LAYERS; a longer one is not read


def read(annotations: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return the terms in Kueue's annotations of a pod; None without any.

    The pods of one podset group are placed as one gang, even if they belong to several gangs. faults: receives a
    sentence for each unreadable value.
    """
    keys = (REQUIRED, PREFERRED, UNCONSTRAINED, SLICE_LEVEL, LAYERS, GROUP)
    source = next((key for key in keys if key in annotations), None)
    if source is None:
        return None
    mode = Mode.FILL if source == UNCONSTRAINED and annotations[source].lower() == "true" else Mode.NEAR
    ignored: list[str] = []
    layers = _layers(annotations, faults, ignored)
    together = annotation_word(annotations, GROUP, faults)
    required = annotation_level(annotations, REQUIRED, faults)
    return Wish(source, required, layers=layers, together=together, one_domain=bool(together), mode=mode,
                ignored=tuple(ignored))  # fmt: skip


def _layers(annotations: Mapping[str, str], faults: list[str], ignored: list[str]) -> tuple[Layer, ...]:
    """Return the layers of slices, the outermost first; () without any.

    annotations: of the pod. A single layer (SLICE_LEVEL) comes before a list (LAYERS), which is not read then. () also
    if the list of layers, or the size of a single layer, is unreadable or absent. faults: receives a sentence for each
    unreadable value. ignored: receives a sentence for each layer that is not used, and for a list that is not read.
    """
    if (level := annotation_level(annotations, SLICE_LEVEL, faults)) is not None:
        if LAYERS in annotations:
            ignored.append(f"{LAYERS} is not read, because {SLICE_LEVEL} is set, too")
        size = annotation_count(annotations, SLICE_SIZE, faults)
        if size is None:
            ignored.append(f"{SLICE_LEVEL} has no meaning without {SLICE_SIZE}")
            return ()
        return nested(SLICE_LEVEL, [Layer(level, size)], ignored)
    if LAYERS not in annotations:
        return ()
    if (chars := len(annotations[LAYERS])) > _MAX_LIST_CHARS:
        faults.append(f"{LAYERS} cannot be read: it has {chars} characters, and at most {_MAX_LIST_CHARS} are read")
        return ()
    layers = _read_list(annotations[LAYERS])
    if layers is None:
        faults.append(
            f"{LAYERS} cannot be read: it must be a JSON list of objects with a topology, the key of a node label, and "
            f"a size from 1 to {MAX_COUNT}"
        )
        return ()
    if len(layers) > _MAX_LAYERS:
        ignored.append(f"{LAYERS} has {len(layers)} layers, of which {_MAX_LAYERS} are kept")
    return nested(LAYERS, layers[:_MAX_LAYERS], ignored)


def _read_list(text: str) -> list[Layer] | None:
    """Return the layers of a JSON list of slices, in its order; None if a part of it is not as it must be.

    A larger size than MAX_COUNT is refused, since counts of pods are computed in 32 bits.
    """
    try:
        listed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(listed, list):
        return None
    layers = []
    for each in listed:
        topology, size = (each.get("topology"), each.get("size")) if isinstance(each, dict) else (None, None)
        level = level_of_text(topology) if isinstance(topology, str) else None
        if level is None or type(size) is not int or not 1 <= size <= MAX_COUNT:  # a bool is an int, too
            return None
        layers.append(Layer(level, size))
    return layers
