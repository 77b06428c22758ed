"""Find the hosts from which a gang stays away: domains that hold, or are planned for, other gangs of its set."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.scheduler_ext.cache.cache import GangView
from turnout.scheduler_ext.cache.gang import Gang


def barred_rows(view: GangView, gang: Gang, planned: Callable[[GangKey], Iterable[int]]) -> NDArray[np.bool_] | None:
    """Mark the rows of domains that the gang may not use; None where it shares domains.

    planned: the hosts in the plan of a gang that goes before this one. Sets are bounded by their namespace.
    """
    tier = gang.apart
    if tier is None:
        return None
    fabric, barred = view.fabric, np.zeros(view.fabric.switch_of.shape[1], np.bool_)
    taken: dict[int, set[int]] = {}  # switches by tier
    for key, other in view.gangs.items():
        if key.namespace != gang.key.namespace or key == gang.key or other.apart_set != gang.apart_set:
            continue
        if other.apart is None:
            continue
        wider = min(max(tier, other.apart), fabric.tiers)  # neither may share a domain of its own tier with the other
        held = (view.host_of(member) for member in other.members.values())
        hosts = (host for host in (*held, *planned(key)) if host is not None)
        taken.setdefault(wider, set()).update(int(fabric.switch_of[wider][host]) for host in hosts)
    for wider, switches in taken.items():
        barred |= np.isin(fabric.switch_of[wider], list(switches))
    return barred


def either(one: NDArray[np.bool_] | None, other: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Mark the rows that one of two tables marks; None marks none."""
    if one is None or other is None:
        return other if one is None else one
    both: NDArray[np.bool_] = one | other
    return both
