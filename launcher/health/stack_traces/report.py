"""Finds suspect ranks by their stacks, and writes merged stacks as text, JSON, pictures, and input for flame graphs.

In a hang most ranks wait in one place of the program, and they wait for the ranks elsewhere. Only main threads count.
From the outermost frame inwards, the search follows the branch of the tree that two thirds of the ranks share. Ranks in
other branches are suspect, those that branch off first come first. If no branch has two thirds, the search ends.

Every set of ranks here (`ranks`, `silent`, `suspects`) is an int as a bit mask: bit r stands for rank r.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape  # xml.sax's escape would load all of urllib into each agent
from typing import Any

import msgspec

from turnout.launcher.health.stack_traces.stack_tree import Frame, StackNode, WorldStacks, fold, label, rank_set_text


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks in one place of the program."""

    ranks: int  # bit mask
    frame: Frame  # the innermost frame they share
    lines: tuple[int, ...]  # of that frame
    branch: Frame  # the frame at which they left the majority

    def __str__(self) -> str:
        lines = ":" + ",".join(map(str, self.lines)) if self.lines else ""
        return f"{self.frame}{lines}{f', by way of {self.branch}' if self.branch != self.frame else ''}"


@dataclass(frozen=True, slots=True)
class RankPlaces:
    """The places of all ranks of a world: the majority, the groups that left it, and the ranks without a stack."""

    majority: tuple[Group, ...]  # where the majority is: one group, or those into which it splits
    suspect_groups: tuple[Group, ...]  # groups that left the majority, the earliest first
    silent: int  # ranks without a stack, as a bit mask

    @property
    def outlier_ranks(self) -> int:
        """Return, as a bit mask, the ranks that left the majority, and those without a stack if others have one."""
        ranks = self.silent if self.majority else 0
        for group in self.suspect_groups:
            ranks |= group.ranks
        return ranks


def find_rank_places(world_stacks: WorldStacks) -> RankPlaces:
    """Find where the ranks stand, by the Python frames of their main threads: the majority, and the groups that left
    it.

    From the outermost frame inwards, the majority follows the branch with two thirds of the ranks that have a stack,
    until no branch has so many.
    """
    mains = {
        rank: [each for each in stacks.python if each.main] for rank, stacks in world_stacks.stacks_by_rank.items()
    }
    node: StackNode | None = fold(mains)
    assert node is not None
    enough, suspect_groups, majority = 2 * node.ranks.bit_count(), list[Group](), list[Group]()
    while node is not None:
        branches = _next_branches(node)
        if not branches or 3 * branches[0].ranks.bit_count() < enough:
            majority = [branch.group() for branch in branches]
            break
        suspect_groups += (branch.group() for branch in branches[1:])
        majority, node = (
            [Group(branches[0].ranks, branches[0].place.frame, branches[0].place.lines, branches[0].place.frame)],
            None if branches[0].ends else branches[0].place,
        )
    return RankPlaces(tuple(majority), tuple(suspect_groups), world_stacks.silent)


@dataclass(frozen=True, slots=True)
class _StackBranch:
    """How some ranks continue from a frame: into a child frame, or not at all."""

    ranks: int  # bit mask
    place: StackNode  # the frame into which they continue, or in which their stacks end
    ends: bool  # their stacks end in `place`

    def group(self) -> Group:
        """Return the group at the innermost frame that all these ranks share."""
        node = self.place
        while not self.ends and len(node.children) == 1 and not node.ends:
            node = node.children[0]
        return Group(self.ranks, node.frame, node.lines, self.place.frame)


def _next_branches(node: StackNode) -> list[_StackBranch]:
    """List how ranks continue from this frame: one branch for each child, and one for the ranks whose stacks end here.

    The branch with the most ranks comes first.
    """
    branches = [_StackBranch(child.ranks, child, ends=False) for child in node.children]
    if node.ends:
        branches.append(_StackBranch(node.ends, node, ends=True))
    return sorted(branches, key=lambda branch: (-branch.ranks.bit_count(), branch.ranks))


_WIDTH, _MARGIN, _ROW, _LETTER = 1_600, 10, 18, 6.7  # px; a letter of the font below

_NARROWEST = 0.5  # px; narrower boxes are not drawn
_FEWEST_LETTERS = 4  # a shorter label is not drawn

_COLOR_ALL, _COLOR_MOST, _COLOR_FEW = "#d5dce4", "#f3d489", "#ee8268"

_STYLE = (
    "text{font:11px Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1c2430}"
    ".title{font-size:16px;font-weight:bold}rect{stroke:#fff;stroke-width:1}g:hover rect{stroke:#1c2430}"
)


@dataclass(frozen=True, slots=True)
class _Box:
    """One rectangle of the flame graph."""

    node: StackNode
    x: float  # px from the left
    width: float  # px
    row: int  # depth of the frame, 0 for a child of the root


def draw_svg(title: str, lines: Sequence[str], root: StackNode, world: int) -> str:
    """Draw the tree as a flame graph in SVG. It is well-formed and has no script for any names.

    title, lines: text above the graph. world: number of ranks.
    """
    boxes = list(_boxes(root))
    top = _MARGIN + 24 + _ROW * (len(lines) + 2)
    height = top + _ROW * (1 + max((box.row for box in boxes), default=0)) + _MARGIN
    legend = ((_COLOR_ALL, "all that show a stack"), (_COLOR_MOST, "half of them or more"), (_COLOR_FEW, "fewer"))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
            f'viewBox="0 0 {_WIDTH} {height}">',
            f"<style>{_STYLE}</style>",
            '<rect width="100%" height="100%" fill="#fff"/>',
            f'<text class="title" x="{_MARGIN}" y="{_MARGIN + 14}">{_xml(title)}</text>',
            *(
                f'<text x="{_MARGIN}" y="{_MARGIN + 22 + _ROW * (at + 1)}">'
                f"{_xml(_shorten(line, _WIDTH - 2 * _MARGIN))}</text>"
                for at, line in enumerate(lines)
            ),
            *(
                f'<rect x="{_MARGIN + 190 * at}" y="{top - 24}" width="12" height="12" fill="{colour}"/>'
                f'<text x="{_MARGIN + 18 + 190 * at}" y="{top - 14}">{word}</text>'
                for at, (colour, word) in enumerate(legend)
            ),
            *(_box_svg(box, top, world, root.ranks.bit_count()) for box in boxes),
            "</svg>\n",
        ]
    )


def _boxes(root: StackNode) -> Iterator[_Box]:
    """Yield a box for each node below the root, except boxes that are too narrow to see.

    The width of a box is proportional to the number of different stacks below its node, not to the number of ranks.
    """
    stacks = _stacks(root)
    width_per_stack = (_WIDTH - 2 * _MARGIN) / max(1, stacks[id(root)])
    pending = [(root, float(_MARGIN), -1)]
    while pending:
        node, x, row = pending.pop()
        width = width_per_stack * stacks[id(node)]
        if width < _NARROWEST:
            continue
        if row >= 0:
            yield _Box(node, x, width, row)
        for child in node.children:
            pending.append((child, x, row + 1))
            x += width_per_stack * stacks[id(child)]


def _stacks(root: StackNode) -> dict[int, int]:
    """Count the different stacks that end at each node or below it."""
    counts = dict[int, int]()
    for node in reversed(list(root.each())):  # children before their parents
        counts[id(node)] = (node.ends > 0) + sum(counts[id(child)] for child in node.children)
    return counts


def _box_svg(box: _Box, top: int, world: int, present: int) -> str:
    """Return the SVG of one box.

    Its colour says which share of the ranks is in it. top: y of the first row, pixels. present: number of ranks with
    stacks.
    """
    node, y = box.node, top + _ROW * box.row
    label_text = f"{node.frame}@{label(node.ranks, world)}"
    lines = f", line {', '.join(map(str, node.lines))}" if node.lines else ""
    rank_count = node.ranks.bit_count()
    colour = _COLOR_ALL if rank_count == present else _COLOR_MOST if 2 * rank_count >= present else _COLOR_FEW
    words = _shorten(label_text, box.width - 8)
    return (
        f"<g><title>{_xml(f'{label_text} ({rank_count} of {world} ranks{lines})')}</title>"
        f'<rect x="{box.x:.2f}" y="{y}" width="{box.width:.2f}" height="{_ROW}" fill="{colour}"/>'
        + (f'<text x="{box.x + 4:.2f}" y="{y + 13}">{_xml(words)}</text>' if words else "")
        + "</g>"
    )


def _shorten(words: str, width: float) -> str:
    """Cut a label to the given width in px. The ranks at its end are kept if the function's name fits too."""
    room = int(width / _LETTER)
    if len(words) <= room:
        return words
    if room < _FEWEST_LETTERS:
        return ""
    function, _, rest = words.partition("@")
    ranks = "@" + rest.rpartition("@")[2]
    if rest and len(function) + len(ranks) + 2 <= room:
        return f"{function}{ranks}"
    return words[: room - 2] + ".."


def _xml(words: str) -> str:
    """Escape text for XML, and replace characters that XML cannot hold."""
    return escape("".join(letter if letter.isprintable() else "?" for letter in words), quote=False)


MAX_GROUPS = 20  # groups described one by one

MAX_TEXT_LINES = 2_000  # lines of one tree

_STATES = {
    "D": "in the kernel, not to be interrupted",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended, not yet waited for",
}


@dataclass(frozen=True, slots=True)
class StackReport:
    """The merged stacks of a world and what they show."""

    world: int  # number of ranks
    python: StackNode  # root of the merged Python stacks
    native: StackNode  # root of the merged native stacks
    places: RankPlaces
    states: tuple[tuple[str, int], ...]  # unusual process states in words, with their ranks as a bit mask
    why: tuple[tuple[str, int], ...]  # reasons for missing stacks, with their ranks as a bit mask

    @property
    def suspects(self) -> int:
        """Return the suspect ranks as a bit mask."""
        ranks = 0
        for group in self.places.suspect_groups:
            ranks |= group.ranks
        return ranks


def merge(world_stacks: WorldStacks) -> StackReport:
    """Merge the stacks of all ranks, and find the suspect ranks. Ranks without stacks count only in the reasons."""
    states, why = dict[str, int](), dict[str, int]()
    for rank, stacks in world_stacks.stacks_by_rank.items():
        if odd := _STATES.get(stacks.state, ""):
            states[odd] = states.get(odd, 0) | 1 << rank
    for rank, reason in world_stacks.why.items():
        why[reason] = why.get(reason, 0) | 1 << rank
    return StackReport(
        world_stacks.world,
        fold({rank: stacks.python for rank, stacks in world_stacks.stacks_by_rank.items()}),
        fold({rank: stacks.native for rank, stacks in world_stacks.stacks_by_rank.items()}),
        find_rank_places(world_stacks),
        tuple(sorted(states.items())),
        tuple(sorted(why.items())),
    )


def files(merged: StackReport) -> dict[str, bytes]:
    """Return the files to write, content by the guide's names. A kind of stacks that no rank has gets an empty picture.

    Source: DL-115, DL-120; docs/facts/dlrover.md 7
    """
    content = {"stacks.txt": text(merged).encode(), "stacks.json": as_json(merged)}
    verdict_lines = verdict(merged)
    for name, title, root in (("py_stack", "Python", merged.python), ("cpp_stack", "C", merged.native)):
        lines = verdict_lines if root.children else [f"no rank shows any {title} frame"]
        head = f"{title} stacks of {merged.world} ranks"
        content[f"{name}.svg"] = draw_svg(head, lines, root, merged.world).encode()
        content[name] = flame_lines(root, merged.world).encode()
    return content


def verdict(merged: StackReport) -> list[str]:
    """Describe the result in a few lines, suspect ranks and their evidence first."""
    places, world = merged.places, merged.world
    lines = [
        f"{_ranks_text(group.ranks)} {_verb_for(group.ranks)} apart: {group}"
        for group in places.suspect_groups[:MAX_GROUPS]
    ]
    if len(places.suspect_groups) > MAX_GROUPS:
        lines.append(f"and {len(places.suspect_groups) - MAX_GROUPS} more groups stand apart")
    lines += _describe_majority(places.majority)
    if places.silent:
        lines.append(f"{_ranks_text(places.silent)} of {world}: no stack")
    lines += [f"{_ranks_text(ranks)}: {reason}" for reason, ranks in merged.why[:MAX_GROUPS]]
    lines += [f"{_ranks_text(ranks)}: {odd}" for odd, ranks in merged.states]
    return lines


def _describe_majority(groups: tuple[Group, ...]) -> list[str]:
    """Return lines that say where the groups of ranks are.

    groups: the one group that holds two thirds of the ranks, or all groups if no group does.
    """
    if len(groups) == 1:
        return [f"{_ranks_text(groups[0].ranks)} {_verb_for(groups[0].ranks)} in one place: {groups[0]}"]
    lines = [f"{_ranks_text(group.ranks)} {_verb_for(group.ranks)} here: {group}" for group in groups[:MAX_GROUPS]]
    if lines:
        lines.append("no place holds two thirds of the ranks, so nobody is named")
    return lines


def _ranks_text(ranks: int) -> str:
    """Return "rank 3" or "ranks 0-2" for a set of ranks, given as a bit mask."""
    return f"{'rank' if ranks.bit_count() == 1 else 'ranks'} {rank_set_text(ranks)}"


def _verb_for(ranks: int) -> str:
    """Return "stands" for a set of one rank, else "stand"."""
    return "stands" if ranks.bit_count() == 1 else "stand"


def text(merged: StackReport) -> str:
    """Return the result as text for people: the verdict, then a tree of Python and of C stacks, indented where stacks
    part.
    """
    parts = [f"stacks of {merged.world} ranks", *verdict(merged)]
    for title, root in (("Python", merged.python), ("C", merged.native)):
        if root.children:
            parts += [
                "",
                f"{title}: {sum(node.threads for node in root.each())} threads",
                *_tree_lines(root, merged.world),
            ]
    return "\n".join(parts) + "\n"


def _tree_lines(root: StackNode, world: int) -> list[str]:
    """Return the tree of stacks as indented text, at most MAX_TEXT_LINES lines.

    Indentation grows only where stacks part.
    """
    lines, pending = list[str](), [(child, 0) for child in reversed(root.children)]
    while pending:
        if len(lines) >= MAX_TEXT_LINES:
            return [*lines, "... the tree goes on: the JSON has it all"]
        node, depth = pending.pop()
        at = f"  :{','.join(map(str, node.lines))}" if node.lines else ""
        lines.append(f"{'  ' * depth}{node.frame}@{label(node.ranks, world)}{at}")
        parts = len(node.children) > 1 or (node.ends and node.children)
        pending += [(child, depth + 1 if parts else depth) for child in reversed(node.children)]
    return lines


def flame_lines(root: StackNode, world: int) -> str:
    """Write one line per different stack, as the guide's tool does for flamegraph.pl.

    Source: docs/facts/dlrover.md 7; DL-116
    """
    return "".join(f"{';'.join(path)} 1\n" for path in _paths(root, world, ()))


def _paths(node: StackNode, world: int, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the path of frames from the root to each node at which a stack ends.

    Each part is FRAME@RANKS. node: below which to search; it is not yielded itself. world: number of ranks. path: the
    parts down to `node`.
    """
    for child in node.children:
        branch = (*path, f"{child.frame}@{label(child.ranks, world)}")
        if child.ends:
            yield branch
        yield from _paths(child, world, branch)


def as_json(merged: StackReport) -> bytes:
    """Return the result as JSON: the places of the ranks and the trees, with sets of ranks in the guide's form."""
    places = merged.places
    result = {
        "world": merged.world,
        "outliers": rank_set_text(places.outlier_ranks),
        "silent": rank_set_text(places.silent),
        "apart": [_group_json(group) for group in places.suspect_groups],
        "crowd": [_group_json(group) for group in places.majority],
        "states": {odd: rank_set_text(ranks) for odd, ranks in merged.states},
        "why_silent": {reason: rank_set_text(ranks) for reason, ranks in merged.why},
        "python": [_node_json(child, merged.world) for child in merged.python.children],
        "native": [_node_json(child, merged.world) for child in merged.native.children],
    }
    return msgspec.json.encode(result)


def _group_json(group: Group) -> dict[str, Any]:
    """Return a group as a JSON object."""
    return {"ranks": rank_set_text(group.ranks), "frame": str(group.frame), "lines": group.lines}


def _node_json(node: StackNode, world: int) -> dict[str, Any]:
    """Return a node and its children as JSON objects. world: number of ranks."""
    return {
        "frame": f"{node.frame}@{label(node.ranks, world)}",
        "lines": node.lines,
        "threads": node.threads,
        "children": [_node_json(child, world) for child in node.children],
    }
