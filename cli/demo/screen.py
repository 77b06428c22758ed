"""Shows the demo: lines as gangs come and go, the two boards below them, the totals at the end.

On a terminal the boards stay at the bottom and change; elsewhere they are printed at the start and at the end, plain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from turnout.cli.demo.heatmap import FREE, OTHER, HeatmapRow, Placed, Score, board
from turnout.cli.demo.rewire import Recabling
from turnout.cli.demo.scenario import GPUS_PER_NODE, LEAVES, NODES_PER_LEAF, SPINES, Act, ActKind, DemoGang, Scene
from turnout.cli.demo.summary import Pair, Tally, asked_sentence, sentence

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")  # letters tell the gangs apart; colours only help
_OURS, _THEIRS = "with Turnout", "kube-scheduler alone"


class Screen:
    """One play on one terminal, or in one file."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._boards: Group | None = None

    def open(self, play: Scene) -> None:
        """Say what is to be seen."""
        nodes = len(play.places)
        self._console.print(Text("Turnout: the right switches", style="bold"))
        self._console.print(
            f"{nodes} nodes of {GPUS_PER_NODE} GPUs hang from {LEAVES} leaf switches under {SPINES} spines, "
            f"{NODES_PER_LEAF} nodes a leaf. Their names say nothing of the wiring; only the topology ConfigMap does. "
            "Gangs arrive whose workers talk in a ring. Every gang is placed twice, on two equal clusters: by a "
            "scheduler that asks Turnout's extender, and by kube-scheduler's default rules alone."
        )
        self._console.print()

    def say(self, text: str) -> None:
        """One sentence on the way."""
        self._console.print(Text(text, style="dim"))

    @contextmanager
    def acts(self) -> Iterator[None]:
        """Keep the boards at the bottom for as long as acts are shown."""
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
        """Show one act and what the boards look like after it. late: gangs that had waited and are whole now."""
        gang = act.gang
        if act.word is ActKind.LEAVES:
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
        """Say what the last act is about."""
        gained = _count(change.nodes, "free node", "free nodes")
        self._console.print()
        self._console.print(
            f"Last act: no leaf has {change.gang.pods} free nodes. Cables are moved, {gained} of "
            f"{change.other} for as many busy of {change.leaf}, and the topology ConfigMap is edited to say so. "
            f"The running extender took the new map after {took_s * 1000:.0f} ms, without a restart:"
        )

    def close(self, tally: Tally) -> None:
        """The totals, in numbers and in a sentence."""
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
        self._console.print(asked_sentence(tally))


def _gang_line(gang: DemoGang, score: Score | None, placements: Placed) -> str:
    if score is None:
        return f"waits, {len(placements.get(gang.name, {}))} of {gang.pods} placed"
    return f"{_count(score.leaves, 'leaf', 'leaves'):<9} {_count(score.crossings, 'crossing', 'crossings')}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _columns(gang: str, asks: str, ours: str, theirs: str) -> str:
    return f"{gang:<11}{asks:<18}{ours:<26}{theirs}".rstrip()


def _boards(ours: Sequence[HeatmapRow], theirs: Sequence[HeatmapRow]) -> Group:
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
    text = Text()
    for number, cell in enumerate(row.cells):
        text.append(" " if number else "")
        for sign in cell:
            text.append(sign, style=colour(sign))
    return text


def colour(sign: str) -> str:
    """The style of a sign of the pictures."""
    if sign in (FREE, OTHER):
        return "dim"
    return f"bold {_COLOURS[(ord(sign) - ord('A')) % len(_COLOURS)]}"
