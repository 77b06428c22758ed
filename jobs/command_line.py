"""Reads a launcher's flags from a pod's command line, where they are written out.

Flags of a command that a script composes are not found. A caller that needs to be sure asks for an annotation.
"""

from __future__ import annotations

import re

from turnout.jobs.typed_fields import Part


def words(template: Part) -> tuple[str, ...]:
    """The words of what a pod's containers run, those inside of a shell's text too. Raises BadJob."""
    containers = template.part("spec").parts("containers")
    texts = [text for each in containers for text in (*each.texts("command"), *each.texts("args"))]
    return tuple(word for text in texts for word in text.split())


def flag(said: tuple[str, ...], *names: str) -> str:
    """The value of the first of these flags, as `--name value` or `--name=value`; "" when there is none."""
    for at, word in enumerate(said):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else next(iter(said[at + 1 : at + 2]), "")
    return ""


def between(text: str) -> tuple[int, int] | None:
    """Two numbers as torchrun's --nnodes has them, `2:8`, or one, which is both; None for anything else."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})(?::([1-9][0-9]{0,5}))?", text)
    return None if found is None else (int(found[1]), int(found[2] or found[1]))
