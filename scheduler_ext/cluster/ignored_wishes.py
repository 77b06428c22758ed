"""Name in sentences, for the owner of a gang, the terms of its wishes that are read and not kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from operator import attrgetter

from turnout.jobs.gang import Dialect
from turnout.jobs.wishes.merge_table import MAX_MULTIPLE
from turnout.jobs.wishes.model import NOTHING, Level, Mode, Wish
from turnout.kube import labels
from turnout.scheduler_ext.cluster.gang import Gang
from turnout.scheduler_ext.cluster.member import GangMember
from turnout.scheduler_ext.cluster.view import ClusterView

_WHY = {
    "ResourceClaims": "its devices come from resource claims alone, whose room we do not know",
    "PodLevelGpus": "it asks for GPUs at the level of the pod",
}


def ignored_wishes(view: ClusterView, member: GangMember) -> Iterator[str]:
    """Yield a sentence for each term of a member's wish, and of its gang's wishes, that is not kept; nothing if all are
    kept.

    For a member with a wish whose GPUs the extender does not count (resource claims, or requests of the whole pod), one
    sentence about its own wish is all.
    """
    gang = view.gangs.get(member.membership.key)
    wish = member.membership.wish
    if wish.source and member.no_opinion_reason in _WHY:
        yield f"{wish.source} is not kept: {_WHY[member.no_opinion_reason]}"
        return
    is_single = member.membership.key.dialect == Dialect.ALONE.value
    if is_single and wish.source and wish.mode is Mode.NEAR:
        yield f"{wish.source} is not kept: the pod belongs to no gang, and has no index among pods of one owner"
    if gang is not None:
        yield from ignored_terms(gang)
        yield from _overruled_wishes(gang)
        yield from _members_outside_domain(view, gang)


def ignored_terms(gang: Gang) -> list[str]:
    """Return a sentence for each term of the gang's wishes that is not kept, without duplicates; [] for none.

    These are terms that a wish lists as ignored, levels that nothing here knows, and parts that contradict the rest
    of the wish or the gang's size. A term that gives way to another source is not among them (`_overruled_wishes`).
    """
    found = [sentence for wish in gang.terms.wishes for sentence in wish.ignored]
    for wish in gang.terms.wishes:
        for level in _unknown_levels(gang, wish):
            name = repr(str(level)[:80])
            found.append(f"{_level_source(wish, level)} names {name}, which is no level here: it counts as a leaf")
        found += _ignored_parts(gang, wish)
    found += _ignored_multiples(gang)
    return list(dict.fromkeys(found))


def _level_source(wish: Wish, level: Level) -> str:
    """Return the name of the annotation or field that states a level of a wish."""
    if wish.source == labels.TOPOLOGY and level == wish.required:
        return labels.TOPOLOGY_TIER
    return labels.APART if level == wish.exclusion.level and level not in wish.levels else wish.source


def _ignored_parts(gang: Gang, wish: Wish) -> Iterator[str]:
    """Yield a sentence for each part of a wish that contradicts another part or the gang's size; nothing if none
    does.
    """
    if wish.balanced and (wish.layers or wish.mesh or gang.terms.group_rules):
        yield f"{labels.BALANCED} is not kept, because the gang has layers, groups or a mesh"
    if wish.mesh and not _matches_mesh(gang, wish.mesh):
        yield f"{labels.MESH} is not kept: the gang has not as many accelerators, alike on each pod"
    if wish.exclusion.level is not None and not gang.exclusive_set:
        yield f"{labels.APART} is not kept without {labels.APART_SET}: the pod is in no set"


def _ignored_multiples(gang: Gang) -> Iterator[str]:
    """Yield a sentence for each multiple of pods on a host that is ignored, because the least common multiple of all is
    above MAX_MULTIPLE; nothing if all count.
    """
    runs = (layer.size for layer in gang.terms.layers_of_wishes if gang.known_tier(layer.level) == 0)
    for multiple in sorted({*gang.terms.multiples, *runs}):
        if gang.multiple % multiple:
            yield (
                f"{multiple} pods on a host, or a multiple of that, has no effect because {gang.multiple} is set, too, "
                f"and the least common multiple is above {MAX_MULTIPLE:,}"
            )


def _unknown_levels(gang: Gang, wish: Wish) -> list[Level]:
    """Return the levels of a wish that the map and the node labels do not know."""
    inner = [*(layer.level for layer in wish.layers), *(rule.level for rule in wish.groups)]
    levels = (*wish.levels, *inner, wish.exclusion.level)
    return [level for level in levels if level is not None and gang.tier_of(level) is None]


def _matches_mesh(gang: Gang, axes: tuple[tuple[str, int], ...]) -> bool:
    """Return False if the mesh has another number of ranks than the gang has accelerators.

    True also if no number of members is announced, if the members that have accelerators have different numbers of
    them, or if none has any. axes: (axis, ranks along it).
    """
    gpus = {member.gpus for member in gang.members.values() if member.gpus}
    return not gang.expected_pods or len(gpus) != 1 or prod(size for _, size in axes) == gang.expected_pods * max(gpus)


def _overruled_wishes(gang: Gang) -> Iterator[str]:
    """Yield a sentence for each wish that gives way to a hard term of another source, with both sources."""
    yield from _overruled_preferences(gang)
    grouped, together = _first(gang, attrgetter("groups")), _first(gang, attrgetter("together"))
    yield from overruled_runs(gang)
    for wish in gang.terms.wishes:
        if wish.groups and wish.groups != grouped.groups:
            yield f"the groups of {wish.source} are not kept, because {grouped.source} states others"
        if wish.together and wish.together != together.together:
            yield f"{wish.source}: the set {wish.together[:80]} is not kept, because {together.source} names another"


def overruled_runs(gang: Gang) -> Iterator[str]:
    """Yield a sentence for each wish with a run of ranks that gives way to a run of another wish, with both sources.

    A run on one host is no such run: its size counts as a multiple.
    """
    kept_runs = gang.layers
    runs_of = [(wish.source, _runs_above_hosts(gang, wish)) for wish in gang.terms.wishes]
    for source, runs in runs_of:
        lost_sizes = [size for tier, size in runs if (tier, size) not in kept_runs]
        others = ((other, run) for other, other_runs in runs_of for run in other_runs if run not in runs)
        other, (_, kept_size) = next((each for each in others if each[1] in kept_runs), ("", (0, 0)))
        if lost_sizes and kept_size:
            yield (
                f"the runs of {lost_sizes[0]} ranks of {source} are not kept, "
                f"because {other} states runs of {kept_size}"
            )


def _runs_above_hosts(gang: Gang, wish: Wish) -> list[tuple[int, int]]:
    """Return (tier, ranks) for each run of ranks in a wish that is no run on one host. An unknown level is a leaf."""
    return [(tier, layer.size) for layer in wish.layers if (tier := gang.known_tier(layer.level))]


def _first(gang: Gang, term: Callable[[Wish], object]) -> Wish:
    """Return the first of the gang's wishes that states a term; NOTHING if no wish states it."""
    return next((wish for wish in gang.terms.wishes if term(wish)), NOTHING)


def _overruled_preferences(gang: Gang) -> Iterator[str]:
    """Yield a sentence for each preference that gives way to a hard term, with the source of that term."""
    hard_term_source = _first(gang, attrgetter("requires")).requires
    layered, grouped = _first(gang, attrgetter("layers")), _first(gang, attrgetter("groups"))
    for wish in gang.terms.preferences:
        if wish.only_prefers and hard_term_source and not wish.levels:
            yield f"{wish.source} is not kept, because {hard_term_source} requires a level"
        elif wish.mode is Mode.FILL and gang.has_any_level:
            source = hard_term_source or layered.source or grouped.source
            yield f"{wish.source} is not kept, because {source} names a level"
        if wish.mesh and layered.layers:
            yield f"{labels.MESH} is not kept, because {layered.source} states runs of ranks"


def _members_outside_domain(view: ClusterView, gang: Gang) -> Iterator[str]:
    """Yield a sentence if a member without an accelerator runs outside the domain that the gang must not leave.

    A scheduler that asks only about pods with accelerators binds such members on any node. The sentence names the first
    such member only.
    """
    if gang.tier is None or not gang.has_accelerators or not view.fabric.tiers:
        return
    if strays := _strays(view, gang, gang.tier):
        source = _first(gang, attrgetter("requires")).requires
        yield f"{source} is not kept for {strays[0]}, which has no accelerator: it was bound outside the gang's domain"


def _strays(view: ClusterView, gang: Gang, tier: int) -> list[str]:
    """Return the names of bound members without an accelerator outside the domain of the bound members with one,
    sorted.

    tier: of the domain. Empty if no member with an accelerator is bound.
    """
    row, rows = view.fabric.switch_of[min(tier, view.fabric.tiers)], view.snapshot.row_of
    if (domains := view.levels.label_domains(gang.terms.required_levels)) is not None:
        row = domains.row_domains
    bound = [(member, int(row[rows[member.node]])) for member in gang.members.values() if member.node in rows]
    domain = {switch for member, switch in bound if member.gpus}
    return sorted(member.name for member, switch in bound if not member.gpus and domain and switch not in domain)
