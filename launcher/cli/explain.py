"""Explains the settings that were understood: a line for each field that is not the default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum

from turnout.launcher.settings import Command, Settings

_APART = ("given_options", "notes")


def explain(settings: Settings) -> str:
    """Write the explanation: first the given words, then changed fields, last the notes."""
    usual = dict(flat(Settings(Command("script"))))
    lines = [f"given: {' '.join(settings.given_options) or 'nothing'}"]
    lines += [f"{name} = {value}" for name, value in flat(settings) if value != usual[name] and name != "explain"]
    return "\n".join([*lines, *(f"note: {note}" for note in settings.notes)])


def flat(settings: Settings) -> Iterator[tuple[str, str]]:
    """Give every field as text with its dotted name, except the given words and the notes."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name in _APART:
            continue
        if not is_dataclass(value):
            yield field.name, _text(value)
            continue
        for inner in fields(value):
            yield f"{field.name}.{inner.name}", _text(getattr(value, inner.name))


def _text(value: object) -> str:
    return str(value.value) if isinstance(value, Enum) else str(value)
