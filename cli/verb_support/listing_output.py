"""The options of all verbs that list, and the printing of a listing: once, or at each change."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from turnout.cli.verb_support.cluster_flags import context_namespace
from turnout.cli.views.listing import FORMS, Listing, changes, text

if TYPE_CHECKING:
    from turnout.kube.client.clock import Clock

REFRESH_S = 2.0  # between two observations of -w
Observe = Callable[[], Awaitable[Listing[Any]]]


def add_output(parser: argparse.ArgumentParser, columns: Sequence[str] = ()) -> None:
    """Add -o, -w and --no-headers, and --sort-by if columns are given.

    columns: headings of the columns by which rows may be sorted, in upper case.
    """
    add_form(parser)
    parser.add_argument(
        "-w", "--watch", action="store_true", help="continue, and print each row that changes, until Ctrl-C"
    )
    parser.add_argument("--no-headers", action="store_true", help="print only the rows of a table")
    if columns:
        parser.add_argument(
            "--sort-by",
            type=str.upper,
            choices=columns,
            default="",
            metavar="COLUMN",
            help=f"sort the rows by this column: {', '.join(columns).lower()}",
        )


def add_form(parser: argparse.ArgumentParser) -> None:
    """Add -o alone, for a verb whose answer is not watched."""
    parser.add_argument("-o", "--output", choices=FORMS, default="table", help="output format (%(default)s)")


def add_selector(parser: argparse.ArgumentParser, of: str) -> None:
    """Add -l, a label selector. of: plural of the listed kind, for the help text, as in "jobs"."""
    parser.add_argument(
        "-l", "--selector", default="", metavar="LABELS", help=f"only {of} with these labels, as in a=b"
    )


def add_namespace(parser: argparse.ArgumentParser, of: str, *, everywhere: bool = False) -> None:
    """Add -n and -A, which `namespace_of` reads. of: plural of the listed kind, for the help text, as in "jobs".

    everywhere: list all namespaces by default; otherwise the namespace of the kubeconfig's context.
    """
    where = parser.add_mutually_exclusive_group()
    usual = "all" if everywhere else "that of your context"
    where.add_argument("-n", "--namespace", default="", help=f"only {of} in this namespace ({usual})")
    where.add_argument(
        "-A", "--all-namespaces", action="store_true", default=everywhere, help=f"{of} in all namespaces"
    )


def namespace_of(args: argparse.Namespace) -> str:
    """Return the namespace that is listed, "" for all of them. args: with the options of `add_namespace` and
    `add_cluster`.
    """
    return str(args.namespace) or ("" if args.all_namespaces else context_namespace(args))


async def show(args: argparse.Namespace, observe: Observe, print_now: Callable[[str], None], clock: Clock) -> None:
    """Print a listing. With -w observe again every REFRESH_S seconds and print the changed rows, until cancelled.

    observe: returns the current listing. print_now: prints one text. While the API server is unreachable, -w retries;
    the first listing raises Unreachable. Any other error of `observe` is raised.
    """
    from turnout.kube.errors import Unreachable

    by = getattr(args, "sort_by", "")
    listing = (await observe()).sorted_by(by)
    print_now(text(listing, args.output, headers=not args.no_headers))
    while args.watch:
        before = listing.compared_values()
        await clock.sleep(REFRESH_S)
        try:
            listing = (await observe()).sorted_by(by)
        except Unreachable:
            continue
        if changed_rows := changes(listing, args.output, before):
            print_now(changed_rows)
