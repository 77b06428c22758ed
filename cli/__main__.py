"""The `turnout` command, also `kubectl turnout`: what it can be asked, and nothing heavy until it is asked.

Exit codes are those of exit_codes.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from turnout.cli.commands.run_verb import BadWord
from turnout.cli.exit_codes import Exit
from turnout.kube.version import add_version

_MOST_GANGS = 25  # scene.MOST_GANGS, which is not imported before it is needed

# Whose `add` makes which commands, in the order of the help. Only those of the command that is asked for are imported.
ROOMS = (
    (("check",), "turnout.cli.check.command"),
    (("jobs", "describe", "logs", "suspend", "submit"), "turnout.cli.verbs.jobs"),
    (("pause", "resume"), "turnout.cli.verbs.pause"),
    (("why",), "turnout.cli.verbs.why"),
    (("queues", "top"), "turnout.cli.verbs.queues"),
    (("topology", "explain"), "turnout.cli.verbs.topology"),
    (("history",), "turnout.cli.verbs.history"),
    (("nodes",), "turnout.cli.verbs.nodes"),
    (("version",), "turnout.cli.verbs.version"),
    (("replay-decisions",), "turnout.cli.verbs.replay"),
    (("simulate",), "turnout.cli.verbs.simulate"),
    (("stacks",), "turnout.cli.verbs.stacks"),
    (("local",), "turnout.cli.local_cluster.commands"),
    (("release",), "turnout.cli.release.command"),
)
OWN = ("demo", "topo", "nominate", "completion")  # these need no room
COMMANDS = frozenset([*OWN, *(name for names, _ in ROOMS for name in names)])
# How the help of the whole command arranges them.
GROUPS = (
    ("See the cluster", ("queues", "top", "topology", "nodes", "history", "version")),
    ("Ask about a job", ("why", "explain", "jobs", "describe", "logs", "stacks")),
    ("Change something", ("submit", "suspend", "pause", "resume", "release", "nominate")),
    ("Look over an installation", ("check", "topo")),
    ("Try it without a cluster", ("demo", "local", "simulate", "replay-decisions")),
    ("Set up the shell", ("completion",)),
)
SHELLS = ("bash", "zsh", "tcsh", "fish", "powershell")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is its answer."""
    words = sys.argv[1:] if argv is None else argv
    if not words:
        print(parser().format_help(), end="")
        return Exit.DONE
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        print(f"turnout: there is no command {words[0]!r:.40}{_meant(words[0])}", file=sys.stderr)
        return Exit.USAGE
    args = parser(words[0]).parse_args(words)
    command: Callable[[argparse.Namespace], int] = args.run
    try:
        return command(args)
    except BadWord as error:
        print(f"turnout {args.verb}: {error}", file=sys.stderr)
        return Exit.USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return Exit.INTERRUPTED


def stacktrace_viewer() -> int:
    """`turnout stacks` under the guide's name. Source: DL-115"""
    return main(["stacks", *sys.argv[1:]])


class _WholeParser(argparse.ArgumentParser):
    """The parser of the whole command. Its help lists the commands by what a person wants to do."""

    def format_help(self) -> str:
        """Return the help, grouped as GROUPS has it."""
        (commands,) = (each for each in self._actions if isinstance(each, argparse._SubParsersAction))
        helps = {each.dest: each.help for each in commands._choices_actions}
        lines = [f"usage: {self.prog} COMMAND [OPTIONS]", "", str(self.description)]
        for title, names in GROUPS:
            lines += ["", f"{title}:", *(f"  {name:<18}{helps[name]}" for name in names)]
        lines += [
            "",
            f"`{self.prog} COMMAND --help` tells the options of a command, `{self.prog} --version` the version.",
        ]
        return "\n".join([*lines, ""])


def _meant(word: str) -> str:
    close = get_close_matches(word, sorted(COMMANDS), 1)
    return f"; did you mean `turnout {close[0]}`?" if close else "; `turnout` lists all"


def parser(word: str = "") -> argparse.ArgumentParser:
    """Make the parser of the whole command. word: the first of the command line; where it is a command, of that one."""
    top = _WholeParser(prog="turnout", description="GPU training: the right switches, the right size.")
    add_version(top)
    commands = top.add_subparsers(metavar="COMMAND", required=True, dest="verb", parser_class=argparse.ArgumentParser)
    _add_own(commands)
    rooms = [room for verbs, room in ROOMS if word in verbs]
    for room in rooms if rooms or word in OWN else [room for _, room in ROOMS]:
        import_module(room).add(commands)
    completion = commands.add_parser("completion", help="print a script that completes commands and options")
    completion.add_argument("shell", choices=SHELLS, help="what it is for")
    completion.set_defaults(run=_completion)
    return top


def _add_own(commands: Any) -> None:
    """Add the commands that have no room of their own."""
    demo = commands.add_parser("demo", help="see gangs land under one switch, and a queue lend its idle GPUs")
    demo.add_argument("--seed", type=int, default=1, help="which cluster and which gangs (%(default)s)")
    demo.add_argument("--gangs", type=_gangs, default=14, help=f"how many arrive, 1 to {_MOST_GANGS} (%(default)s)")
    demo.add_argument("--fast", action="store_true", help="no pauses between the acts")
    demo.add_argument("--plain", action="store_true", help="plain text, as for a file")
    demo.add_argument("--part", choices=("both", "gangs", "lending"), default="both", help="what to see (%(default)s)")
    demo.set_defaults(run=_demo)
    topo = commands.add_parser("topo", help="the switch topology").add_subparsers(metavar="COMMAND", required=True)
    check = topo.add_parser("check", help="tell every fault of a topology text or ConfigMap; exit 3 when it has any")
    check.add_argument("file", help="a text of `asw psw ip` lines, our YAML form, or a ConfigMap; - for stdin")
    check.set_defaults(run=_topo_check)
    nominate = commands.add_parser("nominate", help="the nominations of turnout-nominator")
    nominate.add_argument("--clear", action="store_true", required=True, help="take every one of them back")
    nominate.add_argument("--kubeconfig", help="path; else in-cluster, else the user's own")
    nominate.add_argument("--context", help="of the kubeconfig")
    nominate.set_defaults(run=_nominate_clear)


def _gangs(text: str) -> int:
    number = int(text)
    if not 1 <= number <= _MOST_GANGS:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {_MOST_GANGS}")
    return number


def _demo(args: argparse.Namespace) -> int:
    import asyncio

    from turnout.cli.commands.child_env import ChildFailed
    from turnout.cli.commands.terminal import ended_by_sigterm, terminal
    from turnout.cli.demo.driver import Show
    from turnout.cli.demo.lending.testbed import StoryFailed
    from turnout.cli.demo.parts import play

    show = Show(seed=args.seed, gangs=args.gangs)
    try:
        asyncio.run(ended_by_sigterm(play(args.part, show, args.fast, terminal(args.plain))))
    except (ChildFailed, StoryFailed) as error:
        print(f"turnout demo: {error}", file=sys.stderr)
        return Exit.FAILED
    except asyncio.CancelledError:
        return Exit.INTERRUPTED
    return 0


def _nominate_clear(args: argparse.Namespace) -> int:
    import asyncio

    from turnout.kube.errors import KubeError
    from turnout.scheduler_ext.nominator import clear

    try:
        count = asyncio.run(clear(args.kubeconfig, args.context))
    except KubeError as error:
        print(f"turnout nominate: {error}", file=sys.stderr)
        return Exit.FAILED
    print(f"{count} nominations taken back")
    return 0


def _completion(args: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(parser(), shell=args.shell))
    return 0


def _topo_check(args: argparse.Namespace) -> int:
    from turnout.cli.topo_check import check, told

    try:
        text = sys.stdin.read() if args.file == "-" else Path(args.file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        print(f"turnout topo check: {error}", file=sys.stderr)
        return Exit.FAILED
    reading = check(text)
    name = "stdin" if args.file == "-" else args.file
    print("\n".join(told(name, reading)), file=sys.stderr if reading.faults else sys.stdout)
    return Exit.FOUND_WRONG if reading.faults else 0


if __name__ == "__main__":
    from turnout.cli.programs import turnout

    sys.exit(turnout())
