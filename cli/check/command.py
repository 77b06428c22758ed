"""`turnout check`, as a person types it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnout.cli.check.model import Line

FAILED, FOUND_WRONG = 1, 3
_SIGNS = {"fine": ("✓", "green"), "unknown": ("?", "blue"), "doubtful": ("!", "yellow"), "wrong": ("✗", "red")}


def add(commands: Any) -> None:
    """Add it to the parser's commands."""
    check = commands.add_parser(
        "check",
        help="look over what is installed, whether it is asked, the map, certificates and clocks; exit 3 if wrong",
    )
    check.add_argument("-o", "--output", choices=("table", "json"), default="table", help="(%(default)s)")
    check.add_argument("--kubeconfig", help="path; else in-cluster, else the user's own")
    check.add_argument("--context", help="of the kubeconfig")
    check.set_defaults(run=_check)


def _check(args: argparse.Namespace) -> int:
    import asyncio
    from importlib.metadata import version

    from turnout.cli.check.facts import look
    from turnout.cli.check.model import Seen, Word
    from turnout.cli.check.verdicts import lines
    from turnout.kube.client.api_client import Client
    from turnout.kube.errors import KubeError

    async def seen() -> Seen:
        async with await Client.open(args.kubeconfig, args.context) as client:
            return await look(client, version("turnout"))

    try:
        found = lines(asyncio.run(seen()))
    except KubeError as error:
        print(f"turnout check: {error}", file=sys.stderr)
        return FAILED
    _print(found, args.output)
    return FOUND_WRONG if any(line.word is Word.WRONG for line in found) else 0


def _print(found: Iterable[Line], form: str) -> None:
    if form == "json":
        import json

        told = [
            {"word": each.word.value, "about": each.about, "text": each.text, "remedy": each.remedy} for each in found
        ]
        print(json.dumps(told, indent=2))
        return
    from rich.markup import escape

    from turnout.cli.commands.terminal import terminal

    console = terminal(False)
    for each in found:
        sign, colour = _SIGNS[each.word.value]
        console.print(f"[{colour}]{sign}[/] {each.about:<12} {escape(_plain(each.text))}", soft_wrap=True)
        if each.remedy:
            console.print(f"{'':15}[dim]→ {escape(_plain(each.remedy))}[/]", soft_wrap=True)


def _plain(text: str) -> str:
    """Keep a terminal from obeying what stands in a name."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
