"""Implements `xpu_timer_launch PROGRAM ARG...`: it replaces itself by the program, with the same process id and
signals.

The guide's wrapper loads a library into the program. Here the agent prepares all its processes, and this wrapper keeps
the program prepared. Source: DL-112
"""

from __future__ import annotations

import os
import signal
import sys

from turnout.launcher.health.hang_monitor.instrument import traceable_environment

USAGE, CANNOT_RUN, NOT_FOUND = 2, 126, 127  # exit codes, as in shells


def main() -> int:
    """Replace this process by the program. Returns an exit code only if it cannot be run."""
    command = sys.argv[1:]
    if not command:
        print("usage: xpu_timer_launch PROGRAM [ARG ...]", file=sys.stderr)
        return USAGE
    for sig in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the program would inherit that
        signal.signal(sig, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, traceable_environment(os.environ))
    except OSError as error:
        print(f"xpu_timer_launch: cannot run {command[0]!r}: {error}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main())
