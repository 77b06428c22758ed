"""Writes merged stack traces for people and tools: text, JSON, pictures, and input for flame graph programs.

Pictures are drawn in svg.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from turnout.launcher.health.rank_sets import folded, label
from turnout.launcher.health.stack_traces.merge import Node, fold
from turnout.launcher.health.stack_traces.model import WorldStacks
from turnout.launcher.health.stack_traces.outliers import Group, Outliers, find_outliers
from turnout.launcher.health.stack_traces.svg import picture

MOST_GROUPS = 20  # groups described one by one
MOST_TEXT_LINES = 2_000  # lines of one tree
_STATES = {
    "D": "in the kernel, not to be interrupted",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended, not yet waited for",
}


@dataclass(frozen=True, slots=True)
class StackReport:
    """The merged stacks of a world and what they show."""

    world: int
    python: Node
    native: Node
    outliers: Outliers
    states: tuple[tuple[str, int], ...]  # unusual process states, with their ranks
    why: tuple[tuple[str, int], ...]  # reasons for missing stacks, with their ranks

    @property
    def suspects(self) -> int:
        """Return the suspect ranks."""
        ranks = 0
        for group in self.outliers.suspect_groups:
            ranks |= group.ranks
        return ranks


def merge(gathered: WorldStacks) -> StackReport:
    """Merge the stacks of all ranks, and find the suspect ones."""
    states, why = dict[str, int](), dict[str, int]()
    for rank, stacks in gathered.showings.items():
        if odd := _STATES.get(stacks.state, ""):
            states[odd] = states.get(odd, 0) | 1 << rank
    for rank, reason in gathered.why.items():
        why[reason] = why.get(reason, 0) | 1 << rank
    return StackReport(
        gathered.world,
        fold({rank: stacks.python for rank, stacks in gathered.showings.items()}),
        fold({rank: stacks.native for rank, stacks in gathered.showings.items()}),
        find_outliers(gathered),
        tuple(sorted(states.items())),
        tuple(sorted(why.items())),
    )


def files(merged: StackReport) -> dict[str, bytes]:
    """Return the files to write, by the guide's names. A kind of stacks that no rank has gets an empty picture.

    Source: DL-115, DL-120; docs/facts/dlrover.md 7
    """
    content = {"stacks.txt": text(merged).encode(), "stacks.json": as_json(merged)}
    verdict_lines = verdict(merged)
    for name, title, root in (("py_stack", "Python", merged.python), ("cpp_stack", "C", merged.native)):
        lines = verdict_lines if root.children else [f"no rank shows any {title} frame"]
        head = f"{title} stacks of {merged.world} ranks"
        content[f"{name}.svg"] = picture(head, lines, root, merged.world).encode()
        content[name] = flame_lines(root, merged.world).encode()
    return content


def verdict(merged: StackReport) -> list[str]:
    """Describe the result in a few lines, suspect ranks and their evidence first."""
    outliers, world = merged.outliers, merged.world
    lines = [
        f"{_ranks(group.ranks)} {_stand(group.ranks)} apart: {group}" for group in outliers.suspect_groups[:MOST_GROUPS]
    ]
    if len(outliers.suspect_groups) > MOST_GROUPS:
        lines.append(f"and {len(outliers.suspect_groups) - MOST_GROUPS} more groups stand apart")
    lines += _crowd(outliers.majority)
    if outliers.silent:
        lines.append(f"{_ranks(outliers.silent)} of {world}: no stack")
    lines += [f"{_ranks(ranks)}: {reason}" for reason, ranks in merged.why[:MOST_GROUPS]]
    lines += [f"{_ranks(ranks)}: {odd}" for odd, ranks in merged.states]
    return lines


def _crowd(crowd: tuple[Group, ...]) -> list[str]:
    if len(crowd) == 1:
        return [f"{_ranks(crowd[0].ranks)} {_stand(crowd[0].ranks)} in one place: {crowd[0]}"]
    lines = [f"{_ranks(group.ranks)} {_stand(group.ranks)} here: {group}" for group in crowd[:MOST_GROUPS]]
    if lines:
        lines.append("no place holds two thirds of the ranks, so nobody is named")
    return lines


def _ranks(ranks: int) -> str:
    return f"{'rank' if ranks.bit_count() == 1 else 'ranks'} {folded(ranks)}"


def _stand(ranks: int) -> str:
    return "stands" if ranks.bit_count() == 1 else "stand"


def text(merged: StackReport) -> str:
    """Write the result as text: the verdict, then the trees, indented where ranks part."""
    parts = [f"stacks of {merged.world} ranks", *verdict(merged)]
    for title, root in (("Python", merged.python), ("C", merged.native)):
        if root.children:
            parts += ["", f"{title}: {sum(node.threads for node in root.each())} threads", *_tree(root, merged.world)]
    return "\n".join(parts) + "\n"


def _tree(root: Node, world: int) -> list[str]:
    lines, left = list[str](), [(child, 0) for child in reversed(root.children)]
    while left:
        if len(lines) >= MOST_TEXT_LINES:
            return [*lines, "... the tree goes on: the JSON has it all"]
        node, depth = left.pop()
        at = f"  :{','.join(map(str, node.lines))}" if node.lines else ""
        lines.append(f"{'  ' * depth}{node.frame}@{label(node.ranks, world)}{at}")
        parts = len(node.children) > 1 or (node.ends and node.children)
        left += [(child, depth + 1 if parts else depth) for child in reversed(node.children)]
    return lines


def flame_lines(root: Node, world: int) -> str:
    """Write one line per different stack, as the guide's tool does for flamegraph.pl.

    Source: docs/facts/dlrover.md 7; DL-116
    """
    return "".join(f"{';'.join(path)} 1\n" for path in _paths(root, world, ()))


def _paths(node: Node, world: int, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for child in node.children:
        way = (*path, f"{child.frame}@{label(child.ranks, world)}")
        if child.ends:
            yield way
        yield from _paths(child, world, way)


def as_json(merged: StackReport) -> bytes:
    """Write the result as JSON: the verdict and the trees, with sets of ranks in the guide's form."""
    outliers = merged.outliers
    result = {
        "world": merged.world,
        "outliers": folded(outliers.outliers),
        "silent": folded(outliers.silent),
        "apart": [_group(group) for group in outliers.suspect_groups],
        "crowd": [_group(group) for group in outliers.majority],
        "states": {odd: folded(ranks) for odd, ranks in merged.states},
        "why_silent": {reason: folded(ranks) for reason, ranks in merged.why},
        "python": [_node(child, merged.world) for child in merged.python.children],
        "native": [_node(child, merged.world) for child in merged.native.children],
    }
    return msgspec.json.encode(result)


def _group(group: Group) -> dict[str, Any]:
    return {"ranks": folded(group.ranks), "frame": str(group.at), "lines": group.lines}


def _node(node: Node, world: int) -> dict[str, Any]:
    return {
        "frame": f"{node.frame}@{label(node.ranks, world)}",
        "lines": node.lines,
        "threads": node.threads,
        "children": [_node(child, world) for child in node.children],
    }
