"""The `turnout` command, also `kubectl turnout`: its verbs and its help.

A verb's module is imported only when the verb is used. Exit codes are those of exit_codes.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module

from turnout.cli.exit_codes import MEANS, ExitCode
from turnout.cli.verb_support.cluster_flags import VerbParser, add_verb
from turnout.cli.verb_support.run_verb import BadArgument
from turnout.kube.version import add_version

# The commands and the module whose `add` makes them, in the order of the help. Only the module of the command that is
# asked for is imported.
VERB_MODULES = (
    (("check",), "turnout.cli.check.command"),
    (("jobs",), "turnout.cli.verbs.jobs"),
    (("describe",), "turnout.cli.verbs.describe"),
    (("logs",), "turnout.cli.verbs.logs"),
    (("suspend", "unsuspend"), "turnout.cli.verbs.suspend"),
    (("submit",), "turnout.cli.verbs.submit"),
    (("pause", "resume"), "turnout.cli.verbs.pause"),
    (("why",), "turnout.cli.verbs.why"),
    (("page",), "turnout.cli.verbs.page"),
    (("queues",), "turnout.cli.verbs.queues"),
    (("top",), "turnout.cli.verbs.top"),
    (("topology", "explain"), "turnout.cli.verbs.topology"),
    (("history",), "turnout.cli.verbs.history"),
    (("goodput",), "turnout.cli.verbs.goodput"),
    (("usage",), "turnout.cli.verbs.usage"),
    (("nodes",), "turnout.cli.verbs.nodes"),
    (("version",), "turnout.cli.verbs.version"),
    (("simulate",), "turnout.cli.verbs.simulate"),
    (("stacks",), "turnout.cli.verbs.stacks"),
    (("preprocess",), "turnout.cli.verbs.preprocess"),
    (("local",), "turnout.cli.local_cluster.commands"),
    (("release",), "turnout.cli.release.command"),
    (("clear-nominations",), "turnout.cli.verbs.clear_nominations"),
    (("demo",), "turnout.cli.verbs.demo"),
)
OWN = ("completion",)  # the commands of this module
COMMANDS = frozenset([*OWN, *(name for names, _ in VERB_MODULES for name in names)])
# How the help of the whole command arranges them.
GROUPS = (
    ("See the cluster", ("page", "queues", "top", "topology", "nodes", "usage", "version")),
    ("Ask about a job", ("why", "explain", "history", "goodput", "jobs", "describe", "logs", "stacks")),
    ("Change something", ("submit", "suspend", "unsuspend", "pause", "resume", "release", "clear-nominations")),
    ("Prepare training data", ("preprocess",)),
    ("Look over an installation", ("check",)),
    ("Try it without a cluster", ("demo", "local", "simulate")),
    ("Set up the shell", ("completion",)),
)
_COMPLETION = (
    ("completion bash >> ~/.bash_completion", "from the next shell on"),
    ("completion zsh > ~/.zfunc/_turnout", "where fpath has ~/.zfunc"),
)
_EXAMPLES = (
    ("local up", "a cluster on this machine to try it on"),
    ("check", "look over what is installed"),
    ("queues", "who has how many GPUs"),
    ("explain 4x8", "where four pods of eight GPUs would land"),
    ("why bert -n team-a", "why a job waits"),
)
SHELLS = ("bash", "zsh", "tcsh", "fish", "powershell")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Without arguments, print the help.

    argv: None for the arguments of the process. Raises SystemExit for --help, --version and wrong options.
    """
    words = sys.argv[1:] if argv is None else argv
    if not words:
        print(parser().format_help(), end="")
        return ExitCode.DONE
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        print(f"turnout: there is no command {words[0]!r:.40}{_closest_verb(words[0])}", file=sys.stderr)
        return ExitCode.USAGE
    args = parser(words[0]).parse_args(words)
    command: Callable[[argparse.Namespace], int] = args.run
    try:
        return command(args)
    except BadArgument as error:
        print(f"turnout {args.verb}: {error}", file=sys.stderr)
        return ExitCode.USAGE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED


def stacktrace_viewer() -> int:
    """`turnout stacks` under the guide's name. Source: DL-115"""
    return main(["stacks", *sys.argv[1:]])


class _WholeParser(VerbParser):
    """The parser of the whole command. Its help lists the commands by what a person wants to do."""

    def format_help(self) -> str:
        """Return the help text. Verbs are listed under the headings of GROUPS."""
        (commands,) = (each for each in self._actions if isinstance(each, argparse._SubParsersAction))
        command_helps = {each.dest: each.help for each in commands._choices_actions}
        lines = [f"usage: {self.prog} COMMAND [OPTIONS]", "", str(self.description)]
        for title, names in GROUPS:
            lines += ["", f"{title}:", *(f"  {name:<18}{command_helps[name]}" for name in names)]
        lines += [
            "",
            "examples:",
            *(f"  {self.prog} {typed:<34}# {purpose}" for typed, purpose in _EXAMPLES),
            "",
            "exit codes:",
            *(f"  {int(code):<4}{means}" for code, means in MEANS.items()),
            "",
            f"`{self.prog} COMMAND --help` tells the options of a command, with examples; `{self.prog} --version` the "
            "version.",
        ]
        return "\n".join([*lines, ""])


def _closest_verb(word: str) -> str:
    close = get_close_matches(word, sorted(COMMANDS), 1)
    return f"; did you mean `turnout {close[0]}`?" if close else "; `turnout` lists all"


def parser(word: str = "") -> argparse.ArgumentParser:
    """Return the parser of the whole command.

    word: the first argument of the command line. If it is a command, only that command and `completion` are added,
    because the modules of all commands take longer to import. Any other word adds all commands.
    """
    top = _WholeParser(prog="turnout", description="GPU training: the right switches, the right size.")
    add_version(top)
    commands = top.add_subparsers(metavar="COMMAND", required=True, dest="verb", parser_class=VerbParser)
    modules = [module for verbs, module in VERB_MODULES if word in verbs]
    for module in modules if modules or word in OWN else [module for _, module in VERB_MODULES]:
        import_module(module).add(commands)
    completion = add_verb(
        commands,
        "completion",
        "print a script that completes commands and options",
        _COMPLETION,
        "It needs pip install 'turnout[completion]'.",
    )
    completion.add_argument("shell", choices=SHELLS, help="the shell that the script is for")
    completion.set_defaults(run=_completion)
    return top


def _completion(args: argparse.Namespace) -> int:
    """Print the completion script for a shell, and return the exit code. Raises ModuleNotFoundError without shtab."""
    import shtab

    print(shtab.complete(parser(), shell=args.shell))
    return 0


if __name__ == "__main__":
    from turnout.cli.programs import turnout

    sys.exit(turnout())
