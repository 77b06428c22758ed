"""Draws the map of switches as an SVG picture: `turnout topology --svg`.

A box is a switch, nested as in the map. A row in a leaf switch is a node, a cell is a GPU. The colours are those of
`turnout page`. The picture needs no script and no font file, so it can stand in a document.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from turnout.cli.views.topology import OFF_MAP, TreeNode
from turnout.kube.client.logs import printable
from turnout.topology.switch_paths import Path, natural_key

CELL = 12  # pixels of a GPU with the gap to the next
PADDING = 8  # pixels between a box and what is in it, and between two boxes
HEAD = 18  # pixels of a box's name
LEGEND_LINE = 20  # pixels of a line of the legend
TITLE = 52  # pixels of the title and the sentence under it
CHARACTER = 6.2  # pixels of a character of 11 px, at most on average
MIN_WIDTH = 640  # pixels of the picture
MAX_NODE_CELLS = 64  # cells drawn of one node; what a node says of its GPUs is bounded
PALETTE = ("#4779ea", "#b7450d", "#138168", "#9e40aa", "#9a980f", "#49138e", "#084551", "#6f1b0d")
OTHER, FREE, CLOSED = "#8b949e", "#e3e8ed", "#c3cad2"

Holders = Mapping[str, Mapping[str, int]]  # node -> gang -> GPUs


@dataclass(slots=True)
class _Box:
    """One switch with its size in pixels."""

    name: str
    hosts: list[str] = field(default_factory=list)  # directly under it
    boxes: list[_Box] = field(default_factory=list)  # switches directly under it
    width: float = 0.0
    height: float = 0.0
    columns: int = 1  # boxes side by side
    host_columns: int = 1  # hosts side by side; they stand above the boxes


def svg(paths: Mapping[str, Path], nodes: Sequence[TreeNode], holders: Holders, notes: Sequence[str] = ()) -> str:
    """Return the picture as SVG. Up to eight gangs with most GPUs have a colour of their own; the others share one.

    paths: host of the map -> its switches from the root down. nodes: of the cluster, on the map or not. holders: GPUs
    of each gang on each node. notes: lines below the title.
    """
    by_key = {key: node for node in reversed(nodes) for key in node.keys}
    colours, legend = _colours(holders)
    root = _tree(paths, nodes, by_key)
    _measure(root, by_key)
    width = max(root.width, MIN_WIDTH)
    top = TITLE + 16 * len(notes)
    height = top + root.height + LEGEND_LINE * (math.ceil(len(legend) / 2) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" font-family="system-ui, sans-serif" fill="#18202a">',
        f"<title>GPUs by switch</title><desc>{_safe(_sentence(paths, nodes))}</desc>",
        f'<rect width="{width:g}" height="{height:g}" fill="#f4f6f8"/>',
        f'<text x="{PADDING}" y="24" font-size="16" font-weight="600">GPUs by switch</text>',
        f'<text x="{PADDING}" y="42" font-size="12" fill="#566270">{_safe(_sentence(paths, nodes))}</text>',
    ]
    for at, note in enumerate(notes):
        parts.append(
            f'<text x="{PADDING}" y="{TITLE + 6 + 16 * at}" font-size="12" fill="#8a5200">{_safe(note)}</text>'
        )
    _draw(root, 0.0, float(top), by_key, holders, colours, parts)
    parts += _legend(legend, top + root.height, width)
    return "\n".join([*parts, "</svg>"])


def _safe(text: str) -> str:
    """Return a text that a tenant may have written as the text of an element or attribute."""
    return escape(printable(text), {'"': "&quot;"})


def _sentence(paths: Mapping[str, Path], nodes: Sequence[TreeNode]) -> str:
    """Return one sentence with the numbers of nodes and switches, and of used and free GPUs.

    Nodes without GPUs do not count. paths: host of the map -> its switches from the root down. nodes: of the cluster,
    on the map or not.
    """
    nodes = [node for node in nodes if node.gpus]
    on_map = sum(not node.keys.isdisjoint(paths) for node in nodes)
    off_map = f", {len(nodes) - on_map} not on the map" if on_map < len(nodes) else ""
    gpus, used = sum(node.gpus for node in nodes), sum(min(node.used_gpus, node.gpus) for node in nodes)
    free = sum(node.free_gpus for node in nodes)
    switches = len({path[:depth] for path in paths.values() for depth in range(1, len(path) + 1)})
    closed = gpus - used - free
    on_closed = f", {closed} are on nodes that take no new pods" if closed else ""
    place = f"{on_map} node{'s' * (on_map != 1)} under {switches} switch{'es' * (switches != 1)}{off_map}"
    return f"{place}: {used} of {gpus} GPUs are used, {free} are free{on_closed}."


def _colours(holders: Holders) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return (colour by gang, legend of (colour, text)).

    Only the len(PALETTE) gangs with the most GPUs have a colour; the others share one entry of the legend, with OTHER.
    The last two entries are for free and for closed nodes. holders: node -> gang -> number of GPUs.
    """
    held_gpus = Counter[str]()
    for gangs in holders.values():
        held_gpus.update(gangs)
    order = sorted(held_gpus, key=lambda gang: (-held_gpus[gang], gang))
    colours = dict(zip(order, PALETTE, strict=False))
    legend = [(colour, f"{gang}: {held_gpus[gang]} GPUs") for gang, colour in colours.items()]
    if rest := order[len(PALETTE) :]:
        legend.append((OTHER, f"{len(rest)} more gangs: {sum(held_gpus[gang] for gang in rest)} GPUs"))
    return colours, [*legend, (FREE, "free"), (CLOSED, "free, but the node takes no new pods")]


def _tree(paths: Mapping[str, Path], nodes: Sequence[TreeNode], by_key: Mapping[str, TreeNode]) -> _Box:
    """Return the boxes of all switches below a box without a name. Nodes with GPUs that are not on the map are in a box
    of their own.

    paths: host of the map -> its switches from the root down. by_key: nodes by name and address.
    """
    root, known = _Box(""), dict[Path, _Box]()
    for host in sorted(paths, key=lambda each: ([natural_key(name) for name in paths[each]], natural_key(each))):
        parent = root
        for depth in range(1, len(paths[host]) + 1):
            path = paths[host][:depth]
            if path not in known:
                known[path] = _Box(path[-1])
                parent.boxes.append(known[path])
            parent = known[path]
        parent.hosts.append(host)
    on_map = {by_key[host].node for host in paths if host in by_key}
    if unmapped := [node.node for node in nodes if node.node not in on_map and node.gpus]:
        root.boxes.append(_Box(OFF_MAP, unmapped))
    return root


def _cells(host: str, by_key: Mapping[str, TreeNode]) -> int:
    """Return how many cells a host has; one without a node, or without GPUs, has room for one."""
    node = by_key.get(host)
    return 1 if node is None else min(max(node.gpus, 1), MAX_NODE_CELLS)


def _measure(box: _Box, by_key: Mapping[str, TreeNode]) -> None:
    """Set the size of a box and of all boxes in it."""
    for each in box.boxes:
        _measure(each, by_key)
    host_width = CELL * max((_cells(host, by_key) for host in box.hosts), default=0) + PADDING
    box.host_columns = _even(len(box.hosts), round(math.sqrt(len(box.hosts) * CELL / max(host_width, 1))))
    hosts_width = box.host_columns * host_width if box.hosts else 0.0
    hosts_height = CELL * math.ceil(len(box.hosts) / box.host_columns)
    area = sum((each.width + PADDING) * (each.height + PADDING) for each in box.boxes)
    widest = max((each.width for each in box.boxes), default=0.0) + PADDING
    box.columns = _even(len(box.boxes), round(1.3 * math.sqrt(area) / widest)) if box.boxes else 1
    rows = _rows(box)
    inner_width = max([hosts_width, *(sum(each.width + PADDING for each in row) for row in rows)])
    inner_height = hosts_height + sum(max(each.height for each in row) + PADDING for row in rows)
    name_width = min(len(box.name), 40) * CHARACTER
    box.width = max(inner_width, name_width) + PADDING
    box.height = inner_height + PADDING + (HEAD if box.name else 0)


def _even(count: int, columns: int) -> int:
    """Return the number of columns for `count` items, >= 1, such that all rows are about equally full.

    columns: the largest number of columns.
    """
    rows = math.ceil(count / max(1, columns))
    return max(1, math.ceil(count / max(1, rows)))


def _rows(box: _Box) -> list[list[_Box]]:
    """Return the boxes inside, row by row."""
    return [box.boxes[at : at + box.columns] for at in range(0, len(box.boxes), box.columns)]


def _draw(
    box: _Box,
    left: float,
    top: float,
    by_key: Mapping[str, TreeNode],
    holders: Holders,
    colours: Mapping[str, str],
    parts: list[str],
) -> None:
    """Append the SVG elements of a box and of its content to `parts`. left, top: in pixels."""
    if box.name:
        fill = "#ffffff" if box.hosts else "#eef1f4"
        parts.append(
            f'<rect x="{left:g}" y="{top:g}" width="{box.width:g}" height="{box.height:g}" rx="4" fill="{fill}" '
            'stroke="#d7dde4"/>'
        )
        name = box.name if len(box.name) <= 40 else f"…{box.name[-39:]}"  # the end tells switches apart
        parts.append(
            f'<text x="{left + PADDING:g}" y="{top + 13:g}" font-size="11" fill="#566270">{_safe(name)}</text>'
        )
    x, y = left + PADDING, top + (HEAD if box.name else 0)
    deep = math.ceil(len(box.hosts) / box.host_columns)
    width = CELL * max((_cells(host, by_key) for host in box.hosts), default=0) + PADDING
    for at, host in enumerate(box.hosts):
        parts += _host(host, x + width * (at // deep), y + CELL * (at % deep), by_key, holders, colours)
    y += CELL * deep
    for row in _rows(box):
        across = x
        for each in row:
            _draw(each, across, y, by_key, holders, colours, parts)
            across += each.width + PADDING
        y += max(each.height for each in row) + PADDING


def _host(
    host: str, x: float, y: float, by_key: Mapping[str, TreeNode], holders: Holders, colours: Mapping[str, str]
) -> list[str]:
    """Return the SVG elements of one host: a rectangle for each gang, one for free GPUs, and a tooltip.

    x, y: in pixels.
    """
    side, node = CELL - 2, by_key.get(host)
    if node is None or not node.gpus:
        text = f"{host}: {'no node' if node is None else 'offers no GPUs'}"
        frame = f'<rect x="{x:g}" y="{y:g}" width="{side}" height="{side}" fill="none" stroke="#8a96a3" '
        return [f'{frame}stroke-dasharray="2 2"><title>{_safe(text)}</title></rect>']
    count, at = _cells(host, by_key), 0
    gangs = sorted(holders.get(node.node, {}).items(), key=lambda each: (-each[1], each[0]))
    tooltip = [
        f"{node.node}: {min(node.used_gpus, node.gpus)} of {node.gpus} GPUs used",
        *([node.why] if node.why else []),
    ]
    parts = [f"<g><title>{_safe('; '.join([*tooltip, *(f'{gang} {gpus}' for gang, gpus in gangs)]))}</title>"]
    runs = [(colours.get(gang, OTHER), gpus) for gang, gpus in gangs] + [(CLOSED if node.why else FREE, count)]
    for colour, gpus in runs:
        end = min(count, at + gpus)
        if end > at:
            cells = "".join(f"M{x + CELL * each:g} {y:g}h{side}v{side}h-{side}z" for each in range(at, end))
            parts.append(f'<path d="{cells}" fill="{colour}"/>')
        at = end
    if node.why:
        line = f'x1="{x:g}" y1="{y + side / 2:g}" x2="{x + CELL * count - 2:g}" y2="{y + side / 2:g}"'
        parts.append(f'<line {line} stroke="#b3201a" stroke-width="1.5"/>')
    return [*parts, "</g>"]


def _legend(legend: Sequence[tuple[str, str]], top: float, width: float) -> list[str]:
    """Return the SVG elements of the legend, in two columns. legend: (colour, text). top, width: in pixels."""
    parts = []
    for at, (colour, text) in enumerate(legend):
        x, y = PADDING + (at % 2) * width / 2, top + LEGEND_LINE * (at // 2) + 16
        longest = int(width / 2 / 7)
        text = text if len(text) <= longest else f"{text[: longest - 1]}…"
        parts.append(f'<rect x="{x:g}" y="{y - 10:g}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{x + 16:g}" y="{y:g}" font-size="12">{_safe(text)}</text>')
    return parts
