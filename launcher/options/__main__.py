"""Print docs/launcher-options.md: `python -m turnout.launcher.options > docs/launcher-options.md`."""

from __future__ import annotations

from turnout.launcher.options.page import markdown

if __name__ == "__main__":
    print(markdown(), end="")
