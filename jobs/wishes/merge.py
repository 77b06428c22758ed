"""The placement terms of a pod or a PodGroup, merged over all dialects that it uses: docs/wishes.md has the table.

Ours are `turnout.dev/topology` and related annotations. A mesh of parallelism is written as in PyTorch's DeviceMesh and
Megatron: `dp=4,pp=4,ep=8,tp=8`, the outermost axis first; consecutive ranks differ in the innermost axis, and
topology/mesh.py decides where the axes are placed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from turnout.jobs.fields import annotation_count, annotation_level, annotation_set, annotation_word
from turnout.jobs.wishes import kai, koordinator, kueue, sets, volcano
from turnout.jobs.wishes.merge_table import merge_terms
from turnout.jobs.wishes.model import MAX_GROUPS, MAX_TOGETHER, NOTHING, GroupRule, Level, Mode, Wish
from turnout.kube import labels

_PEERS = (kueue, volcano, koordinator, sets, kai)


def wish_of(notes: Mapping[str, str], faults: list[str]) -> Wish:
    """Return the placement terms in the annotations of a pod.

    Hard terms of all dialects count. faults: receives a sentence for each unreadable value.
    """
    own = _own_terms(notes, faults)
    theirs = [wish for each in _PEERS if (wish := each.read(notes, faults)) is not None]
    if own is not None and own.source == labels.TOPOLOGY:
        first, rest = own, theirs
    elif theirs:
        first, rest = theirs[0], theirs[1:]
        if own is not None:
            first = _with_own_terms(first, own)
    else:
        return own or NOTHING
    return _with_other_terms(*_with_gang_group(first, rest))


def _with_gang_group(first: Wish, rest: list[Wish]) -> tuple[Wish, list[Wish]]:
    """Return the terms with the group of gangs that another dialect names, and the other dialects' other terms."""
    partners = [each for each in rest if each.together and not first.together]
    if not partners:
        return first, rest
    joined = replace(first, together=partners[0].together, one_domain=partners[0].one_domain)
    return joined, [each for each in rest if each.source not in (koordinator.GROUPS, kueue.GROUP)]


def _with_other_terms(first: Wish, rest: list[Wish]) -> Wish:
    """Return the terms of all dialects, merged term by term, and a sentence for each term that is ignored.

    Hard terms are never dropped for a soft one. Where two hard terms cannot be kept together, the sentence names both
    sources.
    """
    requiring = next((each.source for each in rest if each.levels or each.groups or each.layers), "")
    if requiring and first.only_prefers:
        first = replace(first, ignored=(f"{first.source} is not kept beside {requiring}, which requires a level",))
    for each in rest:
        first = merge_terms(first, each)
    return first


def _with_own_terms(first: Wish, own: Wish) -> Wish:
    """Return another dialect's terms with our annotations added, which win where both cannot be kept."""
    merged = merge_terms(own, replace(first, required=None, other_levels=(), ignored=()))
    return replace(
        merged,
        source=first.source,
        required=first.required,
        other_levels=first.other_levels,
        mode=first.mode,
        ignored=(*own.ignored, *first.ignored, *merged.ignored[len(own.ignored) :]),
    )


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


def _own_terms(notes: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return the terms in our own annotations of a pod; None without any."""
    wish = notes.get(labels.TOPOLOGY, "")
    if wish not in ("", *WORDS):
        faults.append(f"{labels.TOPOLOGY} is {wish[:40]!r}: it must be {', '.join(WORDS[:-1])} or {WORDS[-1]}")
    tier = annotation_level(notes, labels.TOPOLOGY_TIER, faults)
    multiple = annotation_count(notes, labels.PODS_PER_HOST_MULTIPLE, faults) or 1
    faults += _misspelt(notes)
    besides = _other_annotations(notes, faults)
    source = next((key for key in (labels.TOPOLOGY, *_BESIDES) if key in notes), "")
    if wish not in WORDS:
        return replace(besides, source=source, multiple=multiple) if source or multiple > 1 else None
    return _in_mode(replace(besides, source=labels.TOPOLOGY, multiple=multiple), wish, tier, notes)


def _in_mode(terms: Wish, wish: str, tier: Level | None, notes: Mapping[str, str]) -> Wish:
    """Return the terms with a word of `topology`, and a sentence for each term that has no meaning beside it."""
    mode = {"unconstrained": Mode.FILL, "none": Mode.NONE}.get(wish, Mode.NEAR)
    unkept = list(terms.ignored)
    if wish == "required":
        terms = replace(terms, required=1 if tier is None else tier)
    elif tier is not None:
        unkept.insert(0, f"{labels.TOPOLOGY_TIER} has no meaning beside {wish}")
    if mode is not Mode.NEAR and (terms.mesh or terms.balanced):
        terms = replace(terms, mesh=(), balanced=False)
        unkept.append(f"{labels.MESH if labels.MESH in notes else labels.BALANCED} has no meaning beside {wish}")
    return replace(terms, mode=mode, ignored=tuple(unkept))


def _other_annotations(notes: Mapping[str, str], faults: list[str]) -> Wish:
    """Return the terms of our annotations other than `topology`."""
    balanced = notes.get(labels.BALANCED, "false")
    if balanced not in ("true", "false"):
        faults.append(f"{labels.BALANCED} is {balanced[:40]!r}: it must be true or false")
    exclusive_level, exclusive_set = (
        annotation_level(notes, labels.APART, faults),
        annotation_word(notes, labels.APART_SET, faults),
    )
    together, together_of = annotation_set(notes, labels.TOGETHER, MAX_TOGETHER, faults)
    unkept = (
        (f"{labels.APART_SET} has no meaning without {labels.APART}",)
        if exclusive_set and exclusive_level is None
        else ()
    )
    return Wish(
        mesh=_read_mesh(notes, faults),
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


AXES = ("dp", "pp", "cp", "ep", "tp")
MOST_RANKS = 65_536
_AXIS = re.compile(r"([a-z]{1,8})=([1-9][0-9]{0,4})")


def _read_mesh(notes: Mapping[str, str], faults: list[str]) -> tuple[tuple[str, int], ...]:
    """Return (axis, ranks along it), the outermost first; () if it is absent or unreadable."""
    text = notes.get(labels.MESH)
    if text is None:
        return ()
    found = [_AXIS.fullmatch(part.strip()) for part in text[:200].split(",")]
    axes = [(each[1], int(each[2])) for each in found if each]
    names = [name for name, _ in axes]
    good = len(axes) == len(found) and set(names) <= set(AXES) and len(set(names)) == len(names)
    if not good or prod(size for _, size in axes) > MOST_RANKS or len(text) > 200:
        expected = f"each of {', '.join(AXES)} at most once, with {MOST_RANKS} ranks in all at most"
        faults.append(f"{labels.MESH} is {text[:60]!r}: it must be as dp=4,pp=2,tp=8, {expected}")
        return ()
    return tuple(axes)


_MOST_TIER = 99
_MOST_MARKS = 8
_MOST_COUNT = 1_000_000
MOST_ROLES = 64


def wish_of_group(topology: object, policies: object, constraints: object, notes: Mapping[str, str]) -> Wish:
    """Return the placement terms of a PodGroup. Every argument but `notes` may have any type.

    topology: Volcano's networkTopology. policies: Volcano's subGroupPolicy. constraints: the schedulingConstraints of
    Kubernetes. notes: the annotations, which count if the spec has no terms.
    """
    unkept: list[str] = []
    groups = _groups(policies, unkept)
    if isinstance(topology, dict):
        hard = topology.get("mode", "hard") == "hard"
        return Wish("spec.networkTopology", _allowed(topology) if hard else None, groups=groups, ignored=tuple(unkept))
    if isinstance(constraints, dict) and (keys := _keys(constraints)):
        return Wish("spec.schedulingConstraints.topology", keys[-1], groups=groups, ignored=tuple(unkept))
    if groups or unkept:
        return Wish("spec.subGroupPolicy", groups=groups, ignored=tuple(unkept))
    return wish_of_notes(notes)


def wish_of_notes(notes: Mapping[str, str]) -> Wish:
    """Return the placement terms in the annotations of a PodGroup. Unreadable values are reported as ignored."""
    faults: list[str] = []
    noted = wish_of(notes, faults)
    return replace(noted, ignored=(*noted.ignored, *faults)) if faults else noted or NOTHING


def native_min(policy: object) -> int | None:
    """Return how many pods of Kubernetes' own PodGroup start together, >= 1; None if it does not tell."""
    gang = policy.get("gang") if isinstance(policy, dict) else None
    least = gang.get("minCount") if isinstance(gang, dict) else None
    return least if isinstance(least, int) and not isinstance(least, bool) and least > 0 else None


def constraint_level(constraints: object) -> Level | None:
    """Return the level of Kubernetes' schedulingConstraints, which may have any type; None without one."""
    keys = _keys(constraints) if isinstance(constraints, dict) else []
    return keys[-1] if keys else None


def least_by_role(minimums: object) -> tuple[tuple[str, int], ...]:
    """Return how many pods of each task must start, from Volcano's minTaskMember, which may have any type."""
    if not isinstance(minimums, dict):
        return ()
    pairs = sorted((key, value) for key, value in minimums.items() if isinstance(key, str) and _counts(value))
    return tuple(pairs[:MOST_ROLES])


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST_COUNT


def _count(value: object) -> int:
    return value if isinstance(value, int) and _counts(value) else 0


def _allowed(topology: Mapping[str, Any]) -> Level:
    """Return the widest allowed level: by name, else by number, else a leaf."""
    name, tier = topology.get("highestTierName"), topology.get("highestTierAllowed")
    if isinstance(name, str) and name:
        return name[:253]
    return tier if isinstance(tier, int) and 0 <= tier <= _MOST_TIER else 1


def _keys(constraints: Mapping[str, Any]) -> list[str]:
    """Return the keys of node labels, the narrowest last."""
    listed = constraints.get("topology")
    each = listed if isinstance(listed, list) else []
    return [rule["key"][:253] for rule in each if isinstance(rule, dict) and isinstance(rule.get("key"), str)]


def _groups(policies: object, unkept: list[str]) -> tuple[GroupRule, ...]:
    """Return the rules of Volcano's subGroupPolicy, with a sentence for each that is not kept."""
    listed = policies if isinstance(policies, list) else []
    if len(listed) > MAX_GROUPS:
        unkept.append(f"spec.subGroupPolicy has {len(listed)} entries, of which {MAX_GROUPS} are kept")
    rules = (_rule(each, unkept) for each in listed[:MAX_GROUPS] if isinstance(each, dict))
    return tuple(rule for rule in rules if rule is not None)


def _rule(policy: Mapping[str, Any], unkept: list[str]) -> GroupRule | None:
    """Return the group rule of a subGroupPolicy; None if it selects by matchExpressions.

    unkept: gets a sentence then.
    """
    name = str(policy.get("name", ""))[:63]
    selector = policy.get("labelSelector")
    selector = selector if isinstance(selector, dict) else {}
    if selector.get("matchExpressions"):
        unkept.append(f"spec.subGroupPolicy {name} is not kept: it selects by matchExpressions")
        return None
    labels, keys = selector.get("matchLabels"), policy.get("matchLabelKeys")
    marks = sorted((str(key), str(value)) for key, value in (labels if isinstance(labels, dict) else {}).items())
    named = [str(key) for key in (keys if isinstance(keys, list) else [])]
    topology = policy.get("networkTopology")
    hard = isinstance(topology, dict) and topology.get("mode", "hard") == "hard"
    size, least = (_count(policy.get(key)) for key in ("subGroupSize", "minSubGroups"))
    level = _allowed(topology) if hard and isinstance(topology, dict) else None
    return GroupRule(name, tuple(marks[:_MOST_MARKS]), tuple(named[:_MOST_MARKS]), size, least, level)
