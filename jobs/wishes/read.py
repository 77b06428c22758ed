"""The placement terms of a pod: ours if it uses them, else those of the first other dialect that it uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from turnout.jobs.wishes import kai, koordinator, kueue, ours, sets, volcano
from turnout.jobs.wishes.model import NOTHING, Wish
from turnout.kube import labels

_PEERS = (kueue, volcano, koordinator, sets, kai)


def wish_of(notes: Mapping[str, str], faults: list[str]) -> Wish:
    """Return the placement terms in the annotations of a pod.

    Our annotations other than `topology` are combined with another dialect's terms. So is each required level of any
    dialect. Other terms of a second dialect are ignored and reported. faults: receives a sentence for each unreadable
    value.
    """
    own = ours.read(notes, faults)
    theirs = [wish for each in _PEERS if (wish := each.read(notes, faults)) is not None]
    if own is not None and own.source == labels.TOPOLOGY:
        first, rest = own, theirs
    elif theirs:
        first, rest = theirs[0], theirs[1:]
        if own is not None:
            first = _with_own_terms(first, own)
    else:
        return own or NOTHING
    partners = [each for each in rest if each.together and not first.together]
    if partners:
        first = replace(first, together=partners[0].together, one_domain=partners[0].one_domain)
        rest = [each for each in rest if each.source not in (koordinator.GROUPS, kueue.GROUP)]
    further = tuple((each.source, each.required) for each in rest if each.required is not None)
    if further and first.only_prefers:
        first = replace(first, ignored=(f"{first.source} is not kept beside {further[0][0]}, which requires a level",))
    unread = [each for each in rest if replace(each, required=None, ignored=()) != Wish(each.source) or not each.levels]
    unkept = tuple(f"{each.source} is not read beside {first.source}" for each in unread)
    return replace(first, other_levels=further, ignored=first.ignored + unkept)


def _with_own_terms(first: Wish, own: Wish) -> Wish:
    """Return another dialect's terms with our annotations added. Ours win where they are set.

    The required level, layers and groups of the other dialect stay.
    """
    return replace(
        first,
        multiple=own.multiple if own.multiple > 1 else first.multiple,
        mesh=own.mesh,
        balanced=own.balanced,
        exclusive_level=first.exclusive_level if own.exclusive_level is None else own.exclusive_level,
        exclusive_set=own.exclusive_set or first.exclusive_set,
        together=own.together or first.together,
        together_of=own.together_of,
        one_domain=first.one_domain and not own.together,
        ignored=own.ignored + first.ignored,
    )
