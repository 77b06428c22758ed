"""How much work a call does, in lines of Python that it runs: the same on every machine, fast or busy or slow."""

import sys


def lines_run(do):
    """How many lines do() runs, calls of Python functions among them. What a library does in C is not counted."""
    lines = 0

    def count(_frame, event, _argument):
        nonlocal lines
        lines += event in ("call", "line")
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        do()
    finally:
        sys.settrace(before)
    return lines
