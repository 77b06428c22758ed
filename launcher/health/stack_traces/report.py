"""Finds suspect ranks by their stacks, and writes merged stacks as text, JSON, pictures, and input for flame graphs.

Most ranks wait in one place, and those elsewhere are the ones they wait for. Only main threads count. The majority is
followed from the outermost frame inwards while two thirds of the ranks share the way. Ranks that leave it are suspect,
the earliest first. Without such a majority none is suspect.
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

    ranks: int
    at: Frame  # the innermost frame they share
    lines: tuple[int, ...]  # of that frame
    by: Frame  # the frame at which they left the majority

    def __str__(self) -> str:
        lines = ":" + ",".join(map(str, self.lines)) if self.lines else ""
        return f"{self.at}{lines}{f', by way of {self.by}' if self.by != self.at else ''}"


@dataclass(frozen=True, slots=True)
class Outliers:
    """Says where the ranks of a world stand: the majority, the groups that left it, and the silent ranks."""

    majority: tuple[Group, ...]  # where the majority is: one group, or those into which it splits
    suspect_groups: tuple[Group, ...]  # groups that left the majority, the earliest first
    silent: int  # ranks without a stack

    @property
    def outliers(self) -> int:
        """Return the ranks that left the majority, and those without a stack if others have one."""
        ranks = self.silent if self.majority else 0
        for group in self.suspect_groups:
            ranks |= group.ranks
        return ranks


def find_outliers(gathered: WorldStacks) -> Outliers:
    """Find the places of all ranks, by the Python frames of their main threads."""
    mains = {rank: [each for each in stacks.python if each.main] for rank, stacks in gathered.showings.items()}
    node: StackNode | None = fold(mains)
    assert node is not None
    enough, suspect_groups, majority = 2 * node.ranks.bit_count(), list[Group](), list[Group]()
    while node is not None:
        ways = _ways(node)
        if not ways or 3 * ways[0].ranks.bit_count() < enough:
            majority = [way.group() for way in ways]
            break
        suspect_groups += (way.group() for way in ways[1:])
        majority, node = (
            [Group(ways[0].ranks, ways[0].place.frame, ways[0].place.lines, ways[0].place.frame)],
            ways[0].into,
        )
    return Outliers(tuple(majority), tuple(suspect_groups), gathered.silent)


@dataclass(frozen=True, slots=True)
class _Way:
    """How some ranks continue from a frame: into another frame, or not at all."""

    ranks: int
    place: StackNode
    into: StackNode | None

    def group(self) -> Group:
        """Return the group at the innermost frame that all these ranks share."""
        node = self.place
        while self.into is not None and len(node.children) == 1 and not node.ends:
            node = node.children[0]
        return Group(self.ranks, node.frame, node.lines, self.place.frame)


def _ways(node: StackNode) -> list[_Way]:
    """List the ways from a node, that of most ranks first."""
    ways = [_Way(child.ranks, child, child) for child in node.children]
    if node.ends:
        ways.append(_Way(node.ends, node, None))
    return sorted(ways, key=lambda way: (-way.ranks.bit_count(), way.ranks))


_WIDTH, _MARGIN, _ROW, _LETTER = 1_600, 10, 18, 6.7  # px; a letter of the font below

_NARROWEST = 0.5  # px; narrower boxes are not drawn

_FEWEST_LETTERS = 4

_ALL, _MOST, _FEW = "#d5dce4", "#f3d489", "#ee8268"

_STYLE = (
    "text{font:11px Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1c2430}"
    ".title{font-size:16px;font-weight:bold}rect{stroke:#fff;stroke-width:1}g:hover rect{stroke:#1c2430}"
)


@dataclass(frozen=True, slots=True)
class _Box:
    node: StackNode
    x: float
    width: float
    row: int


def draw_svg(title: str, lines: Sequence[str], root: StackNode, world: int) -> str:
    """Draw an SVG. lines: lines above it. It is well-formed and has no script, whatever the names contain."""
    boxes = list(_boxes(root))
    top = _MARGIN + 24 + _ROW * (len(lines) + 2)
    height = top + _ROW * (1 + max((box.row for box in boxes), default=0)) + _MARGIN
    legend = ((_ALL, "all that show a stack"), (_MOST, "half of them or more"), (_FEW, "fewer"))
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
    """Yield the boxes of a flame graph, except those that are too narrow to see.

    The width of a box is proportional to its number of stacks.
    """
    stacks = _stacks(root)
    each = (_WIDTH - 2 * _MARGIN) / max(1, stacks[id(root)])
    left = [(root, float(_MARGIN), -1)]
    while left:
        node, x, row = left.pop()
        width = each * stacks[id(node)]
        if width < _NARROWEST:
            continue
        if row >= 0:
            yield _Box(node, x, width, row)
        for child in node.children:
            left.append((child, x, row + 1))
            x += each * stacks[id(child)]


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
    colour = _ALL if rank_count == present else _MOST if 2 * rank_count >= present else _FEW
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

    world: int
    python: StackNode
    native: StackNode
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
        content[f"{name}.svg"] = draw_svg(head, lines, root, merged.world).encode()
        content[name] = flame_lines(root, merged.world).encode()
    return content


def verdict(merged: StackReport) -> list[str]:
    """Describe the result in a few lines, suspect ranks and their evidence first."""
    outliers, world = merged.outliers, merged.world
    lines = [
        f"{_ranks(group.ranks)} {_verb_for(group.ranks)} apart: {group}"
        for group in outliers.suspect_groups[:MAX_GROUPS]
    ]
    if len(outliers.suspect_groups) > MAX_GROUPS:
        lines.append(f"and {len(outliers.suspect_groups) - MAX_GROUPS} more groups stand apart")
    lines += _describe_majority(outliers.majority)
    if outliers.silent:
        lines.append(f"{_ranks(outliers.silent)} of {world}: no stack")
    lines += [f"{_ranks(ranks)}: {reason}" for reason, ranks in merged.why[:MAX_GROUPS]]
    lines += [f"{_ranks(ranks)}: {odd}" for odd, ranks in merged.states]
    return lines


def _describe_majority(crowd: tuple[Group, ...]) -> list[str]:
    """Return lines that say where the groups of ranks are.

    crowd: the group that holds two thirds of the ranks, or all groups if no group does.
    """
    if len(crowd) == 1:
        return [f"{_ranks(crowd[0].ranks)} {_verb_for(crowd[0].ranks)} in one place: {crowd[0]}"]
    lines = [f"{_ranks(group.ranks)} {_verb_for(group.ranks)} here: {group}" for group in crowd[:MAX_GROUPS]]
    if lines:
        lines.append("no place holds two thirds of the ranks, so nobody is named")
    return lines


def _ranks(ranks: int) -> str:
    return f"{'rank' if ranks.bit_count() == 1 else 'ranks'} {rank_set_text(ranks)}"


def _verb_for(ranks: int) -> str:
    return "stands" if ranks.bit_count() == 1 else "stand"


def text(merged: StackReport) -> str:
    """Write the result as text: the verdict, then the trees, indented where ranks part."""
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
    lines, left = list[str](), [(child, 0) for child in reversed(root.children)]
    while left:
        if len(lines) >= MAX_TEXT_LINES:
            return [*lines, "... the tree goes on: the JSON has it all"]
        node, depth = left.pop()
        at = f"  :{','.join(map(str, node.lines))}" if node.lines else ""
        lines.append(f"{'  ' * depth}{node.frame}@{label(node.ranks, world)}{at}")
        parts = len(node.children) > 1 or (node.ends and node.children)
        left += [(child, depth + 1 if parts else depth) for child in reversed(node.children)]
    return lines


def flame_lines(root: StackNode, world: int) -> str:
    """Write one line per different stack, as the guide's tool does for flamegraph.pl.

    Source: docs/facts/dlrover.md 7; DL-116
    """
    return "".join(f"{';'.join(path)} 1\n" for path in _paths(root, world, ()))


def _paths(node: StackNode, world: int, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the path of frames from the root to each node at which a stack ends."""
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
        "outliers": rank_set_text(outliers.outliers),
        "silent": rank_set_text(outliers.silent),
        "apart": [_group(group) for group in outliers.suspect_groups],
        "crowd": [_group(group) for group in outliers.majority],
        "states": {odd: rank_set_text(ranks) for odd, ranks in merged.states},
        "why_silent": {reason: rank_set_text(ranks) for reason, ranks in merged.why},
        "python": [_node_json(child, merged.world) for child in merged.python.children],
        "native": [_node_json(child, merged.world) for child in merged.native.children],
    }
    return msgspec.json.encode(result)


def _group(group: Group) -> dict[str, Any]:
    return {"ranks": rank_set_text(group.ranks), "frame": str(group.at), "lines": group.lines}


def _node_json(node: StackNode, world: int) -> dict[str, Any]:
    """Return a node and its children as JSON objects. world: number of ranks."""
    return {
        "frame": f"{node.frame}@{label(node.ranks, world)}",
        "lines": node.lines,
        "threads": node.threads,
        "children": [_node_json(child, world) for child in node.children],
    }
