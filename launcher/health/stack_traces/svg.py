"""Draws merged stacks as a picture: one box per frame, the outermost on top, coloured by how many ranks have it.

Every different stack has equal width, as in the guide's picture. With widths by number of ranks, a single suspect rank
would be too narrow to see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape  # xml.sax's escape would load all of urllib into each agent

from turnout.launcher.health.rank_sets import label
from turnout.launcher.health.stack_traces.merge import Node

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
    node: Node
    x: float
    width: float
    row: int


def picture(title: str, lines: Sequence[str], root: Node, world: int) -> str:
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
                f"{_xml(_cut(line, _WIDTH - 2 * _MARGIN))}</text>"
                for at, line in enumerate(lines)
            ),
            *(
                f'<rect x="{_MARGIN + 190 * at}" y="{top - 24}" width="12" height="12" fill="{colour}"/>'
                f'<text x="{_MARGIN + 18 + 190 * at}" y="{top - 14}">{word}</text>'
                for at, (colour, word) in enumerate(legend)
            ),
            *(_drawn(box, top, world, root.ranks.bit_count()) for box in boxes),
            "</svg>\n",
        ]
    )


def _boxes(root: Node) -> Iterator[_Box]:
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


def _stacks(root: Node) -> dict[int, int]:
    """Count the different stacks that end at each node or below it."""
    counts = dict[int, int]()
    for node in reversed(list(root.each())):  # children before their parents
        counts[id(node)] = (node.ends > 0) + sum(counts[id(child)] for child in node.children)
    return counts


def _drawn(box: _Box, top: int, world: int, present: int) -> str:
    node, y = box.node, top + _ROW * box.row
    label_text = f"{node.frame}@{label(node.ranks, world)}"
    lines = f", line {', '.join(map(str, node.lines))}" if node.lines else ""
    rank_count = node.ranks.bit_count()
    colour = _ALL if rank_count == present else _MOST if 2 * rank_count >= present else _FEW
    words = _cut(label_text, box.width - 8)
    return (
        f"<g><title>{_xml(f'{label_text} ({rank_count} of {world} ranks{lines})')}</title>"
        f'<rect x="{box.x:.2f}" y="{y}" width="{box.width:.2f}" height="{_ROW}" fill="{colour}"/>'
        + (f'<text x="{box.x + 4:.2f}" y="{y + 13}">{_xml(words)}</text>' if words else "")
        + "</g>"
    )


def _cut(words: str, width: float) -> str:
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
