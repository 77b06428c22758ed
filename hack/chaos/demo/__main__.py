"""`make demo-train`: prints as it happens. Exit code 1 where a claim was not true, or the story did not happen."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from hack.chaos.demo.play import tell
from hack.chaos.demo.screen import TrainScreen
from hack.chaos.testbed.testbed import NoIsolation, NoProgress
from turnout.cli.verb_support.child_programs import ChildFailed
from turnout.cli.verb_support.terminal import cancel_on_sigterm, terminal


def main(argv: Sequence[str] | None = None) -> int:
    """Play the demo once. Return the exit code: 0; 1 if a claim was false or the demo failed; 130 if it was
    interrupted.

    argv: None for that of this process.
    """
    parser = argparse.ArgumentParser(prog="make demo-train", description="A training job that loses no step.")
    parser.add_argument("--plain", action="store_true", help="no colours, no picture that changes")
    args = parser.parse_args(argv)
    try:
        return 0 if asyncio.run(cancel_on_sigterm(tell(TrainScreen(terminal(args.plain))))) else 1
    except (ChildFailed, NoIsolation, NoProgress) as error:
        print(f"demo-train: {error}", file=sys.stderr)
        return 1
    except (asyncio.CancelledError, KeyboardInterrupt):
        return 130


if __name__ == "__main__":
    sys.exit(main())
