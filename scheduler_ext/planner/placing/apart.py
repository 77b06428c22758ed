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
    row = view.fabric.switch_of[min(tier, view.fabric.tiers)]
    taken: set[int] = set()
    for key, other in view.gangs.items():
        if (
            key.namespace != gang.key.namespace
            or key == gang.key
            or other.apart_set != gang.apart_set
            or other.apart != tier
        ):
            continue
        held = (view.host_of(member) for member in other.members.values())
        taken.update(int(row[host]) for host in (*held, *planned(key)) if host is not None)
    barred: NDArray[np.bool_] = np.isin(row, list(taken))
    return barred


def either(one: NDArray[np.bool_] | None, other: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Mark the rows that one of two tables marks; None marks none."""
    if one is None or other is None:
        return other if one is None else one
    both: NDArray[np.bool_] = one | other
    return both
