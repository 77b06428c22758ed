"""Finds the options given by the command line or the environment, and the beginning of the script.

What comes after the script belongs to the script. Names may not be shortened, since a new option would change their
meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from turnout.launcher.cli.dlrover_options import DLROVER
from turnout.launcher.cli.option import Option
from turnout.launcher.cli.torchrun_options import TORCHRUN
from turnout.launcher.cli.turnout_options import OURS
from turnout.launcher.cli.value_types import BadValue
from turnout.launcher.errors import LauncherError

OPTIONS = (*TORCHRUN, *DLROVER, *OURS)
_BY_STRING: Mapping[str, Option] = {string: option for option in OPTIONS for string in option.strings}
_VARIABLES = frozenset(variable for option in OPTIONS for variable in option.variables)


class BadCommand(LauncherError):
    """The command line is invalid. Say so and end with exit code 2."""


@dataclass(frozen=True, slots=True)
class Given:
    """One option as the user gave it."""

    option: Option
    text: str
    source: str  # the option or variable in the user's spelling

    @property
    def value(self) -> object:
        """Return the option's value. Raises BadCommand."""
        try:
            return self.option.understand(self.text)
        except BadValue as error:
            raise BadCommand(f"{self.source} is {self.text!r}: {error}") from error

    def __str__(self) -> str:
        return self.source if self.option.flag and self.source.startswith("-") else f"{self.source}={self.text}"


@dataclass(frozen=True, slots=True)
class Line:
    """A parsed command line: the given options, the script and the script's arguments."""

    given: Mapping[str, Given]  # by option name; the last one counts
    script: str  # "" if there is none
    arguments: tuple[str, ...]


def take_apart(argv: Sequence[str]) -> Line:
    """Parse options up to the first other word, then the script and its arguments. Raises BadCommand."""
    given: dict[str, Given] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            break
        if word == "-" or not word.startswith("-"):
            words.insert(0, word)
            break
        if word.startswith("--"):
            found = _long(word, words)
        else:
            found, more = _short(word, words)
            words[:0] = [more] if more else []
        given.pop(found.option.name, None)
        given[found.option.name] = found
    return Line(given, words[0] if words else "", tuple(words[1:]))


def _long(word: str, rest: list[str]) -> Given:
    """Parse --name, --name value or --name=value, and remove the value from `rest`. Raises BadCommand."""
    name, equals, text = word.partition("=")
    option = _BY_STRING.get(name.replace("_", "-"))
    if option is None:
        matches = get_close_matches(name.replace("_", "-"), _BY_STRING, n=1)
        raise BadCommand(f"there is no option {name}" + (f", the nearest is {matches[0]}" if matches else ""))
    if option.flag:
        return Given(option, text if equals else "1", name)
    return Given(option, text if equals else _next(name, rest), name)


def _short(word: str, rest: list[str]) -> tuple[Given, str]:
    """Parse -r value, -rvalue or -r=value. Short options after a flag are returned as a word. Raises BadCommand."""
    name, tail = word[:2], word[2:]
    option = _BY_STRING.get(name)
    if option is None:
        raise BadCommand(f"there is no option {name}")
    if option.flag:
        return Given(option, "1", name), f"-{tail}" if tail else ""
    return Given(option, tail.removeprefix("=") if tail else _next(name, rest), name), ""


def _next(name: str, rest: list[str]) -> str:
    if not rest or (len(rest[0]) > 1 and rest[0].startswith("-") and " " not in rest[0]):
        raise BadCommand(f"{name} needs a value; one that begins with - is written {name}=VALUE")
    return rest.pop(0)


def look_up(environ: Mapping[str, str]) -> Mapping[str, Given]:
    """Find the options that the environment sets, by name. An empty variable counts as not set."""
    found: dict[str, Given] = {}
    for option in OPTIONS:
        for variable in option.variables:
            text = environ.get(variable)
            if text is not None and (text := text if text.strip() else option.empty):
                found[option.name] = Given(option, text, variable)
                break
    return found


def strangers(environ: Mapping[str, str]) -> tuple[str, ...]:
    """List variables that look like options but are none."""
    return tuple(sorted(name for name in environ if name.startswith("PET_") and name not in _VARIABLES))
