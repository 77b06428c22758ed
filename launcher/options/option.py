"""What an option is: its names, its variables, how its text is read, and what it does here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from turnout.launcher.options import values


class Origin(StrEnum):
    """Whose option it is."""

    TORCHRUN = "torchrun"
    DLROVER = "dlrover-run"
    GUIDE = "the guide"  # to DLRover with switchboxes; not upstream
    OURS = "turnout-run"


class Effect(StrEnum):
    """Whether it does something here."""

    HERE = "here"
    NONE = "no effect here"


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    name: the long one, with dashes and without the leading two; underscores do as well. text: what it does here, or
    why nothing. value: how its value is called in a help, "" for a flag. sets: fields of Settings that it changes, with
    dots. example: a value that is not the default. env: further variables, read after PET_ and the name. empty: what an
    empty variable means, "" for: as if it were not set.
    """

    name: str
    text: str
    value: str = ""
    example: str = ""
    sets: tuple[str, ...] = ()
    read: Callable[[str], object] = values.text
    short: str = ""
    also: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    empty: str = ""
    choices: tuple[str, ...] = ()
    origin: Origin = Origin.TORCHRUN
    effect: Effect = Effect.HERE

    @property
    def dest(self) -> str:
        """Its name as variables and fields have it."""
        return self.name.replace("-", "_")

    @property
    def flag(self) -> bool:
        """It takes no value."""
        return not self.value

    @property
    def asks(self) -> bool:
        """It asks for a page instead of a run."""
        return not self.sets and self.effect is Effect.HERE

    @property
    def strings(self) -> tuple[str, ...]:
        """How it is written: long names with dashes, then the short one."""
        return (*(f"--{name}" for name in (self.name, *self.also)), *((f"-{self.short}",) if self.short else ()))

    @property
    def variables(self) -> tuple[str, ...]:
        """Where it is looked up when the command line does not have it: the first that is set counts.

        None for what asks for a page: only who types it wants that.
        """
        if self.asks:
            return ()
        ours = (f"TURNOUT_{self.dest.upper()}",) if self.origin is Origin.OURS else ()
        return (f"PET_{self.dest.upper()}", *ours, *self.env)

    def understand(self, text: str) -> object:
        """The value of a text. Raises BadValue."""
        if self.choices and text not in self.choices:
            raise values.BadValue(f"one of {', '.join(self.choices)} is needed")
        return values.truth(text) if self.flag else self.read(text)
