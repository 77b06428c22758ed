"""`xpu_timer_launch PROGRAM ARG...`: the guide's wrapper. It becomes the program: same process, arguments and signals.

What the guide's own has loaded into the program, an agent of ours brings to all of its processes. With the wrapper
between the two, the program behind it is still seen.
Source: DL-112
"""

from __future__ import annotations

import os
import signal
import sys

from turnout.launcher.shell.watching.start import seen_early

USAGE, CANNOT_RUN, NOT_FOUND = 2, 126, 127  # as shells have it


def main() -> int:
    """Does not return where there is such a program."""
    command = sys.argv[1:]
    if not command:
        print("usage: xpu_timer_launch PROGRAM [ARG ...]", file=sys.stderr)
        return USAGE
    for sig in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a program would too
        signal.signal(sig, signal.SIG_DFL)
    try:
        os.execvpe(command[0], command, seen_early(os.environ))
    except OSError as error:
        print(f"xpu_timer_launch: cannot run {command[0]!r}: {error}", file=sys.stderr)
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main())
