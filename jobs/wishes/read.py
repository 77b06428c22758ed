"""Read a pod's wish: in our words if it uses them, else in those of another project, the first that says anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from turnout.jobs.wishes import kai, koordinator, kueue, ours, sets, volcano
from turnout.jobs.wishes.model import NOTHING, Wish
from turnout.kube import labels

_PEERS = (kueue, volcano, koordinator, sets, kai)


def wish_of(notes: Mapping[str, str], faults: list[str]) -> Wish:
    """Return the wish in the annotations of a pod.

    Our words besides `topology` (a multiple, a mesh, balanced, apart, together) count beside others' words. So does
    each required level, in any words. What else is said twice in other words is not kept, and told.

    faults: gets a sentence for each value that cannot be read.
    """
    own = ours.read(notes, faults)
    theirs = [wish for each in _PEERS if (wish := each.read(notes, faults)) is not None]
    if own is not None and own.source == labels.TOPOLOGY:
        first, rest = own, theirs
    elif theirs:
        first, rest = theirs[0], theirs[1:]
        if own is not None:
            first = _beside(first, own)
    else:
        return own or NOTHING
    beside = [each for each in rest if each.together and not first.together]
    if beside:
        first = replace(first, together=beside[0].together, one_domain=beside[0].one_domain)
        rest = [each for each in rest if each.source not in (koordinator.GROUPS, kueue.GROUP)]
    further = tuple((each.source, each.required) for each in rest if each.required is not None)
    if further and first.only_prefers:
        first = replace(first, unkept=(f"{first.source} is not kept beside {further[0][0]}, which requires a level",))
    unread = [each for each in rest if replace(each, required=None, unkept=()) != Wish(each.source) or not each.levels]
    unkept = tuple(f"{each.source} is not read beside {first.source}" for each in unread)
    return replace(first, further=further, unkept=first.unkept + unkept)


def _beside(first: Wish, own: Wish) -> Wish:
    """Return a wish in others' words with what ours say besides."""
    return replace(
        first,
        multiple=own.multiple if own.multiple > 1 else first.multiple,
        mesh=own.mesh,
        balanced=own.balanced,
        apart=first.apart if own.apart is None else own.apart,
        apart_set=own.apart_set or first.apart_set,
        together=own.together or first.together,
        together_of=own.together_of,
        one_domain=first.one_domain and not own.together,
        unkept=own.unkept + first.unkept,
    )
