"""Write the tables of docs/wishes.md that come from code: `python -m hack.codegen.wishes --write`.

Without --write it compares. Which dialect states which term is found by reading examples with the real readers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from turnout.jobs.gang import Dialect, GangKey
from turnout.jobs.wishes import kai, koordinator, kueue, sets, volcano
from turnout.jobs.wishes.merge import wish_of_pod, wish_of_pod_group
from turnout.jobs.wishes.merge_table import RULES, MergeRule
from turnout.jobs.wishes.model import NOTHING, Wish
from turnout.kube import labels
from turnout.kube.objects import PodGroup
from turnout.scheduler_ext.cluster.composites import CompositeGroups
from turnout.scheduler_ext.cluster.gang import Sizing
from turnout.scheduler_ext.planner.place_gang import RELAXATIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "wishes.md"
_RULE = {"labelSelector": {"matchLabelKeys": ["part"]}, "networkTopology": {"highestTierAllowed": 1}}
_MUST = '{"gatherStrategy": [{"layer": "SpineLayer", "strategy": "MustGather"}]}'
_FOURS = (
    '{"gatherStrategy": [{"layer": "NodeTopologyLayer", "podCountMultiple": 4},'
    ' {"layer": "AccessLayer", "podCountMultiple": 8}]}'
)


def _wishes_of_pods(*notes: Mapping[str, str]) -> list[Wish]:
    return [wish_of_pod(each, []) for each in notes]


def _wish_of_tree() -> Wish:
    """Return the wish of an example of a PodGroup below a CompositePodGroup."""
    trees, key = CompositeGroups(), GangKey("default", "a", Dialect.NATIVE.value)
    spec = {"schedulingPolicy": {"gang": {"minGroupCount": 2}}}
    trees.put(msgspec.convert({"metadata": {"name": "set", "namespace": "default"}, "spec": spec}, PodGroup))
    trees.put_gang(key, "set", "", "")
    return trees.with_terms(key, Sizing(1, None, "", "")).wish


def statements() -> dict[str, list[Wish]]:
    """Return examples of each dialect, which together set every term that the dialect has."""
    subgroup = {"name": "s", "minMember": 1, "topologyConstraint": {"requiredTopologyLevel": "rack"}}
    return {
        "ours": _wishes_of_pods(
            {labels.TOPOLOGY: "required"},
            {labels.TOPOLOGY: "unconstrained"},
            {labels.PODS_PER_HOST_MULTIPLE: "4"},
            {labels.MESH: "dp=4,tp=2"},
            {labels.BALANCED: "true"},
            {labels.APART: "rack", labels.APART_SET: "set"},
            {labels.TOGETHER: "set/2"},
        ),
        "Kueue": _wishes_of_pods(
            {kueue.REQUIRED: "rack"},
            {kueue.UNCONSTRAINED: "true"},
            {kueue.SLICE_LEVEL: "rack", kueue.SLICE_SIZE: "4"},
            {kueue.GROUP: "set"},
        ),
        "Volcano": [
            *_wishes_of_pods({volcano.HIGHEST_TIER: "1"}, {volcano.MODE: "soft"}),
            wish_of_pod_group({"mode": "hard"}, [_RULE], None, {}),
        ],
        "koordinator": _wishes_of_pods(
            {koordinator.SPEC: _MUST}, {koordinator.SPEC: _FOURS}, {koordinator.GROUPS: '["default/a", "default/b"]'}
        ),
        "JobSet, LWS": _wishes_of_pods({sets.JOBSET: "rack"}, {sets.LWS: "block"}, {sets.LWS_SUBGROUP: "rack"}),
        "KAI": [
            *_wishes_of_pods({kai.REQUIRED: "rack"}, {kai.PREFERRED: "rack"}),
            kai.read_pod_group(1, None, [subgroup], {"requiredTopologyLevel": "block"}).wish,
        ],
        "Kubernetes": [wish_of_pod_group(None, None, {"topology": [{"key": "rack"}]}, {}), _wish_of_tree()],
    }


def _states(rule: MergeRule, wish: Wish) -> bool:
    """Return True if a statement sets the term of a rule. A statement that only prefers nearness sets `mode`."""
    fields = [name for name in rule.fields if getattr(wish, name) != getattr(NOTHING, name)]
    return bool(fields) or ("mode" in rule.fields and wish.only_prefers)


def merge_table() -> Iterator[str]:
    """Yield the lines of the merge table."""
    columns = statements()
    yield f"| term | | {' | '.join(columns)} | value that counts |"
    yield "| --- |" + " --- |" * (len(columns) + 2)
    for rule in RULES:
        cells = ["yes" if any(_states(rule, wish) for wish in wishes) else "–" for wishes in columns.values()]
        yield f"| {rule.term} | {'hard' if rule.is_hard else 'soft'} | {' | '.join(cells)} | {rule.merged_value} |"


def step_table() -> Iterator[str]:
    """Yield the lines of the table of soft terms that a plan gives up."""
    yield "| order | term | what is given up |"
    yield "| --- | --- | --- |"
    for at, step in enumerate(RELAXATIONS, 1):
        yield f"| {at} | `{step.term}` | {step.loss} |"


TABLES = {"merge": merge_table, "steps": step_table}


def page(text: str) -> str:
    """Return the page's text with newly generated tables. Raises ValueError if a marker is missing."""
    for name, lines in TABLES.items():
        begin, end = f"<!-- {name}: written by hack.codegen.wishes -->\n", f"<!-- end of {name} -->"
        before, marker, rest = text.partition(begin)
        _, end_marker, after = rest.partition(end)
        if not marker or not end_marker:
            raise ValueError(f"{PAGE.name} has no lines {begin.strip()} and {end}")
        text = before + marker + "\n" + "\n".join(lines()) + "\n\n" + end_marker + after
    return text


def main(arguments: list[str]) -> int:
    """Compare the page with the code, or with --write write it. Return 1 if it is stale, else 0."""
    text = PAGE.read_text()
    if "--write" in arguments:
        PAGE.write_text(page(text))
        return 0
    if page(text) == text:
        return 0
    print("docs/wishes.md is not as its code says: run python -m hack.codegen.wishes --write", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
