"""Shows the lending demo: a line for each event, with the leaf switches beside it, and the sums.

On a terminal, bars stay at the bottom and change; elsewhere only the lines and the sums are printed, without colours.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from turnout.autoscaler.model import Reason
from turnout.cli.demo.lending.model import (
    LendingSums,
    LoggedDecision,
    MomentKind,
    Player,
    Seats,
    Story,
    StoryMoment,
    held_gpus,
    running_gpus,
    sentence,
    sum_up,
    wait_of,
    wait_text,
)
from turnout.cli.demo.lending.testbed import GPUS, GPUS_PER_NODE, LEAVES, NODES_PER_LEAF, places
from turnout.cli.demo.screen import colour
from turnout.simulator.cluster.kubelet import Pace

_CHART_COLUMNS = 72
_SIGNS = 2  # a GPU of a bar is this wide
_WHY = 14
_MIN_WIDTH = 20


class LendingScreen:
    """The output of the lending demo on a terminal or into a file."""

    def __init__(self, console: Console) -> None:
        """Begin without output. console: to which everything is printed."""
        self._console = console
        self._live: Live | None = None
        names = [place.name for place in places()]
        self._leaves = [names[at : at + NODES_PER_LEAF] for at in range(0, len(names), NODES_PER_LEAF)]

    def open(self, flags: Sequence[str], pace: Pace) -> None:
        """Print what the demo will show. flags: of the autoscaler, as the demo starts it. pace: seconds in which pods
        start and stop.
        """
        self._console.print()
        self._console.print(Text("Turnout: the right size", style="bold"))
        self._console.print(
            f"A queue of {GPUS} GPUs under {LEAVES} leaf switches. A job says how many workers it needs at least and "
            "can use at most, a GPU each. GPUs above its min are lent: nobody else needs them now, and they go back "
            "as soon as another job needs them. The real autoscaler decides, "
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

    def print_now(self, text: str) -> None:
        """Print one line of progress."""
        self._console.print(Text(text, style="dim"))

    @contextmanager
    def acts(self) -> Iterator[None]:
        """Print the heading of the rows, and keep the bars of the jobs at the bottom of the screen until the block
        ends.

        Without a terminal no bars are shown.
        """
        self._console.print()
        leaves = [Text(f"leaf-{number}", style="bold") for number in range(1, LEAVES + 1)]
        self._row("at s", leaves, "why", Text("what happens", style="bold"))
        if not self._console.is_terminal:
            yield
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as self._live:
            yield
        self._live = None

    def happened(self, story: Story, moment: StoryMoment) -> None:
        """Print a moment of the story, unless it has no caption, and redraw the board. story: up to this moment."""
        text = line(story, moment)
        if text:
            found = [self._gpu_text(story, moment.seats, leaf) for leaf in self._leaves]
            why = moment.decision.reason.value if moment.decision else ""
            what = Text(text, style="" if moment.decision else "bold")
            self._row(f"{moment.at_s:.1f}", found, why, what)
        if self._live is not None:
            self._live.update(_board(story, moment), refresh=True)

    def _row(self, time_text: str, leaf_cells: Sequence[Text], reason: str, caption: Text) -> None:
        row = _row(time_text, leaf_cells, reason, caption, self._console.width)
        self._console.print(row, no_wrap=True, overflow="crop", soft_wrap=False)

    def _gpu_text(self, story: Story, seats: Seats, leaf: Sequence[str]) -> Text:
        return _coloured(gpu_signs(seats, story.players, leaf, GPUS_PER_NODE))

    def close(self, story: Story) -> None:
        """Print the outcome after the last moment: a chart of GPUs over time, its legend, a table of sums and a
        sentence.

        story: the whole story. The live board is not touched.
        """
        drawn, sums = chart(story, min(_CHART_COLUMNS, self._console.width - 2)), sum_up(story)
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


def _row(time_text: str, leaf_cells: Sequence[Text], reason: str, caption: Text, width: int) -> Text:
    """Return one line of the story; text beyond `width` columns continues on the next line, below its column.

    time_text: seconds since the beginning. leaf_cells: a text for each leaf switch. reason: why the step is made.
    """
    row = Text(f"{time_text:>4}  ", style="", end="")
    for leaf in leaf_cells:
        row.append_text(leaf)
        row.append(" " * (NODES_PER_LEAF * GPUS_PER_NODE - len(leaf) + 2))
    row.append(f"{reason:<{_WHY}}  ", style="bold")
    indent = len(row)
    for number, part in enumerate(wrap(caption.plain, max(_MIN_WIDTH, width - indent))):
        row.append("\n" + " " * indent if number else "")
        row.append(part, style=caption.style)
    return row


def _coloured(signs: str) -> Text:
    """Return the signs of a row of GPUs in their players' colours; upper-case signs are bold."""
    text = Text()
    for part in runs(signs):
        sign = part[0]
        style = colour(sign.upper())
        text.append(part, style=style.replace("bold ", "") if sign.islower() else style)
    return text


def _board(story: Story, moment: StoryMoment) -> Group:
    """Return a bar for each job that is present or still has GPUs, with the last decision on it, and the idle GPUs."""
    lines = [Text()]
    for bar in bars(moment.seats, story.players):
        if story.is_present(bar.letter) or bar.own:
            decision = story.last_decision(bar.letter)
            lines.append(_bar(bar, story.player(bar.letter).minimum, decision.reason.value if decision else ""))
    idle = story.gpus - len(moment.seats)
    lines.append(Text(f"     {FREE * idle * _SIGNS:<{story.gpus * _SIGNS}}  {idle} idle", style="dim"))
    return Group(*lines)


def _bar(bar: Bar, minimum: int, why: str) -> Text:
    """Return the bar of a job. minimum: its min, in GPUs. why: the text behind the bar."""
    text = Text(f"  {bar.letter}  ", style=colour(bar.letter))
    text.append("█" * bar.own * _SIGNS)
    text.append("▒" * bar.lent * _SIGNS, style="dim")
    text.append(" " * (GPUS - bar.own - bar.lent) * _SIGNS)
    needed = f"{bar.own} needed" if bar.own == minimum else f"{bar.own} of {minimum} needed"
    numbers = needed + (f", {bar.lent} lent" if bar.lent else "")
    text.append(f"  {numbers:<20}{why}", style="not bold")
    return text


def _table(sums: LendingSums) -> Table:
    """Return the sums of a story as a table."""
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


# Reasons that get a caption although the size of the job stays. Each change of size gets one.
_WAITS = frozenset([Reason.WAITS_FOR_ROOM, Reason.NEEDS_MORE])
_STAYS = frozenset([Reason.COOLDOWN, Reason.REFUSED])

_PAST = {MomentKind.ARRIVES: "arrived", MomentKind.LEAVES: "left"}


def line(story: Story, moment: StoryMoment) -> str:
    """Return the caption of a moment; "" for one without. story: up to this moment."""
    match moment.kind:
        case MomentKind.ARRIVES:
            return f"{moment.letter} arrives: {_request_words(story.player(moment.letter))}"
        case MomentKind.LEAVES:
            return f"{moment.letter} is done and leaves"
        case MomentKind.DECIDES:
            return _decision_caption(moment.decision) if moment.decision else ""
        case MomentKind.RUNS:
            return _run_caption(story, moment)
        case MomentKind.COOLDOWN_OVER:
            return _rest_caption(story, moment)
        case MomentKind.MOVES:
            return ""


def _request_words(player: Player) -> str:
    """Return how many workers a player asks for, in words."""
    if not player.elastic:
        return f"{_workers(player.minimum)}, no fewer"
    text = f"{player.minimum} to {_workers(player.maximum)}"
    return f"{text}; its owner wants it restarted whenever a pod is evicted" if player.restarts else text


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}"


def _decision_caption(decision: LoggedDecision) -> str:
    """Return a decision in words; "" if its reason has no caption."""
    if decision.is_written:
        verb = "grows" if decision.workers > decision.workers_before else "shrinks"
        text = f"{decision.letter} {verb} from {decision.workers_before} to {decision.workers}"
    elif decision.reason in _WAITS:
        text = f"{decision.letter} waits"
    elif decision.reason in _STAYS:
        text = f"{decision.letter} stays at {decision.workers}"
    else:
        return ""
    return f"{text}: {decision.detail}" if decision.detail else text


def _run_caption(story: Story, moment: StoryMoment) -> str:
    """Return the caption of a job that runs: its workers, and the time since its wait or the last arrival."""
    letter, changes = moment.letter, story.changes(moment.letter)
    text = f"{letter} runs with {_workers(running_gpus(moment.seats, letter))}"
    wait = wait_of(story, letter)
    if wait is not None and story.first(MomentKind.RUNS, letter) is moment:
        return f"{text}, {wait_text(wait)}"
    last_change = next(m for m in reversed(story.moments) if m.kind in _PAST)
    who = "it" if last_change.letter == letter else last_change.letter
    text += f", {moment.at_s - last_change.at_s:.2f} s after {who} {_PAST[last_change.kind]}"
    if len(changes) > 1 and last_change.kind is MomentKind.LEAVES:
        since_s = changes[-1].at_s - changes[-2].at_s
        text += f"; its size changed {since_s:.1f} s after the last time, and {story.cooldown_s:g} s is its cooldown"
    return text


def _rest_caption(story: Story, moment: StoryMoment) -> str:
    """Return how many GPUs each job has, and how long ago the autoscaler decided on this job."""
    words = [m for m in story.moments if m.decision and m.decision.letter == moment.letter]
    gpus_by_letter = {player.letter: held_gpus(moment.seats, player.letter) for player in story.players}
    now = {letter: gpus for letter, gpus in gpus_by_letter.items() if gpus}
    same = bool(words) and all(held_gpus(words[-1].seats, letter) == gpus for letter, gpus in now.items())
    has = ", ".join(f"{letter} has {count}" for letter, count in now.items())
    idle = story.gpus - len(moment.seats)
    what = "nothing has changed" if same else "this has changed"
    since_s = moment.at_s - words[-1].at_s if words else moment.at_s
    return f"{since_s:.1f} s later {what}: {has}, {idle or 'no'} GPU{'' if idle == 1 else 's'} idle"


FREE = "·"
_MARKS = {MomentKind.ARRIVES: "+", MomentKind.LEAVES: "-"}


@dataclass(frozen=True, slots=True)
class Bar:
    """One job in GPUs: up to its min, and above it."""

    letter: str
    own: int
    lent: int


@dataclass(frozen=True, slots=True)
class Chart:
    """GPUs over time."""

    rows: tuple[str, ...]  # from the top, one character per column
    marks: str  # arrivals (+) and departures (-), below them
    column_s: float


def gpu_signs(seats: Seats, players: Sequence[Player], nodes: Sequence[str], gpus: int) -> str:
    """Return the GPUs of a leaf switch as text, one character each, node by node: the letter of the job that holds it,
    in lower case for a worker above the min, FREE for an idle GPU.

    seats: GPUs that the players hold. nodes: under the switch. gpus: of each node.
    """
    minimum = {player.letter: player.minimum for player in players}
    signs = ""
    for node in nodes:
        letters = [
            s.letter if s.index < minimum[s.letter] else s.letter.lower() for s in sorted(seats) if s.node == node
        ]
        signs += "".join(letters).ljust(gpus, FREE)
    return signs


def bars(seats: Seats, players: Sequence[Player]) -> list[Bar]:
    """Return a bar for each player, in the order of `players`: the GPUs that its job holds, also none."""
    amounts = [(player, held_gpus(seats, player.letter)) for player in players]
    return [Bar(player.letter, min(has, player.minimum), max(0, has - player.minimum)) for player, has in amounts]


def chart(story: Story, columns: int) -> Chart:
    """Return the GPUs of a story over time. From below: what jobs need at least, what is lent, and what is idle.

    story: with a moment after its begin. columns: characters of a row.
    """
    times = [moment.at_s for moment in story.moments]
    column_s = times[-1] / columns
    stacks = []
    for column in range(columns):
        now = story.moments[max(0, bisect_right(times, (column + 0.5) * column_s) - 1)]
        found = bars(now.seats, story.players)
        own = "".join(bar.letter * bar.own for bar in found)
        stacks.append((own + "".join(bar.letter.lower() * bar.lent for bar in found)).ljust(story.gpus, FREE))
    rows = ("".join(stack[row] for stack in stacks) for row in reversed(range(story.gpus)))
    return Chart(tuple(rows), _marks(story, column_s), column_s)


def _marks(story: Story, column_s: float) -> str:
    """Return a line with a mark below the timeline for each notable moment. column_s: seconds per column."""
    line = ""
    for moment in story.moments:
        if moment.kind in _MARKS:
            at = int(moment.at_s / column_s)
            line = line.ljust(max(at, len(line) + bool(line)))
            line += moment.letter + _MARKS[moment.kind]
    return line


def runs(signs: str) -> list[str]:
    """Return the signs cut wherever they change; [] for no signs."""
    cuts = [0, *(at for at, (a, b) in enumerate(pairwise(signs), 1) if a != b), len(signs)]
    return [signs[a:b] for a, b in pairwise(cuts) if a < b]
