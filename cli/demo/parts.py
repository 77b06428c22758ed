"""The demo as a whole: which parts are played, and what to try after them."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console

from turnout.cli.demo.driver import Show, perform
from turnout.cli.demo.lending.driver import Loan, lend
from turnout.cli.demo.lending.screen import LendingScreen
from turnout.cli.demo.screen import Screen

GANGS, LENDING, BOTH = "gangs", "lending", "both"
_FAST_S = 0.4  # a state of the second part that is gone at once would not be in its picture
_NEXT = (
    ("turnout demo --seed 7", "another cluster, other gangs"),
    ("turnout demo --gangs 20 --fast", "a longer day, without pauses"),
    ("turnout demo --part lending", "the queue alone"),
    ("turnout topology check FILE", "every fault of your own topology text, with its line"),
)


async def play(part: str, show: Show, fast: bool, console: Console) -> None:
    """Play one part, or both. Raises ChildFailed and StoryFailed."""
    if part != LENDING:
        await perform(replace(show, pause_s=0.0) if fast else show, Screen(console))
    if part != GANGS:
        loan = Loan()
        await lend(replace(loan, pause_s=_FAST_S) if fast else loan, LendingScreen(console))
    console.print()
    console.print("Try next:")
    for command, what in _NEXT:
        console.print(f"  {command:<32} {what}", highlight=False)
