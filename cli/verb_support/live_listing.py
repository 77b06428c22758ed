"""Shows a listing on the whole terminal, and draws it again every two seconds: `turnout top --live`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from turnout.cli.verb_support.listing_output import REFRESH_S, Observe
from turnout.kube.client.logs import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from turnout.cli.views.listing import Listing
    from turnout.kube.client.clock import Clock

_BAR_COLUMNS = 20  # characters of a bar
_FRAME_LINES = 4  # the heading, an empty line, the heads of the columns, the last line


async def show_live(observe: Observe, heading: str, clock: Clock, console: Console, sort_by: str = "") -> None:
    """Draw a listing on the whole terminal, again every REFRESH_S, until cancelled.

    If the API server cannot be reached, the last listing stays, with its age and the error. Any other error, and each
    error of the first observation, is raised. observe: returns the current listing. sort_by: heading of a column, ""
    for no sorting.
    """
    from rich.live import Live

    from turnout.kube.errors import Unreachable

    listing, fault = (await observe()).sorted_by(sort_by), ""
    observed_at_s = clock.wall()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            age_s = clock.wall() - observed_at_s
            line = f"{fault}; this is {age_s:.0f} s old" if fault else f"{_time_of_day(observed_at_s)}, Ctrl-C ends"
            live.update(screen(listing, f"{heading}  {line}", bool(fault), console.height), refresh=True)
            await clock.sleep(REFRESH_S)
            try:
                listing, fault = (await observe()).sorted_by(sort_by), ""
                observed_at_s = clock.wall()
            except Unreachable as error:
                fault = str(error)


def _time_of_day(wall_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(wall_s))


def screen(listing: Listing[Any], heading: str, is_stale: bool, height: int) -> RenderableType:
    """Return the part of a listing for `height` lines: heading, notes, the first rows, and the number of hidden rows.

    Wide columns are omitted, and a column with a share gets a bar. At least one row is shown, even if `height` is too
    small for it. Without rows the listing's `empty` text is shown. is_stale: the heading is drawn as a warning.
    """
    from rich.bar import Bar
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in listing.columns:
        if not column.wide:
            table.add_column(column.head, justify="right" if column.number else "left", no_wrap=True)
            if column.share is not None:
                table.add_column("", width=_BAR_COLUMNS)
    space = max(1, height - _FRAME_LINES - len(listing.notes))
    for row in listing.rows[:space]:
        cells: list[RenderableType] = []
        for column in listing.columns:
            if not column.wide:
                cells.append(Text(printable(column.cell(row))))
                if column.share is not None:
                    cells.append(Bar(1.0, 0.0, min(column.share(row), 1.0), width=_BAR_COLUMNS, color="cyan"))
        table.add_row(*cells)
    more = len(listing.rows) - space
    last = [Text(f"{more} more rows do not fit", style="dim")] if more > 0 else []
    notes = [Text(printable(note)) for note in listing.notes]
    body: RenderableType = table if listing.rows else Text(listing.empty)
    head = Text(printable(heading), style="bold yellow" if is_stale else "bold", no_wrap=True, overflow="ellipsis")
    return Group(head, *notes, Text(), body, *last)
