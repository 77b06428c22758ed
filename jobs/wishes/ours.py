"""Our own placement terms: `turnout.dev/topology` and related annotations."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace

from turnout.jobs.wishes import mesh
from turnout.jobs.wishes.model import MAX_TOGETHER, Mode, Wish
from turnout.jobs.wishes.notes import count, level, set_of, word
from turnout.kube import labels

WORDS = ("required", "preferred", "unconstrained", "none")
_PREFIX = "turnout.dev/"
_OF_PODS = (
    labels.TOPOLOGY,
    labels.TOPOLOGY_TIER,
    labels.MIN_WORKERS,
    labels.MAX_WORKERS,
    labels.PODS_PER_HOST_MULTIPLE,
    labels.RANK,
    labels.MESH,
    labels.BALANCED,
    labels.APART,
    labels.APART_SET,
    labels.TOGETHER,
    labels.REPAIR,
)
_KNOWN = {value for value in vars(labels).values() if isinstance(value, str) and value.startswith(_PREFIX)}
_BESIDES = (labels.MESH, labels.BALANCED, labels.APART, labels.TOGETHER)
_LOOKED_AT = 8  # unknown annotations of one pod


def read(notes: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return the terms in the annotations of a pod; None without any."""
    wish = notes.get(labels.TOPOLOGY, "")
    if wish not in ("", *WORDS):
        faults.append(f"{labels.TOPOLOGY} is {wish[:40]!r}: it must be {', '.join(WORDS[:-1])} or {WORDS[-1]}")
    tier = level(notes, labels.TOPOLOGY_TIER, faults)
    multiple = count(notes, labels.PODS_PER_HOST_MULTIPLE, faults) or 1
    faults += _misspelt(notes)
    besides = _besides(notes, faults)
    source = next((key for key in (labels.TOPOLOGY, *_BESIDES) if key in notes), "")
    if wish not in WORDS:
        return replace(besides, source=source, multiple=multiple) if source or multiple > 1 else None
    mode = {"unconstrained": Mode.FILL, "none": Mode.NONE}.get(wish, Mode.NEAR)
    narrowest = (1 if tier is None else tier) if wish == "required" else None
    unkept: tuple[str, ...] = (
        () if tier is None or wish == "required" else (f"{labels.TOPOLOGY_TIER} has no meaning beside {wish}",)
    )
    unkept += besides.ignored
    if mode is not Mode.NEAR and (besides.mesh or besides.balanced):
        besides = replace(besides, mesh=(), balanced=False)
        unkept += (f"{labels.MESH if labels.MESH in notes else labels.BALANCED} has no meaning beside {wish}",)
    return replace(besides, source=labels.TOPOLOGY, required=narrowest, multiple=multiple, mode=mode, ignored=unkept)


def _besides(notes: Mapping[str, str], faults: list[str]) -> Wish:
    """Return the terms of our annotations other than `topology`."""
    balanced = notes.get(labels.BALANCED, "false")
    if balanced not in ("true", "false"):
        faults.append(f"{labels.BALANCED} is {balanced[:40]!r}: it must be true or false")
    exclusive_level, exclusive_set = level(notes, labels.APART, faults), word(notes, labels.APART_SET, faults)
    together, together_of = set_of(notes, labels.TOGETHER, MAX_TOGETHER, faults)
    unkept = (
        (f"{labels.APART_SET} has no meaning without {labels.APART}",)
        if exclusive_set and exclusive_level is None
        else ()
    )
    return Wish(
        mesh=mesh.read(notes, faults),
        balanced=balanced == "true",
        exclusive_level=exclusive_level,
        exclusive_set=exclusive_set,
        together=together,
        together_of=together_of,
        ignored=unkept,
    )


def _misspelt(notes: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each annotation whose name is similar to one of ours for pods."""
    unknown = sorted(key for key in notes if key.startswith(_PREFIX) and key not in _KNOWN)
    for key in unknown[:_LOOKED_AT]:
        matches = difflib.get_close_matches(key[:80], _OF_PODS, 1, 0.9)
        if matches:
            yield f"{key[:80]} is not read: did you mean {matches[0]}?"
