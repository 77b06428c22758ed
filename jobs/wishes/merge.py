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
from turnout.jobs.wishes.model import MAX_GROUPS, MAX_TOGETHER, NOTHING, Exclusion, GroupRule, Level, Mode, Wish
from turnout.kube import labels

# The modules of the other dialects, in the order in which their terms count.
_DIALECTS = (kueue, volcano, koordinator, sets, kai)


def wish_of_pod(annotations: Mapping[str, str], faults: list[str]) -> Wish:
    """Return the placement terms in the annotations of a pod, merged over all dialects; NOTHING without any.

    Hard terms of all dialects count; two that contradict each other are merged by merge_table. faults: receives a
    sentence for each unreadable value, and for each name of an annotation that looks misspelt.
    """
    own_terms = _own_terms(annotations, faults)
    dialect_terms = [wish for each in _DIALECTS if (wish := each.read(annotations, faults)) is not None]
    if own_terms is not None and own_terms.source == labels.TOPOLOGY:
        first, other_terms = own_terms, dialect_terms
    elif dialect_terms:
        first, other_terms = dialect_terms[0], dialect_terms[1:]
        if own_terms is not None:
            first = _with_own_terms(first, own_terms)
    else:
        return own_terms or NOTHING
    return _with_other_terms(*_with_gang_group(first, other_terms))


def _with_gang_group(first: Wish, rest: list[Wish]) -> tuple[Wish, list[Wish]]:
    """Return (`first`, `rest`) so that `first` has a group of gangs: its own, else that of the first term in `rest`
    with one.

    In the second case the terms of `rest` that only name a group are left out; else both are unchanged, also if neither
    has a group. first: the terms that win a conflict. rest: the terms of the other dialects.
    """
    terms_with_group = [each for each in rest if each.together and not first.together]
    if not terms_with_group:
        return first, rest
    joined = replace(first, together=terms_with_group[0].together, one_domain=terms_with_group[0].one_domain)
    return joined, [each for each in rest if each.source not in (koordinator.GROUPS, kueue.GROUP)]


def _with_other_terms(first: Wish, rest: list[Wish]) -> Wish:
    """Return the terms of all dialects, merged term by term by merge_terms().

    `ignored` of the result has a sentence for each term that is not kept. first: of two terms that contradict each
    other, its term is kept. A hard term is never dropped for a soft term: if `first` only prefers a placement and one
    of the rest requires one, a sentence says that the preference is not kept. rest: the terms of the other dialects, in
    the order in which they count.
    """
    source_of_hard_term = next((terms.source for terms in rest if terms.levels or terms.groups or terms.layers), "")
    if source_of_hard_term and first.only_prefers:
        first = replace(first, ignored=(f"{first.source} is not kept, because {source_of_hard_term} requires a level",))
    for each in rest:
        first = merge_terms(first, each)
    return first


def _with_own_terms(first: Wish, own: Wish) -> Wish:
    """Return another dialect's terms with the terms of our annotations added.

    If two terms contradict each other, ours count. first: the terms of the other dialect, which decide the required
    level and the mode. own: ours.
    """
    merged = merge_terms(own, replace(first, required=None, other_levels=(), ignored=()))
    return replace(
        merged,
        source=first.source,
        required=first.required,
        other_levels=first.other_levels,
        mode=first.mode,
        ignored=(*own.ignored, *first.ignored, *merged.ignored[len(own.ignored) :]),
    )


# The values of the annotation `topology`.
WORDS = ("required", "preferred", "unconstrained", "none")
_PREFIX = "turnout.dev/"
_POD_ANNOTATIONS = (
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
_OTHER_TERMS = (labels.MESH, labels.BALANCED, labels.APART, labels.TOGETHER)
_MAX_UNKNOWN_NAMES = 8  # unknown annotations of one pod that are compared with known ones


def _own_terms(annotations: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return the terms in our own annotations of a pod; None without any.

    If the annotation `topology` is absent or unreadable, `topology-tier` has no effect. faults: receives a sentence for
    each unreadable value, and for each name that looks misspelt.
    """
    wish = annotations.get(labels.TOPOLOGY, "")
    if wish not in ("", *WORDS):
        faults.append(f"{labels.TOPOLOGY} is {wish[:40]!r}: it must be {', '.join(WORDS[:-1])} or {WORDS[-1]}")
    tier = annotation_level(annotations, labels.TOPOLOGY_TIER, faults)
    multiple = annotation_count(annotations, labels.PODS_PER_HOST_MULTIPLE, faults) or 1
    faults += _faults_of_misspelt_names(annotations)
    terms = _other_annotations(annotations, faults)
    source = next((key for key in (labels.TOPOLOGY, *_OTHER_TERMS) if key in annotations), "")
    if wish not in WORDS:
        return replace(terms, source=source, multiple=multiple) if source or multiple > 1 else None
    return _in_mode(replace(terms, source=labels.TOPOLOGY, multiple=multiple), wish, tier, annotations)


def _in_mode(terms: Wish, wish: str, tier: Level | None, annotations: Mapping[str, str]) -> Wish:
    """Return the terms, changed as the value of the annotation `topology` requires.

    wish: the value, one of WORDS. tier: of the annotation `topology-tier`, None without it. annotations: of the pod. A
    term that has no effect with this value is removed, and `ignored` of the result has a sentence about it.
    """
    mode = {"unconstrained": Mode.FILL, "none": Mode.NONE}.get(wish, Mode.NEAR)
    ignored = list(terms.ignored)
    if wish == "required":
        terms = replace(terms, required=1 if tier is None else tier)
    elif tier is not None:
        ignored.insert(0, f"{labels.TOPOLOGY_TIER} has no meaning with {labels.TOPOLOGY}: {wish}")
    if mode is not Mode.NEAR and (terms.mesh or terms.balanced):
        terms = replace(terms, mesh=(), balanced=False)
        lost_term = labels.MESH if labels.MESH in annotations else labels.BALANCED
        ignored.append(f"{lost_term} has no meaning with {labels.TOPOLOGY}: {wish}")
    return replace(terms, mode=mode, ignored=tuple(ignored))


def _other_annotations(annotations: Mapping[str, str], faults: list[str]) -> Wish:
    """Return the terms in our annotations other than `topology` and `topology-tier`; their `source` is "".

    faults: receives a sentence for each unreadable value.
    """
    balanced = annotations.get(labels.BALANCED, "false")
    if balanced not in ("true", "false"):
        faults.append(f"{labels.BALANCED} is {balanced[:40]!r}: it must be true or false")
    exclusion = Exclusion(
        annotation_level(annotations, labels.APART, faults), annotation_word(annotations, labels.APART_SET, faults)
    )
    together, together_of = annotation_set(annotations, labels.TOGETHER, MAX_TOGETHER, faults)
    ignored = (
        (f"{labels.APART_SET} has no meaning without {labels.APART}",)
        if exclusion.set_name and exclusion.level is None
        else ()
    )
    return Wish(
        mesh=_read_mesh(annotations, faults),
        balanced=balanced == "true",
        exclusion=exclusion,
        together=together,
        together_of=together_of,
        ignored=ignored,
    )


def _faults_of_misspelt_names(annotations: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each annotation `turnout.dev/...` that does not exist and resembles one of ours for pods.

    Only the first _MAX_UNKNOWN_NAMES of the names that do not exist, sorted, are compared.
    """
    unknown = sorted(key for key in annotations if key.startswith(_PREFIX) and key not in _KNOWN)
    for key in unknown[:_MAX_UNKNOWN_NAMES]:
        matches = difflib.get_close_matches(key[:80], _POD_ANNOTATIONS, 1, 0.9)
        if matches:
            yield f"{key[:80]} is not read: did you mean {matches[0]}?"


AXES = ("dp", "pp", "cp", "ep", "tp")  # data, pipeline, context, expert and tensor parallelism
MOST_RANKS = 65_536  # ranks of a mesh
_AXIS = re.compile(r"([a-z]{1,8})=([1-9][0-9]{0,4})")


def _read_mesh(annotations: Mapping[str, str], faults: list[str]) -> tuple[tuple[str, int], ...]:
    """Return (axis, ranks along it), the outermost axis first, from our annotation; () if it is absent or unreadable.

    faults: receives a sentence if it is unreadable.
    """
    text = annotations.get(labels.MESH)
    if text is None:
        return ()
    matches = [_AXIS.fullmatch(part.strip()) for part in text[:200].split(",")]
    axes = [(each[1], int(each[2])) for each in matches if each]
    names = [name for name, _ in axes]
    is_valid = len(axes) == len(matches) and set(names) <= set(AXES) and len(set(names)) == len(names)
    if not is_valid or prod(size for _, size in axes) > MOST_RANKS or len(text) > 200:
        expected = f"each of {', '.join(AXES)} at most once, with {MOST_RANKS} ranks in all at most"
        faults.append(f"{labels.MESH} is {text[:60]!r}: it must be as dp=4,pp=2,tp=8, {expected}")
        return ()
    return tuple(axes)


_MAX_TIER = 99  # a larger tier number counts as absent
_MAX_LABELS = 8  # labels of one group rule
_MAX_COUNT = 1_000_000  # pods or groups; a larger number counts as absent
MAX_ROLES = 64  # roles with a minimum in one PodGroup


def wish_of_pod_group(topology: object, policies: object, constraints: object, annotations: Mapping[str, str]) -> Wish:
    """Return the placement terms of a PodGroup: those of its spec, else those of its annotations; NOTHING without any.

    Every argument but `annotations` may have any type. topology: Volcano's networkTopology. constraints: the
    schedulingConstraints of Kubernetes, which count without a topology. policies: Volcano's subGroupPolicy.
    annotations: of the PodGroup, which count only if the spec has no terms, not even soft or ignored ones.
    """
    ignored: list[str] = []
    groups = _group_rules(policies, ignored)
    if isinstance(topology, dict):
        hard = topology.get("mode", "hard") == "hard"
        return Wish(
            "spec.networkTopology", _widest_level(topology) if hard else None, groups=groups, ignored=tuple(ignored)
        )
    if isinstance(constraints, dict) and (keys := _label_keys(constraints)):
        return Wish("spec.schedulingConstraints.topology", keys[-1], groups=groups, ignored=tuple(ignored))
    if groups or ignored:
        return Wish("spec.subGroupPolicy", groups=groups, ignored=tuple(ignored))
    return wish_of_pod_group_annotations(annotations)


def wish_of_pod_group_annotations(annotations: Mapping[str, str]) -> Wish:
    """Return the placement terms in the annotations of a PodGroup, merged over all dialects; NOTHING without any.

    `ignored` of the result has a sentence for each unreadable value, too.
    """
    faults: list[str] = []
    wish = wish_of_pod(annotations, faults)
    return replace(wish, ignored=(*wish.ignored, *faults)) if faults else wish


def native_min(policy: object) -> int | None:
    """Return how many pods of Kubernetes' own PodGroup start together, >= 1; None if the PodGroup does not state it.

    policy: the schedulingPolicy in its spec, of any type.
    """
    gang = policy.get("gang") if isinstance(policy, dict) else None
    min_count = gang.get("minCount") if isinstance(gang, dict) else None
    return min_count if isinstance(min_count, int) and not isinstance(min_count, bool) and min_count > 0 else None


def constraint_level(constraints: object) -> Level | None:
    """Return the narrowest level of Kubernetes' schedulingConstraints, which may have any type; None without one."""
    keys = _label_keys(constraints) if isinstance(constraints, dict) else []
    return keys[-1] if keys else None


def min_pods_by_task(minimums: object) -> tuple[tuple[str, int], ...]:
    """Return (task, min pods) from Volcano's minTaskMember, sorted by task.

    minimums: the field, of any type. Entries that are no whole number from 1 to 999,999 are left out. Of the others, at
    most the first MAX_ROLES are returned. () if the field is absent or no object.
    """
    if not isinstance(minimums, dict):
        return ()
    pairs = sorted((key, value) for key, value in minimums.items() if isinstance(key, str) and _is_count(value))
    return tuple(pairs[:MAX_ROLES])


def _is_count(value: object) -> bool:
    """Return True for a whole number from 1 to _MAX_COUNT - 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MAX_COUNT


def _count(value: object) -> int:
    """Return a whole number from 1 to _MAX_COUNT - 1; 0 for any other value."""
    return value if isinstance(value, int) and _is_count(value) else 0


def _widest_level(topology: Mapping[str, Any]) -> Level:
    """Return the widest level that a networkTopology allows: by highestTierName, else highestTierAllowed, else 1 (a
    leaf).
    """
    name, tier = topology.get("highestTierName"), topology.get("highestTierAllowed")
    if isinstance(name, str) and name:
        return name[:253]
    return tier if isinstance(tier, int) and 0 <= tier <= _MAX_TIER else 1


def _label_keys(constraints: Mapping[str, Any]) -> list[str]:
    """Return the keys of node labels in `topology` of the schedulingConstraints of Kubernetes' PodGroup; [] for none.

    They are in the order of the object, in which the narrowest domain is last. Malformed items are left out, and a key
    is cut to 253 characters. constraints: the schedulingConstraints, unchecked.
    """
    raw_items = constraints.get("topology")
    items = raw_items if isinstance(raw_items, list) else []
    return [item["key"][:253] for item in items if isinstance(item, dict) and isinstance(item.get("key"), str)]


def _group_rules(policies: object, ignored: list[str]) -> tuple[GroupRule, ...]:
    """Return the rules of Volcano's subGroupPolicy, which may have any type; () if it is no list.

    Entries that are no objects are left out. ignored: receives a sentence for each other entry that is ignored. At most
    MAX_GROUPS entries are read.
    """
    listed = policies if isinstance(policies, list) else []
    if len(listed) > MAX_GROUPS:
        ignored.append(f"spec.subGroupPolicy has {len(listed)} entries: only the first {MAX_GROUPS} are used")
    rules = (_group_rule(each, ignored) for each in listed[:MAX_GROUPS] if isinstance(each, dict))
    return tuple(rule for rule in rules if rule is not None)


def _labels(value: Any) -> list[tuple[str, str]]:
    """Return the labels in a map as sorted pairs of texts; [] for another value."""
    return sorted((str(key), str(label)) for key, label in (value if isinstance(value, dict) else {}).items())


def _keys(value: Any) -> list[str]:
    """Return the entries of a list as texts; [] for another value."""
    return [str(key) for key in (value if isinstance(value, list) else [])]


def _group_rule(policy: Mapping[str, Any], ignored: list[str]) -> GroupRule | None:
    """Return the group rule of one entry of subGroupPolicy.

    None for an entry that selects by matchExpressions, or that has more than _MAX_LABELS labels or keys; then `ignored`
    receives a sentence. A malformed field counts as absent. Only a hard networkTopology gives a level.
    """
    name = str(policy.get("name", ""))[:63]
    selector = policy.get("labelSelector")
    selector = selector if isinstance(selector, dict) else {}
    if selector.get("matchExpressions"):
        ignored.append(f"spec.subGroupPolicy {name} is not kept: it selects by matchExpressions")
        return None
    pod_labels, group_keys = _labels(selector.get("matchLabels")), _keys(policy.get("matchLabelKeys"))
    for field, count in (("matchLabels", len(pod_labels)), ("matchLabelKeys", len(group_keys))):
        if count > _MAX_LABELS:  # with fewer labels the rule would select other pods
            ignored.append(
                f"spec.subGroupPolicy {name} is not kept: it has {count} {field}, at most {_MAX_LABELS} are read"
            )
            return None
    topology = policy.get("networkTopology")
    hard = isinstance(topology, dict) and topology.get("mode", "hard") == "hard"
    size, min_groups = (_count(policy.get(key)) for key in ("subGroupSize", "minSubGroups"))
    level = _widest_level(topology) if hard and isinstance(topology, dict) else None
    return GroupRule(name, tuple(pod_labels), tuple(group_keys), size, min_groups, level)
