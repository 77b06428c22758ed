"""Paths of switches, and the tier of each switch on them, without numpy, so that a launcher can use this module alone.

Tiers count from below: a leaf (access switch) is tier 1, however deep its branch. This module also defines how a path
is written in one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote, unquote

from turnout.topology.names import MAX_TIERS, quote_text, switch_fault

Path = tuple[str, ...]  # names of switches, from the root down
Key = tuple[tuple[int, str], ...]  # a sort key of natural order
_NUMBER = re.compile(r"([0-9]+)")
_MAX_DIGITS = 18  # of a number in a name that is compared as a number; longer ones come after all these, as text
_UNESCAPED = "".join(chr(code) for code in range(33, 127) if chr(code) not in "/%")  # in a written path
_MAX_CHARS = 8_192  # of a written path


class BadPath(ValueError):
    """A text that is no path of switches. The message says why."""


def natural_key(text: str) -> Key:
    """Return a sort key by which gpu9 comes before gpu10. Only equal texts have equal keys."""
    parts = _NUMBER.split(text)
    return tuple(
        (_number_of(part) if position % 2 else 0, part) for position, part in enumerate(parts)
    )  # texts and numbers alternate


def _number_of(digits: str) -> int:
    """Return the number that digits state; for more than _MAX_DIGITS digits, a number above all others."""
    return int(digits) if len(digits) <= _MAX_DIGITS else 10**_MAX_DIGITS


def tiers_of_switches(paths: Iterable[Path]) -> dict[Path, int]:
    """Return the tier of each switch on these paths by its own path, and of the nameless top ().

    The last switch of a path has tier 1, unless it is on another path with switches below it. Every other switch has
    one more than the highest switch below it.
    """
    tiers: dict[Path, int] = {(): 1}
    for path in paths:
        for depth in range(len(path) + 1):
            tiers[path[:depth]] = max(tiers.get(path[:depth], 0), len(path) - depth + 1)
    return tiers


def top_tier(tier_of: Mapping[Path, int], roots: int) -> int:
    """Return the tier of the lowest switch that holds everything: the only root, else the nameless top.

    tier_of: of all switches by path, as tiers_of_switches() returns it. roots: the number of distinct roots.
    """
    return tier_of[()] - 1 if roots == 1 and tier_of[()] > 1 else tier_of[()]


def switches_above(path: Path, tier_of: Mapping[Path, int], tiers: int) -> tuple[Path, ...]:
    """Return the paths of a host's switches of tier T, T-1, ..., 1.

    path: from the root to the switch that holds the host. tier_of: of all switches by path. tiers: T. For a tier in
    which the host has no switch, its highest switch below that tier is returned. If the switch that holds the host also
    holds switches, a leaf of the host's own, with the name "", is added.
    """
    chain = [path[:depth] for depth in range(len(path), 0, -1)]
    own_leaf = (*path, "")  # if the host hangs from a switch that holds switches, too
    switches = []
    for tier in range(1, tiers + 1):
        switches_up_to_tier = [switch for switch in chain if tier_of[switch] <= tier]
        switches.append(switches_up_to_tier[-1] if switches_up_to_tier else own_leaf)
    if tiers == tier_of[()]:
        switches[-1] = ()
    return tuple(reversed(switches))


def switch_numbers(paths: Iterable[Path]) -> dict[Path, tuple[int, ...]]:
    """Return, by path, the numbers of the switches above a host on it: (tier 1, tier 2, ..., tier T).

    paths: from the root to the switch that holds a host; none of them is empty. The switches of each tier are numbered
    from 0 in natural order of their paths. The numbers equal those of fabric.build() for a fabric of hosts on these
    paths.
    """
    distinct = set(paths)
    tier_of = tiers_of_switches(distinct)
    tiers = top_tier(tier_of, len({path[0] for path in distinct}))
    keys = {name: natural_key(name) for name in {"", *(name for path in distinct for name in path)}}
    chains = sorted(
        ((switches_above(path, tier_of, tiers), path) for path in distinct),
        key=lambda each: [keys[name] for name in each[0][-1]],
    )
    numbers: list[dict[Path, int]] = [{} for _ in range(tiers)]
    by_path = {}
    for chain, path in chains:
        upwards = zip(numbers, reversed(chain), strict=True)
        by_path[path] = tuple(number_of.setdefault(switch, len(number_of)) for number_of, switch in upwards)
    return by_path


def path_text(path: Sequence[str]) -> str:
    """Return a path as the text root/.../leaf. A slash, a blank or a percent sign in a name is escaped as in a URL."""
    return "/".join(quote(name, safe=_UNESCAPED) for name in path)


def read_path(text: str) -> Path:
    """Return the path in a text that path_text() wrote; () for a blank text. Blanks around it are ignored.

    Raises BadPath for a text that is too long, has too many switches, or has a name that a switch cannot have.
    """
    text = text.strip()
    if not text:
        return ()
    if len(text) > _MAX_CHARS:
        raise BadPath(f"a path of {len(text)} characters, at most {_MAX_CHARS} are allowed")
    try:
        path = tuple(unquote(name, errors="strict") for name in text.split("/"))
    except UnicodeDecodeError as error:
        raise BadPath(f"{quote_text(text)}: an escape stands for no character") from error
    if len(path) > MAX_TIERS:
        raise BadPath(f"a path of {len(path)} switches, at most {MAX_TIERS} are allowed")
    for name in path:
        if fault := switch_fault(name):
            raise BadPath(f"{quote_text(text)}: {fault}")
    return path
