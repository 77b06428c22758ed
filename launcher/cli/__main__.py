"""Print docs/launcher-options.md: `python -m turnout.launcher.cli > docs/launcher-options.md`."""

from __future__ import annotations

from turnout.launcher.cli.help import markdown

if __name__ == "__main__":
    print(markdown(), end="")
