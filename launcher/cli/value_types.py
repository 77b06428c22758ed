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


def any_text(given: str) -> str:
    """Return the text unchanged."""
    return given


def word(given: str) -> str:
    """Read a text that is not empty, without surrounding space."""
    if not given.strip():
        raise BadValue("a text is needed")
    return given.strip()


def truth(given: str) -> bool:
    """Read 1 or 0, like torchrun's variables, or a word for yes or no."""
    lower = given.strip().lower()
    if lower in _YES or (lower.isdecimal() and int(lower) > 0):
        return True
    if lower in _NO:
        return False
    raise BadValue("1 or 0 is needed")


def count(given: str) -> int:
    """Read a whole number, 0 or more."""
    if not re.fullmatch(r"[0-9]{1,9}", given.strip()):
        raise BadValue("a whole number, 0 or more, is needed")
    return int(given)


def some(given: str) -> int:
    """Read a whole number, 1 or more."""
    if count(given) < 1:
        raise BadValue("a whole number, 1 or more, is needed")
    return int(given)


def seconds(given: str) -> float:
    """Read a time in seconds, 0 or more."""
    try:
        value = float(given)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0:
        raise BadValue("a number of seconds, 0 or more, is needed")
    return value


def duration(given: str) -> float:
    """Read a time in seconds, above 0."""
    if (value := seconds(given)) > 0:
        return value
    raise BadValue("a number of seconds above 0 is needed")


def port(given: str) -> int:
    """Read a port, 0 to 65535."""
    if count(given) > 65_535:
        raise BadValue("a port from 0 to 65535 is needed")
    return int(given)


def bounds(given: str) -> tuple[int, int]:
    """Read N or MIN:MAX workers."""
    found = re.fullmatch(r"([0-9]{1,9})(?::([0-9]{1,9}))?", given.strip())
    if not found or not 1 <= int(found[1]) <= int(found[2] or found[1]):
        raise BadValue("N or MIN:MAX with 1 <= MIN <= MAX is needed")
    return int(found[1]), int(found[2] or found[1])


def processes(given: str) -> int | Devices:
    """Read a number of processes, or the kind of devices to count."""
    names = [each.value for each in Devices]
    if given in names:
        return Devices(given)
    if not re.fullmatch(r"[0-9]{1,9}", given.strip()) or int(given) < 1:
        raise BadValue(f"a number, 1 or more, or one of {', '.join(names)} is needed")
    return int(given)


def endpoint(given: str) -> tuple[str, int]:
    """Read host[:port], with an IPv6 address in brackets. Source: PE-13; torchrun reads it alike."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(?::([0-9]{1,5}))?", given.strip())
    if not found or int(found[2] or 0) > 65_535:
        raise BadValue("host[:port] is needed, an IPv6 address in brackets")
    return host(found[1]), PORT if found[2] is None else int(found[2])


def host(given: str) -> str:
    """Read a host name or address, without the brackets of IPv6."""
    found = re.fullmatch(r"\[?([0-9A-Fa-f]*:[0-9A-Fa-f:.]+)\]?|([\w.-]+)", given.strip())
    if not found:
        raise BadValue("the name or the address of a host is needed")
    return found[1] or found[2]


def streams(given: str) -> Streams:
    """Read 0 to 3 for all ranks, or RANK:0..3,… Source: torchrun's --redirects."""
    if re.fullmatch(r"[0-3]", given):
        return Streams(Std(int(given)))
    if not re.fullmatch(r"[0-9]{1,4}:[0-3](,[0-9]{1,4}:[0-3])*", given):
        raise BadValue("0 (none), 1 (out), 2 (err), 3 (both) or RANK:0..3,... is needed")
    pairs = (each.split(":") for each in given.split(","))
    return Streams(by_rank=tuple(sorted({int(rank): Std(int(std)) for rank, std in pairs}.items())))


def ranks(given: str) -> tuple[int, ...]:
    """Read local ranks, as R,R,…"""
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", given.replace(" ", "")):
        raise BadValue("local ranks with commas between them are needed")
    return tuple(sorted({int(rank) for rank in given.split(",")}))


def filters(given: str) -> tuple[str, ...]:
    """Read words separated by commas; two commas are one comma within a word. Source: torchrun's parser."""
    return tuple(word.replace("\0", ",") for word in given.replace(",,", "\0").split(",") if word)


def modules(given: str) -> tuple[str, ...]:
    """Read module names separated by commas."""
    if not re.fullmatch(r"[^\W\d][\w.]*(,[^\W\d][\w.]*)*", given):
        raise BadValue("names of modules with commas between them are needed")
    return tuple(dict.fromkeys(given.split(",")))


def signals(given: str) -> tuple[str, ...]:
    """Read signal names separated by commas."""
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",")))
    if wrong := [name for name in names if name not in SIGNALS]:
        raise BadValue(f"{wrong[0]!r} is no signal that a process can handle")
    return names


def path(given: str) -> tuple[str, ...]:
    """Read a path a/b/c, from the root of the fabric down."""
    return tuple(name for name in given.strip().split("/") if name)


def box_pairs(given: str) -> tuple[tuple[int, int], ...]:
    """Read pairs a:b c:d of switchbox sockets, each socket once. Source: the guide, DL-33"""
    if not re.fullmatch(r"[0-9]{1,3}:[0-9]{1,3}( +[0-9]{1,3}:[0-9]{1,3})*", given.strip()):
        raise BadValue("pairs of sockets like '0:1 2:4' are needed")
    pairs = tuple((int(a), int(b)) for a, b in (pair.split(":") for pair in given.split()))
    sockets = [socket for pair in pairs for socket in pair]
    if len(set(sockets)) < len(sockets):
        raise BadValue("each socket may stand in one pair only")
    return pairs


def name_of_lease(given: str) -> str:
    """Read namespace/name."""
    if not re.fullmatch(r"[a-z0-9.-]+/[a-z0-9.-]+", given):
        raise BadValue("namespace/name is needed")
    return given
