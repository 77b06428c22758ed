"""Shows the demo: a line for each act, two boards below them, and the totals at the end.

On a terminal the boards stay at the bottom and change; elsewhere they are printed at the start and at the end, without
colours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from turnout.cli.demo.scenario import (
    GPUS_PER_NODE,
    LEAVES,
    NODES_PER_LEAF,
    SPINES,
    Act,
    ActKind,
    DemoGang,
    DemoNode,
    Recabling,
    Scene,
)
from turnout.topology.fabric import Fabric, ring_cost

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")  # letters tell the gangs apart; colours only help
_OURS, _THEIRS = "with Turnout", "kube-scheduler alone"


class Screen:
    """The output of the demo on a terminal or into a file."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._boards: Group | None = None

    def open(self, play: Scene) -> None:
        """Print what the demo will show."""
        nodes = len(play.places)
        self._console.print(Text("Turnout: the right switches", style="bold"))
        self._console.print(
            f"{nodes} nodes of {GPUS_PER_NODE} GPUs hang from {LEAVES} leaf switches under {SPINES} spines, "
            f"{NODES_PER_LEAF} nodes a leaf. Their names say nothing of the wiring; only the topology ConfigMap does. "
            "Gangs arrive whose workers talk in a ring. Every gang is placed twice, on two equal clusters: by a "
            "scheduler that asks Turnout's extender, and by kube-scheduler's default rules alone."
        )
        self._console.print()

    def print_now(self, text: str) -> None:
        """Print one line of progress."""
        self._console.print(Text(text, style="dim"))

    @contextmanager
    def acts(self) -> Iterator[None]:
        """Print the heading of the rows, keep both boards at the bottom of the screen until the block ends, then print
        them.

        Without a terminal the boards are only printed at the end. They are not printed if the block raises.
        """
        self._console.print()
        self._console.print(Text(_columns("gang", "asks for", _OURS, _THEIRS), style="bold"))
        if not self._console.is_terminal:
            yield
            self._show_boards()
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            yield
        self._live = None
        self._show_boards()

    def _show_boards(self) -> None:
        if self._boards is not None:
            self._console.print(self._boards)

    def act(
        self,
        play: Scene,
        act: Act,
        present: Sequence[DemoGang],
        ours: Placed,
        theirs: Placed,
        scores: Pair,
        late: Sequence[DemoGang],
    ) -> None:
        """Print the line of one act, one for each late gang, and redraw both boards.

        scores: of the two placements, by letter. present: gangs that have arrived and not left. ours, theirs:
        placements with Turnout and without. late: gangs that had waited and now have all their nodes.
        """
        gang = act.gang
        if act.kind is ActKind.LEAVES:
            line = Text(_columns(f"{gang.letter} leaves", "", "", ""), style="dim")
        else:
            line = Text(
                _columns(
                    f"{gang.letter} arrives",
                    f"{gang.pods} pods x {gang.gpus} GPU{'s' if gang.gpus > 1 else ''}",
                    _gang_line(gang, scores.ours.get(gang.letter), ours),
                    _gang_line(gang, scores.theirs.get(gang.letter), theirs),
                )
            )
            line.stylize(colour(gang.letter), 0, 1)
        self._console.print(line)
        for waited in late:
            columns = (
                _gang_line(waited, pair.get(waited.letter), where)
                for pair, where in ((scores.ours, ours), (scores.theirs, theirs))
            )
            self._console.print(Text(_columns(f"{waited.letter} is whole", "now, it waited", *columns), style="dim"))
        self._boards = _boards(
            board(play.places, play.busy, present, ours), board(play.places, play.busy, present, theirs)
        )
        if self._live is not None:
            self._live.update(self._boards, refresh=True)

    def recabled(self, change: Recabling, took_s: float) -> None:
        """Print the result of the finale: the cables moved, and how long the extender needed for the new map.

        took_s: that time in seconds.
        """
        gained = _count(change.nodes, "free node", "free nodes")
        self._console.print()
        self._console.print(
            f"Last act: no leaf has {change.gang.pods} free nodes. Cables are moved, {gained} of "
            f"{change.other} for as many busy of {change.leaf}, and the topology ConfigMap is edited to say so. "
            f"The running extender took the new map after {took_s * 1000:.0f} ms, without a restart:"
        )

    def close(self, tally: Tally) -> None:
        """Print the totals of both sides as a table, in a sentence, and the times of the extender's answers."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("", _OURS, _THEIRS):
            table.add_column(heading, justify="left" if not heading else "right")
        ours, theirs = tally.scores.ours, tally.scores.theirs
        table.add_row(
            "gangs placed whole", f"{len(ours)} of {len(tally.gangs)}", f"{len(theirs)} of {len(tally.gangs)}"
        )
        table.add_row("leaf switches a gang *", f"{tally.leaves(ours):.1f}", f"{tally.leaves(theirs):.1f}")
        table.add_row("ring crossings in all *", str(tally.crossings(ours)), str(tally.crossings(theirs)))
        self._console.print()
        self._console.print(table)
        self._console.print(
            f"* over the {len(tally.both)} gangs that both placed whole. A crossing is a ring edge that leaves a leaf, "
            "and once more when it leaves the spine too.",
            style="dim",
        )
        self._console.print()
        self._console.print(Text(sentence(tally), style="bold"))
        self._console.print(requests_sentence(tally))


def _gang_line(gang: DemoGang, score: Score | None, placements: Placed) -> str:
    if score is None:
        return f"waits, {len(placements.get(gang.name, {}))} of {gang.pods} placed"
    return f"{_count(score.leaves, 'leaf', 'leaves'):<9} {_count(score.crossings, 'crossing', 'crossings')}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _columns(gang: str, asks: str, ours: str, theirs: str) -> str:
    return f"{gang:<11}{asks:<18}{ours:<26}{theirs}".rstrip()


def _boards(ours: Sequence[HeatmapRow], theirs: Sequence[HeatmapRow]) -> Group:
    """Return the two boards side by side, with a legend. ours, theirs: rows of the same leaves."""
    lines = [Text("\n" + f"{'':<19}{_OURS:<{NODES_PER_LEAF * 3 + 4}}{_THEIRS}", style="bold")]
    spine = ""
    for left, right in zip(ours, theirs, strict=True):
        line = Text()
        line.append(f"  {left.spine if left.spine != spine else '':<8}{left.leaf:<9}", style="dim")
        spine = left.spine
        line.append_text(_cells(left))
        line.append("     ")
        line.append_text(_cells(right))
        lines.append(line)
    legend = f"  a cell is a node, its two signs 4 GPUs each: a letter is a gang, {OTHER} somebody else, {FREE} free"
    return Group(*lines, Text(legend, style="dim"))


def _cells(row: HeatmapRow) -> Text:
    """Return the cells of a heatmap row as coloured text."""
    text = Text()
    for number, cell in enumerate(row.cells):
        text.append(" " if number else "")
        for sign in cell:
            text.append(sign, style=colour(sign))
    return text


def colour(sign: str) -> str:
    """Return the style of a character of the boards. sign: FREE, OTHER, or the letter of a gang in upper case."""
    if sign in (FREE, OTHER):
        return "dim"
    return f"bold {_COLOURS[(ord(sign) - ord('A')) % len(_COLOURS)]}"


FREE, OTHER = "·", "#"
_SIGNS = 2  # a cell is this wide

Placed = Mapping[str, Mapping[int, str]]  # gang name -> index -> node


@dataclass(frozen=True, slots=True)
class HeatmapRow:
    """One leaf of the picture."""

    spine: str
    leaf: str
    cells: tuple[str, ...]  # one for each node, of two characters


@dataclass(frozen=True, slots=True)
class Score:
    """The cost of a placed gang."""

    leaves: int  # leaf switches of its nodes, >= 1
    crossings: int  # ring edges that leave a leaf plus those that leave a spine


def board(
    places: Sequence[DemoNode], busy: Sequence[tuple[str, int]], gangs: Sequence[DemoGang], placements: Placed
) -> list[HeatmapRow]:
    """Return which GPUs of each node are in use, one row for each leaf, sorted by spine and leaf.

    places: all nodes; each row has its nodes in their order. busy: (node, GPUs) of other pods. gangs: those with a
    placement, in the order of arrival. placements: gang name -> index -> node.
    """
    gpus: dict[str, str] = {}
    for name, count in busy:
        gpus[name] = gpus.get(name, "") + OTHER * count
    for gang in gangs:
        for _, name in sorted(placements.get(gang.name, {}).items()):
            gpus[name] = gpus.get(name, "") + gang.letter * gang.gpus
    rows: dict[tuple[str, str], list[str]] = {}
    for place in places:
        rows.setdefault((place.spine, place.leaf), []).append(_cell(gpus.get(place.name, "")))
    return [HeatmapRow(spine, leaf, tuple(cells)) for (spine, leaf), cells in sorted(rows.items())]


def _cell(slots: str) -> str:
    """Return two characters for the eight GPUs of a node: who holds most of each half, FREE if all of it is free.

    slots: a character for each GPU in use.
    """
    half = GPUS_PER_NODE // _SIGNS
    slots = slots.ljust(GPUS_PER_NODE, FREE)
    signs = ""
    for start in range(0, GPUS_PER_NODE, half):
        letters = Counter(slots[start : start + half].replace(FREE, ""))
        signs += letters.most_common(1)[0][0] if letters else FREE
    return signs


def score(fabric: Fabric, play: Scene, gang: DemoGang, nodes: Mapping[int, str]) -> Score | None:
    """Return the cost of a gang as a ring in the order of its indices; None while a pod has no node.

    nodes: index -> node.
    """
    if len(nodes) < gang.pods:
        return None
    ips = {place.name: place.ip for place in play.places}
    spent = ring_cost(fabric, [fabric.id_of_host[ips[nodes[index]]] for index in range(gang.pods)])
    return Score(leaves=spent.switches[0], crossings=spent.total)


@dataclass(frozen=True, slots=True)
class Pair:
    """Scores by gang letter: with Turnout, and with the default scheduler alone."""

    ours: Mapping[str, Score]
    theirs: Mapping[str, Score]


@dataclass(frozen=True, slots=True)
class ExtenderCall:
    """One call of the extender."""

    verb: str  # "filter" or "prioritize"
    names: int  # nodes that the request named
    took_s: float
    failed: str  # the error, "" for an answer


@dataclass(frozen=True, slots=True)
class Tally:
    """The totals of a run."""

    gangs: tuple[DemoGang, ...]
    scores: Pair
    calls: tuple[ExtenderCall, ...]  # in order
    neutral: int = 0  # responses without advice, because the extender had a fault

    @property
    def both(self) -> tuple[str, ...]:
        """The letters of the gangs that both schedulers placed whole: only these are compared."""
        return tuple(g.letter for g in self.gangs if g.letter in self.scores.ours and g.letter in self.scores.theirs)

    def leaves(self, scores: Mapping[str, Score]) -> float:
        """Mean number of leaves of a gang that both schedulers placed whole; 0.0 without such gangs.

        scores: of one scheduler, by the gang's letter.
        """
        return sum(scores[letter].leaves for letter in self.both) / max(1, len(self.both))

    def crossings(self, scores: Mapping[str, Score]) -> int:
        """Ring crossings in all, over the gangs that both placed. scores: of one scheduler, by the gang's letter."""
        return sum(scores[letter].crossings for letter in self.both)


def sentence(tally: Tally) -> str:
    """Return the outcome in one sentence, for a reader who has not watched the demo."""
    if not tally.both:
        return "No gang was placed whole by both, so there is nothing to compare."
    ours, theirs = tally.crossings(tally.scores.ours), tally.crossings(tally.scores.theirs)
    rings = f"{len(tally.both)} rings cross a switch {ours} times with Turnout, {theirs} times without"
    if ours == theirs:
        return f"This time both do alike: {rings}."
    if ours > theirs:
        return f"This time the default scheduler did better: {rings}."
    if ours == 0:
        return f"Every ring stays under one leaf: {rings}."
    return f"{theirs / ours:.1f} times fewer crossings: {rings}."


def requests_sentence(tally: Tally) -> str:
    """Return how many requests the extender answered, and how fast."""
    if not tally.calls:
        return "The extender was not asked at all."
    took_ms = sorted(asking.took_s * 1000 for asking in tally.calls)
    filters = sum(asking.verb == "filter" for asking in tally.calls)
    failed = sum(bool(asking.failed) for asking in tally.calls)
    text = (
        f"Asked over HTTP {len(took_ms)} times ({filters} filter, {len(took_ms) - filters} prioritize): "
        f"median {median(took_ms):.1f} ms, slowest {took_ms[-1]:.1f} ms"
    )
    text += f"; {failed} went without an answer" if failed else ""
    text += f"; {tally.neutral} got a neutral answer, since the extender had a fault" if tally.neutral else ""
    return f"{text}."
