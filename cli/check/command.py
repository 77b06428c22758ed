"""The verb `turnout check`."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import TYPE_CHECKING

from turnout.cli.verb_support.cluster_flags import Verbs, add_cluster, add_verb

if TYPE_CHECKING:
    from turnout.cli.check.verdicts import CheckLine
    from turnout.kube.client.api_client import Client

_EXAMPLES = (
    ("check", "each finding in a line, with what mends it"),
    ("check -o json", "for a program"),
    ("check --context production", "another cluster of the kubeconfig"),
)
_SIGNS = {"fine": ("✓", "green"), "unknown": ("?", "blue"), "doubtful": ("!", "yellow"), "wrong": ("✗", "red")}


def add(commands: Verbs) -> None:
    """Add the verb `check` to the command line."""
    check = add_verb(
        commands,
        "check",
        "look over what is installed, whether it is asked, the map, certificates and clocks; exit 3 if wrong",
        _EXAMPLES,
    )
    check.add_argument("-o", "--output", choices=("table", "json"), default="table", help="output format (%(default)s)")
    add_cluster(check)
    check.set_defaults(run=_check)


def _check(args: argparse.Namespace) -> int:
    """Read the cluster, print a line for each requirement, and return the exit code."""
    from turnout.cli.exit_codes import ExitCode
    from turnout.cli.verb_support.run_verb import run_verb

    async def work(client: Client) -> ExitCode:
        """Check the installation and print the findings. Returns NEGATIVE_RESULT if one of them is wrong."""
        from importlib.metadata import version

        from turnout.cli.check.facts import read_facts
        from turnout.cli.check.verdicts import Level, lines

        found = lines(await read_facts(client, version("turnout")))
        _print(found, args.output)
        return ExitCode.NEGATIVE_RESULT if any(line.level is Level.WRONG for line in found) else ExitCode.DONE

    return run_verb("check", args, work)


def _print(found: Iterable[CheckLine], output_format: str) -> None:
    """Print the lines as a table or as JSON. output_format: "table" or "json"."""
    if output_format == "json":
        import json

        documents = [
            {"word": each.level.value, "about": each.about, "text": each.text, "remedy": each.remedy} for each in found
        ]
        print(json.dumps(documents, indent=2))
        return
    from rich.markup import escape

    from turnout.cli.verb_support.terminal import terminal

    console = terminal(False)
    for each in found:
        sign, colour = _SIGNS[each.level.value]
        console.print(f"[{colour}]{sign}[/] {each.about:<12} {escape(_plain(each.text))}", soft_wrap=True)
        if each.remedy:
            console.print(f"{'':15}[dim]→ {escape(_plain(each.remedy))}[/]", soft_wrap=True)


def _plain(text: str) -> str:
    """Return the text with a question mark for each character that is not printable, such as an escape."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
