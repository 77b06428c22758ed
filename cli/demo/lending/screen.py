"""Shows the second part: a line for whatever happens, with the leaves beside it, and the sums.

On a terminal bars stay at the bottom and change; elsewhere nothing is printed but the lines and the sums, plain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from textwrap import wrap

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from turnout.cli.demo.lending.captions import line
from turnout.cli.demo.lending.fixtures import GPUS, GPUS_PER_NODE, LEAVES, NODES_PER_LEAF, places
from turnout.cli.demo.lending.model import Moment, Seats, Story
from turnout.cli.demo.lending.picture import FREE, Bar, bars, chart, runs, strip
from turnout.cli.demo.lending.summary import Sums, added_up, sentence
from turnout.cli.demo.screen import colour
from turnout.simulator.cluster.kubelet import Pace

_CHART_COLUMNS = 72
_SIGNS = 2  # a GPU of a bar is this wide
_WHY = 14
_LEAST_WIDTH = 20


class LendingScreen:
    """The second part on one terminal, or in one file."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        names = [place.name for place in places()]
        self._leaves = [names[at : at + NODES_PER_LEAF] for at in range(0, len(names), NODES_PER_LEAF)]

    def open(self, flags: Sequence[str], pace: Pace) -> None:
        """Say what is to be seen."""
        self._console.print()
        self._console.print(Text("Turnout: the right size", style="bold"))
        self._console.print(
            f"A queue of {GPUS} GPUs under {LEAVES} leaf switches. A job says how many workers it needs at least and "
            "can use at most, a GPU each. What it has above its least is lent: GPUs that nobody else needs now, and "
            "that go back as soon as another job does. The real autoscaler decides, "
            f"`turnout-autoscaler {' '.join(flags)}`, which knows only what the Kubernetes API shows; the extender "
            f"places. Pods take {pace.pull_s:g} s to start here and {pace.stop_s:g} s to stop."
        )
        self._console.print()
        self._console.print(
            f"Each line shows who holds the GPUs of each leaf: a capital is a worker that its job needs, a small "
            f"letter one that it is lent, {FREE} an idle GPU. `why` is the autoscaler's own word, the same as in "
            "its log, its metrics and its Events on the jobs."
        )
        self._console.print()

    def say(self, text: str) -> None:
        """One sentence on the way."""
        self._console.print(Text(text, style="dim"))

    @contextmanager
    def acts(self) -> Iterator[None]:
        """Keep the bars at the bottom for as long as things happen."""
        self._console.print()
        leaves = [Text(f"leaf-{number}", style="bold") for number in range(1, LEAVES + 1)]
        self._row("at s", leaves, "why", Text("what happens", style="bold"))
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            yield
        self._live = None

    def happened(self, story: Story, moment: Moment) -> None:
        """Show a moment, if it is one to tell of. story: up to it."""
        text = line(story, moment)
        if text:
            found = [self._strip(story, moment.seats, leaf) for leaf in self._leaves]
            why = moment.decision.reason.value if moment.decision else ""
            what = Text(text, style="" if moment.decision else "bold")
            self._row(f"{moment.at_s:.1f}", found, why, what)
        if self._live is not None:
            self._live.update(_board(story, moment), refresh=True)

    def _row(self, at: str, leaves: Sequence[Text], why: str, what: Text) -> None:
        row = _row(at, leaves, why, what, self._console.width)
        self._console.print(row, no_wrap=True, overflow="crop", soft_wrap=False)

    def _strip(self, story: Story, seats: Seats, leaf: Sequence[str]) -> Text:
        return _coloured(strip(seats, story.players, leaf, GPUS_PER_NODE))

    def close(self, story: Story) -> None:
        """The whole story as a picture, in numbers and in a sentence."""
        drawn, sums = chart(story, min(_CHART_COLUMNS, self._console.width - 2)), added_up(story)
        self._console.print()
        self._console.print(Text(f"The {story.gpus} GPUs from beginning to end:", style="bold"))
        for row in drawn.rows:
            self._console.print(Text("  ") + _coloured(row))
        self._console.print(Text(f"  {drawn.marks}", style="bold"), no_wrap=True, overflow="crop")
        legend = (
            f"  a column is {drawn.column_s:.2f} s, a row a GPU: needed ones below, lent ones on top of them; "
            "+ arrives, - leaves"
        )
        self._console.print(Text(legend, style="dim"))
        self._console.print()
        self._console.print(_table(sums))
        self._console.print()
        self._console.print(Text(sentence(story, sums), style="bold"))


def _row(at: str, leaves: Sequence[Text], why: str, what: Text, width: int) -> Text:
    """One line of the story; what does not fit in `width` columns goes on below itself."""
    row = Text(f"{at:>4}  ", style="", end="")
    for leaf in leaves:
        row.append_text(leaf)
        row.append(" " * (NODES_PER_LEAF * GPUS_PER_NODE - len(leaf) + 2))
    row.append(f"{why:<{_WHY}}  ", style="bold")
    indent = len(row)
    for number, part in enumerate(wrap(what.plain, max(_LEAST_WIDTH, width - indent))):
        row.append("\n" + " " * indent if number else "")
        row.append(part, style=what.style)
    return row


def _coloured(signs: str) -> Text:
    text = Text()
    for part in runs(signs):
        sign = part[0]
        style = colour(sign.upper())
        text.append(part, style=style.replace("bold ", "") if sign.islower() else style)
    return text


def _board(story: Story, moment: Moment) -> Group:
    """A bar a job that is there, and the last word on it."""
    lines = [Text()]
    for bar in bars(moment.seats, story.players):
        if story.is_present(bar.letter) or bar.own:
            decision = story.last_decision(bar.letter)
            lines.append(_bar(bar, story.player(bar.letter).least, decision.reason.value if decision else ""))
    idle = story.gpus - len(moment.seats)
    lines.append(Text(f"     {FREE * idle * _SIGNS:<{story.gpus * _SIGNS}}  {idle} idle", style="dim"))
    return Group(*lines)


def _bar(bar: Bar, least: int, why: str) -> Text:
    text = Text(f"  {bar.letter}  ", style=colour(bar.letter))
    text.append("█" * bar.own * _SIGNS)
    text.append("▒" * bar.lent * _SIGNS, style="dim")
    text.append(" " * (GPUS - bar.own - bar.lent) * _SIGNS)
    needed = f"{bar.own} needed" if bar.own == least else f"{bar.own} of {least} needed"
    numbers = needed + (f", {bar.lent} lent" if bar.lent else "")
    text.append(f"  {numbers:<20}{why}", style="not bold")
    return text


def _table(sums: Sums) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for what, amount in (
        ("GPU-seconds needed", sums.own_gpu_s),
        ("GPU-seconds lent", sums.lent_gpu_s),
        ("GPU-seconds idle", sums.idle_gpu_s),
    ):
        table.add_row(what, f"{amount:.0f}", f"{amount / sums.all_gpu_s:.0%}")
    table.add_row("growths", str(sums.growths), "")
    table.add_row("shrinks", str(sums.shrinks), f"of {sums.given} workers together")
    if sums.longest is not None:
        table.add_row("longest wait for lent GPUs", f"{sums.longest.whole_s:.2f} s", sums.longest.letter)
    return table
