"""Finds the options of the command line and the environment, the keys of --rdzv-conf, and the script.

What comes after the script belongs to the script. Names may not be shortened, since a new option would change their
meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from turnout.launcher.cli import value_types
from turnout.launcher.cli.options import OPTIONS, Option
from turnout.launcher.cli.value_types import BadValue
from turnout.launcher.errors import LauncherError
from turnout.launcher.settings import NoteSubject, StartNote

_STORE = "there is no store; members talk to the coordinator"

_ETCD = "etcd is not contacted"


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key of --rdzv-conf."""

    name: str
    text: str  # what it does, or why it has no effect here
    example: str  # a value
    sets: tuple[str, ...] = ()  # () for no effect
    read: Callable[[str], object] = value_types.parse_text
    same: str = ""  # the key that it is another name of


KEYS = (
    ConfigKey(
        "join_timeout",
        "seconds that a round may take to form; 600 by default",
        "90",
        ("elastic_spec.join_timeout_s",),
        value_types.parse_seconds,
    ),
    ConfigKey(
        "timeout",
        "same as join_timeout; the name in torch's etcd back-end",
        "90",
        ("elastic_spec.join_timeout_s",),
        value_types.parse_seconds,
        "join_timeout",
    ),
    ConfigKey(
        "last_call_timeout",
        "seconds that a round waits for more workers once it has its minimum, 30 by default; --last-call-s wins",
        "2",
        ("elastic_spec.last_call_s",),
        value_types.parse_seconds,
    ),
    ConfigKey(
        "lastcall_timeout",
        "same as last_call_timeout; the name in DLRover",
        "2",
        ("elastic_spec.last_call_s",),
        value_types.parse_seconds,
        "last_call_timeout",
    ),
    ConfigKey(
        "keep_alive_interval",
        "seconds between heartbeats; --heartbeat-s wins",
        "1",
        ("timing.heartbeat_s", "timing.silence_s"),
        value_types.parse_seconds,
    ),
    ConfigKey(
        "keep_alive_max_attempt",
        "heartbeats that may be missing before a peer is given up, 5 by default; --silence-s wins",
        "3",
        ("timing.silence_s",),
        value_types.parse_positive_count,
    ),
    ConfigKey(
        "is_host", "1 if this worker is the first coordinator", "1", ("rendezvous.is_host",), value_types.parse_bool
    ),
    ConfigKey("heartbeat_timeout", "a heartbeat is not a request; nothing waits for it", "7"),
    ConfigKey("close_timeout", "a job that has ended is closed at once", "7"),
    ConfigKey("pend_timeout", "a spare worker waits as long as the job runs", "3600"),
    ConfigKey("read_timeout", _STORE, "60"),
    ConfigKey("store_type", _STORE, "tcp"),
    ConfigKey("use_libuv", _STORE, "1"),
    ConfigKey("cas_backoff_max_seconds", _STORE, "1"),
    ConfigKey("rank", "use --node-rank", "1"),
    ConfigKey("etcd_prefix", _ETCD, "/torchelastic/p2p"),
    *(ConfigKey(name, _ETCD, "http") for name in ("protocol", "ssl_cert", "ssl_cert_key", "ca_cert")),
    *(ConfigKey(name, _ETCD, "http") for name in ("cert", "key", "cacert")),
)

_BY_NAME = {key.name: key for key in KEYS}


def parse_rdzv_conf(text: str, source: str) -> tuple[Mapping[str, object], tuple[StartNote, ...]]:
    """Read the keys with an effect; return their values and a note for each key without effect.

    text: k=v,… An extra comma is ignored. source: the option or variable that gave it. Raises BadCommand for an unknown
    key, a missing or invalid value, and two different values of one key.
    """
    values: dict[str, object] = {}
    notes: list[StartNote] = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, _, value = (part.strip() for part in item.partition("="))
        key = _BY_NAME.get(name)
        if key is None:
            raise BadCommand(f"{source} has no key {name!r}; it has {', '.join(sorted(_BY_NAME))}")
        if not value:
            raise BadCommand(f"{source}: {name} needs a value, as in {name}={key.example}")
        if not key.sets:
            notes.append(StartNote(f"{source} {name}", NoteSubject.NO_EFFECT, key.text))
            continue
        try:
            parsed = key.read(value)
        except value_types.BadValue as error:
            raise BadCommand(f"{source}: {name} is {value!r}: {error}") from error
        if values.setdefault(key.same or name, parsed) != parsed:
            raise BadCommand(f"{source} says {key.same or name} twice, and not the same")
    return values, tuple(notes)


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
        """Return the option's value. Raises BadCommand if the text is no value of the option."""
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


def parse_command_line(argv: Sequence[str]) -> Line:
    """Parse options up to the first other word, then the script and its arguments.

    The values are not read. Raises BadCommand for an unknown option, and for one without its value.
    """
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
            parsed = _parse_long(word, words)
        else:
            parsed, short_options = _parse_short(word, words)
            words[:0] = [short_options] if short_options else []
        given.pop(parsed.option.name, None)
        given[parsed.option.name] = parsed
    return Line(given, words[0] if words else "", tuple(words[1:]))


def _parse_long(word: str, rest: list[str]) -> Given:
    """Parse --name, --name value or --name=value, and remove the value from `rest`.

    Raises BadCommand for an unknown option, and for one without its value.
    """
    name, equals, text = word.partition("=")
    option = _BY_STRING.get(name.replace("_", "-"))
    if option is None:
        matches = get_close_matches(name.replace("_", "-"), _BY_STRING, n=1)
        raise BadCommand(f"there is no option {name}" + (f", the nearest is {matches[0]}" if matches else ""))
    if option.flag:
        return Given(option, text if equals else "1", name)
    return Given(option, text if equals else _take_value(name, rest), name)


def _parse_short(word: str, rest: list[str]) -> tuple[Given, str]:
    """Parse -r value, -rvalue or -r=value. Raises BadCommand for an unknown option, and for one without its value.

    Return the option, and the short options that follow a flag in this word, such as -bc for -abc; "" for none. rest:
    the words after this one; a value is removed from it.
    """
    name, tail = word[:2], word[2:]
    option = _BY_STRING.get(name)
    if option is None:
        raise BadCommand(f"there is no option {name}")
    if option.flag:
        return Given(option, "1", name), f"-{tail}" if tail else ""
    return Given(option, tail.removeprefix("=") if tail else _take_value(name, rest), name), ""


def _take_value(name: str, rest: list[str]) -> str:
    """Remove the first word of `rest` and return it as the value of option `name`. Raises BadCommand without one."""
    if not rest or (len(rest[0]) > 1 and rest[0].startswith("-") and " " not in rest[0]):
        raise BadCommand(f"{name} needs a value; one that begins with - is written {name}=VALUE")
    return rest.pop(0)


def look_up(environ: Mapping[str, str]) -> Mapping[str, Given]:
    """Return the options that the environment sets, by option name.

    An empty variable counts as not set, unless the option has a value for it (`empty`).
    """
    given: dict[str, Given] = {}
    for option in OPTIONS:
        for variable in option.variables:
            text = environ.get(variable)
            if text is not None and (text := text if text.strip() else option.empty):
                given[option.name] = Given(option, text, variable)
                break
    return given


def unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """List the PET_ variables that belong to no option, sorted."""
    return tuple(sorted(name for name in environ if name.startswith("PET_") and name not in _VARIABLES))
