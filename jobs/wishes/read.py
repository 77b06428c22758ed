"""Read a pod's wish: in our words if it uses them, else in those of another project, the first that says anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from turnout.jobs.wishes import kai, koordinator, kueue, ours, sets
from turnout.jobs.wishes.model import NOTHING, Wish

_PEERS = (kueue, koordinator, sets, kai)


def wish_of(notes: Mapping[str, str], faults: list[str]) -> Wish:
    """Return the wish in the annotations of a pod.

    Our multiple a host counts beside a wish in others' words. What is said a second time in other words is not kept,
    and told. faults: gets a sentence for each value that cannot be read.
    """
    own = ours.read(notes, faults)
    theirs = [wish for each in _PEERS if (wish := each.read(notes, faults)) is not None]
    if own is not None and own.source:
        first, rest = own, theirs
    elif theirs:
        first, rest = theirs[0], theirs[1:]
        if own is not None:
            first = replace(first, multiple=own.multiple)
    else:
        return own or NOTHING
    unkept = tuple(f"{each.source} is not read beside {first.source}" for each in rest)
    return replace(first, unkept=first.unkept + unkept)
