"""Which options were given, by the command line or by the environment, and where the script begins.

What comes after the script belongs to the script. Names may not be shortened: a new option would change their meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from turnout.launcher.errors import LauncherError
from turnout.launcher.options.dlrover import DLROVER
from turnout.launcher.options.option import Option
from turnout.launcher.options.own import OURS
from turnout.launcher.options.torchrun import TORCHRUN
from turnout.launcher.options.values import BadValue

OPTIONS = (*TORCHRUN, *DLROVER, *OURS)
_BY_STRING: Mapping[str, Option] = {string: option for option in OPTIONS for string in option.strings}
_VARIABLES = frozenset(variable for option in OPTIONS for variable in option.variables)


class BadCommand(LauncherError):
    """A command line that cannot be obeyed. Say so and end with exit code 2."""


@dataclass(frozen=True, slots=True)
class Given:
    """One option as somebody wrote it. source: the option or the variable, in that spelling."""

    option: Option
    text: str
    source: str

    @property
    def value(self) -> object:
        """What it means. Raises BadCommand."""
        try:
            return self.option.understand(self.text)
        except BadValue as error:
            raise BadCommand(f"{self.source} is {self.text!r}: {error}") from error

    def __str__(self) -> str:
        return self.source if self.option.flag and self.source.startswith("-") else f"{self.source}={self.text}"


@dataclass(frozen=True, slots=True)
class Line:
    """A command line, taken apart. script: "" where there is none. given: by the option's name, the last one counts."""

    given: Mapping[str, Given]
    script: str
    arguments: tuple[str, ...]


def take_apart(argv: Sequence[str]) -> Line:
    """Options up to the first word that is none, then the script and what belongs to it. Raises BadCommand."""
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
    """--name, --name value or --name=value. Takes the value out of the rest."""
    name, equals, text = word.partition("=")
    option = _BY_STRING.get(name.replace("_", "-"))
    if option is None:
        near = get_close_matches(name.replace("_", "-"), _BY_STRING, n=1)
        raise BadCommand(f"there is no option {name}" + (f", the nearest is {near[0]}" if near else ""))
    if option.flag:
        return Given(option, text if equals else "1", name)
    return Given(option, text if equals else _next(name, rest), name)


def _short(word: str, rest: list[str]) -> tuple[Given, str]:
    """-r value, -rvalue or -r=value; a flag may have other short ones behind it, which come back as a word."""
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
    """What the environment says of each option, by its name. An empty variable is as if it were not set."""
    found: dict[str, Given] = {}
    for option in OPTIONS:
        for variable in option.variables:
            text = environ.get(variable)
            if text is not None and (text := text if text.strip() else option.empty):
                found[option.name] = Given(option, text, variable)
                break
    return found


def strangers(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Variables that look like options and are none."""
    return tuple(sorted(name for name in environ if name.startswith("PET_") and name not in _VARIABLES))
