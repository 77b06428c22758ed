"""The verb `turnout demo`."""

from __future__ import annotations

import argparse
import sys

from turnout.cli.exit_codes import ExitCode
from turnout.cli.verb_support.cluster_flags import Verbs, add_verb

_MAX_GANGS = 25  # scene.MAX_GANGS, which is not imported before it is needed
_EXAMPLES = (
    ("demo", "both parts, a minute or two; needs no cluster"),
    ("demo --part lending", "only how a queue lends its idle GPUs"),
    ("demo --fast --plain > demo.txt", "without pauses, into a file"),
)


def add(commands: Verbs) -> None:
    """Add the verb `demo` to the command line."""
    demo = add_verb(commands, "demo", "see gangs land under one switch, and a queue lend its idle GPUs", _EXAMPLES)
    demo.add_argument("--seed", type=int, default=1, help="which cluster and which gangs (%(default)s)")
    demo.add_argument("--gangs", type=_gangs, default=14, help=f"how many arrive, 1 to {_MAX_GANGS} (%(default)s)")
    demo.add_argument("--fast", action="store_true", help="no pauses between the acts")
    demo.add_argument("--plain", action="store_true", help="plain text, as for a file")
    demo.add_argument("--part", choices=("both", "gangs", "lending"), default="both", help="what to see (%(default)s)")
    demo.set_defaults(run=_demo)


def _gangs(text: str) -> int:
    """Parse a number of gangs, 1 to _MAX_GANGS.

    Raises ArgumentTypeError if it is out of bounds, and ValueError if the text is no whole number.
    """
    number = int(text)
    if not 1 <= number <= _MAX_GANGS:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {_MAX_GANGS}")
    return number


def _demo(args: argparse.Namespace) -> int:
    """Run the demo. Return the exit code: FAILED if a program or the story fails, INTERRUPTED after SIGTERM."""
    import asyncio

    from turnout.cli.demo.driver import Show, play
    from turnout.cli.demo.lending.testbed import StoryFailed
    from turnout.cli.verb_support.child_programs import ChildFailed
    from turnout.cli.verb_support.terminal import cancel_on_sigterm, terminal

    show = Show(seed=args.seed, gangs=args.gangs)
    try:
        asyncio.run(cancel_on_sigterm(play(args.part, show, args.fast, terminal(args.plain))))
    except (ChildFailed, StoryFailed) as error:
        print(f"turnout demo: {error}", file=sys.stderr)
        return ExitCode.FAILED
    except asyncio.CancelledError:
        return ExitCode.INTERRUPTED
    return ExitCode.DONE
