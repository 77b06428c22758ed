"""Our own words: `turnout.dev/topology` and those beside it."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from turnout.jobs.wishes.model import Mode, Wish
from turnout.jobs.wishes.notes import count, level
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
)
_KNOWN = {value for value in vars(labels).values() if isinstance(value, str) and value.startswith(_PREFIX)}
_LOOKED_AT = 8  # unknown annotations of one pod


def read(notes: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return what the annotations of a pod say; None when they say nothing."""
    wish = notes.get(labels.TOPOLOGY, "")
    if wish not in ("", *WORDS):
        faults.append(f"{labels.TOPOLOGY} is {wish[:40]!r}: it must be {', '.join(WORDS[:-1])} or {WORDS[-1]}")
    tier = level(notes, labels.TOPOLOGY_TIER, faults)
    multiple = count(notes, labels.PODS_PER_HOST_MULTIPLE, faults) or 1
    faults += _misspelt(notes)
    if wish not in WORDS:
        return Wish("", multiple=multiple) if multiple > 1 else None
    mode = {"unconstrained": Mode.FILL, "none": Mode.NONE}.get(wish, Mode.NEAR)
    narrowest = (1 if tier is None else tier) if wish == "required" else None
    unkept = () if tier is None or wish == "required" else (f"{labels.TOPOLOGY_TIER} has no meaning beside {wish}",)
    return Wish(labels.TOPOLOGY, narrowest, multiple, mode=mode, unkept=unkept)


def _misspelt(notes: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each annotation that reads nearly as one of ours for pods."""
    unknown = sorted(key for key in notes if key.startswith(_PREFIX) and key not in _KNOWN)
    for key in unknown[:_LOOKED_AT]:
        near = difflib.get_close_matches(key[:80], _OF_PODS, 1, 0.9)
        if near:
            yield f"{key[:80]} is not read: did you mean {near[0]}?"
