"""The flags of a launcher on a pod's command line.

Flags of a command that a script composes are not found. A caller that must be sure requires an annotation.
"""

from __future__ import annotations

import re

from turnout.jobs.typed_fields import Part


def command_words(template: Part) -> tuple[str, ...]:
    """Return the words of the containers' commands and arguments, including those in a shell's text. Raises BadJob."""
    containers = template.part("spec").parts("containers")
    texts = [text for each in containers for text in (*each.texts("command"), *each.texts("args"))]
    return tuple(word for text in texts for word in text.split())


def flag_value(words: tuple[str, ...], *names: str) -> str:
    """Return the value of the first of these flags, as `--name value` or `--name=value`; "" if none is set."""
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else next(iter(words[position + 1 : position + 2]), "")
    return ""


def number_range(text: str) -> tuple[int, int] | None:
    """Return the two numbers of torchrun's --nnodes, `2:8`, or one number twice; None for any other text."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})(?::([1-9][0-9]{0,5}))?", text)
    return None if found is None else (int(found[1]), int(found[2] or found[1]))
