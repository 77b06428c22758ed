"""Defines a command line option: its names, its variables, how its text is read, and what it does here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from turnout.launcher.cli import value_types


class Origin(StrEnum):
    """The program that an option comes from."""

    TORCHRUN = "torchrun"
    DLROVER = "dlrover-run"
    GUIDE = "the guide"  # to DLRover with switchboxes; not upstream
    OURS = "turnout-run"


class Effect(StrEnum):
    """Says if an option has an effect here."""

    HERE = "here"
    NONE = "no effect here"


@dataclass(frozen=True, slots=True)
class Option:
    """A command line option: its names, its effect, its variables and how its value is read."""

    name: str  # long, with dashes, without the leading two; underscores are accepted too
    text: str  # what it does here, or why nothing
    value: str = ""  # the name of its value in the help, "" for a flag
    example: str = ""  # a value that is not the default
    sets: tuple[str, ...] = ()  # fields of Settings that it changes, with dots
    read: Callable[[str], object] = value_types.text
    short: str = ""
    also: tuple[str, ...] = ()
    env: tuple[str, ...] = ()  # further variables, read after PET_ and the name
    empty: str = ""  # the meaning of an empty variable, "" for: not set
    choices: tuple[str, ...] = ()
    origin: Origin = Origin.TORCHRUN
    effect: Effect = Effect.HERE

    @property
    def dest(self) -> str:
        """Return its name with underscores, as in variables and fields."""
        return self.name.replace("-", "_")

    @property
    def flag(self) -> bool:
        """True if the option takes no value."""
        return not self.value

    @property
    def asks(self) -> bool:
        """True if the option prints a page instead of running a job."""
        return not self.sets and self.effect is Effect.HERE

    @property
    def strings(self) -> tuple[str, ...]:
        """Return its spellings: long names with dashes, then the short one."""
        return (*(f"--{name}" for name in (self.name, *self.also)), *((f"-{self.short}",) if self.short else ()))

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the variables that are read if the command line lacks the option; the first one set counts.

        Empty for options that print a page, since only the command line may ask for one.
        """
        if self.asks:
            return ()
        ours = (f"TURNOUT_{self.dest.upper()}",) if self.origin is Origin.OURS else ()
        return (f"PET_{self.dest.upper()}", *ours, *self.env)

    def understand(self, text: str) -> object:
        """Read the value of a text. Raises BadValue."""
        if self.choices and text not in self.choices:
            raise value_types.BadValue(f"one of {', '.join(self.choices)} is needed")
        return value_types.truth(text) if self.flag else self.read(text)
