"""Find the hosts from which a gang stays away: domains that hold, or are planned for, other gangs of its set."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from turnout.jobs.gang import GangKey
from turnout.scheduler_ext.cache.cache import ClusterView
from turnout.scheduler_ext.cache.gang import Gang


def exclusive_rows(
    view: ClusterView, gang: Gang, planned: Callable[[GangKey], Iterable[int]]
) -> NDArray[np.bool_] | None:
    """Mark the rows of domains that the gang may not use; None where it shares domains.

    planned: the hosts in the plan of a gang that goes before this one. Sets are bounded by their namespace.
    """
    tier = gang.exclusive_tier
    if tier is None:
        return None
    fabric, excluded = view.fabric, np.zeros(view.fabric.switch_of.shape[1], np.bool_)
    used_switches: dict[int, set[int]] = {}  # switches by tier
    for key, other in view.gangs.items():
        if key.namespace != gang.key.namespace or key == gang.key or other.exclusive_set != gang.exclusive_set:
            continue
        if other.exclusive_tier is None:
            continue
        wider = min(
            max(tier, other.exclusive_tier), fabric.tiers
        )  # neither may share a domain of its own tier with the other
        member_hosts = (view.host_of(member) for member in other.members.values())
        hosts = (host for host in (*member_hosts, *planned(key)) if host is not None)
        used_switches.setdefault(wider, set()).update(int(fabric.switch_of[wider][host]) for host in hosts)
    for wider, switches in used_switches.items():
        excluded |= np.isin(fabric.switch_of[wider], list(switches))
    return excluded


def union_rows(one: NDArray[np.bool_] | None, other: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    """Mark the rows that one of two tables marks; None marks none."""
    if one is None or other is None:
        return other if one is None else one
    both: NDArray[np.bool_] = one | other
    return both
