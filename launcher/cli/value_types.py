"""Reads the texts of options as values. An invalid text raises BadValue, which says what is needed."""

from __future__ import annotations

import re
from math import isfinite

from turnout.launcher.model import PORT
from turnout.launcher.settings import Devices, Std, Streams

# Signals that a process may handle itself, on Linux.
# fmt: off
SIGNALS = frozenset([
    "SIGHUP", "SIGINT", "SIGQUIT", "SIGILL", "SIGTRAP", "SIGABRT", "SIGBUS", "SIGFPE", "SIGUSR1", "SIGSEGV", "SIGUSR2",
    "SIGPIPE", "SIGALRM", "SIGTERM", "SIGSTKFLT", "SIGCHLD", "SIGCONT", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG",
    "SIGXCPU", "SIGXFSZ", "SIGVTALRM", "SIGPROF", "SIGWINCH", "SIGIO", "SIGPOLL", "SIGPWR", "SIGSYS",
])
# fmt: on
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class BadValue(ValueError):
    """The text is no valid value. The error's own text says what is needed instead."""


def parse_text(text: str) -> str:
    """Return the text unchanged."""
    return text


def parse_word(text: str) -> str:
    """Return a text without surrounding space. Raises BadValue if nothing is left."""
    if not text.strip():
        raise BadValue("a text is needed")
    return text.strip()


def parse_bool(text: str) -> bool:
    """Return True for 1, a larger number or a word for yes; False for 0 or a word for no. Raises BadValue for other
    texts.
    """
    lower = text.strip().lower()
    if lower in _YES or (lower.isdecimal() and int(lower) > 0):
        return True
    if lower in _NO:
        return False
    raise BadValue("1 or 0 is needed")


def parse_count(text: str) -> int:
    """Parse a whole number, 0 or more, of 9 digits at most. Raises BadValue for any other text."""
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        raise BadValue("a whole number, 0 or more, is needed")
    return int(text)


def parse_positive_count(text: str) -> int:
    """Parse a whole number, 1 or more, of 9 digits at most. Raises BadValue for any other text."""
    if parse_count(text) < 1:
        raise BadValue("a whole number, 1 or more, is needed")
    return int(text)


def parse_seconds(text: str) -> float:
    """Parse a time in seconds, 0 or more. Raises BadValue for any other text."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0:
        raise BadValue("a number of seconds, 0 or more, is needed")
    return value


def parse_duration(text: str) -> float:
    """Parse a time in seconds, above 0. Raises BadValue for any other text."""
    if (value := parse_seconds(text)) > 0:
        return value
    raise BadValue("a number of seconds above 0 is needed")


def parse_port(text: str) -> int:
    """Parse a port, 0 to 65535. Raises BadValue for any other text."""
    if parse_count(text) > 65_535:
        raise BadValue("a port from 0 to 65535 is needed")
    return int(text)


def parse_bounds(text: str) -> tuple[int, int]:
    """Parse a number of workers, N or MIN:MAX; return (min, max), which are equal for N. Raises BadValue for any other
    text.
    """
    match = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", text.strip())
    if not match or not 1 <= int(match[1]) <= int(match[2] or match[1]):
        raise BadValue("N or MIN:MAX with 1 <= MIN <= MAX is needed")
    return int(match[1]), int(match[2] or match[1])


def parse_processes(text: str) -> int | Devices:
    """Parse a number of processes, 1 or more, or the word for a kind of devices to count. Raises BadValue for any other
    text.
    """
    names = [each.value for each in Devices]
    if text in names:
        return Devices(text)
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()) or int(text) < 1:
        raise BadValue(f"a number, 1 or more, or one of {', '.join(names)} is needed")
    return int(text)


def parse_endpoint(text: str) -> tuple[str, int]:
    """Parse host[:port], with an IPv6 address in brackets; return (host, port), with PORT if none is given. Raises
    BadValue for any other text.

    Source: PE-13; torchrun reads it alike.
    """
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::([0-9]{1,5}))?", text.strip())
    if not match or int(match[2] or 0) > 65_535:
        raise BadValue("host[:port] is needed, an IPv6 address in brackets")
    return parse_host(match[1]), PORT if match[2] is None else int(match[2])


def parse_host(text: str) -> str:
    """Parse a host name or an IP address; an IPv6 address may be in brackets, which are removed. Raises BadValue for
    any other text.
    """
    match = re.fullmatch(r"\[?([0-9A-Fa-f]*:[0-9A-Fa-f:.]+)\]?|([\w.-]+)", text.strip())
    if not match:
        raise BadValue("the name or the address of a host is needed")
    return match[1] or match[2]


def parse_streams(text: str) -> Streams:
    """Parse which outputs (0 none, 1 stdout, 2 stderr, 3 both) are meant: one digit for all ranks, or RANK:DIGIT,…

    Raises BadValue for any other text. Source: torchrun's --redirects.
    """
    if re.fullmatch(r"[0-3]", text):
        return Streams(Std(int(text)))
    if not re.fullmatch(r"[0-9]{1,4}:[0-3](,[0-9]{1,4}:[0-3])*", text):
        raise BadValue("0 (none), 1 (out), 2 (err), 3 (both) or RANK:0..3,... is needed")
    pairs = (each.split(":") for each in text.split(","))
    return Streams(by_rank=tuple(sorted({int(rank): Std(int(std)) for rank, std in pairs}.items())))


def parse_ranks(text: str) -> tuple[int, ...]:
    """Parse local ranks, as R,R,…; return them sorted, without duplicates. Raises BadValue for any other text."""
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", text.replace(" ", "")):
        raise BadValue("local ranks with commas between them are needed")
    return tuple(sorted({int(rank) for rank in text.split(",")}))


def parse_filters(text: str) -> tuple[str, ...]:
    """Read words separated by commas; two commas are one comma within a word. Source: torchrun's parser."""
    return tuple(word.replace("\0", ",") for word in text.replace(",,", "\0").split(",") if word)


def parse_modules(text: str) -> tuple[str, ...]:
    """Parse module names separated by commas. Raises BadValue for any other text."""
    if not re.fullmatch(r"[^\W\d][\w.]*(,[^\W\d][\w.]*)*", text):
        raise BadValue("names of modules with commas between them are needed")
    return tuple(dict.fromkeys(text.split(",")))


def parse_signals(text: str) -> tuple[str, ...]:
    """Parse signal names, such as SIGTERM, separated by commas; duplicates are dropped. Raises BadValue for any other
    text.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if wrong := [name for name in names if name not in SIGNALS]:
        raise BadValue(f"{wrong[0]!r} is no signal that a process can handle")
    return names


def parse_path(text: str) -> tuple[str, ...]:
    """Read a path a/b/c, from the root of the fabric down. Empty names are dropped; () for no name."""
    return tuple(name for name in text.strip().split("/") if name)


def parse_box_pairs(text: str) -> tuple[tuple[int, int], ...]:
    """Parse pairs of GPU numbers, as a:b c:d, each number in at most one pair. Raises BadValue for any other text.

    Source: the guide, DL-33
    """
    if not re.fullmatch(r"[0-9]{1,3}:[0-9]{1,3}( +[0-9]{1,3}:[0-9]{1,3})*", text.strip()):
        raise BadValue("pairs of GPU numbers like '0:1 2:4' are needed")
    pairs = tuple((int(a), int(b)) for a, b in (pair.split(":") for pair in text.split()))
    gpus = [gpu for pair in pairs for gpu in pair]
    if len(set(gpus)) < len(gpus):
        raise BadValue("each GPU may be in one pair only")
    return pairs


def parse_lease_name(text: str) -> str:
    """Check that the text is namespace/name, and return it. Raises BadValue for any other text."""
    if not re.fullmatch(r"[a-z0-9.-]+/[a-z0-9.-]+", text):
        raise BadValue("namespace/name is needed")
    return text
