"""Read paths of switches tier by tier, without tables and without numpy, so that a launcher can use them alone.

Tiers count from below: a leaf is tier 1, however deep its branch. This module also defines how a path is written in one
line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote, unquote

from turnout.topology.names import MAX_TIERS, shown, switch_fault

Path = tuple[str, ...]
Key = tuple[tuple[int, str], ...]
_NUMBER = re.compile(r"([0-9]+)")
_COUNTED = 18  # digits of a number in a name that are compared as one; longer ones follow all these, as text
_PLAIN = "".join(chr(at) for at in range(33, 127) if chr(at) not in "/%")  # stands for itself in a written path
_LONGEST = 8_192  # characters of a written path


class BadPath(ValueError):
    """A text that is no path of switches. The message says why."""


def natural(text: str) -> Key:
    """Return a sort key by which gpu9 comes before gpu10. Only equal texts have equal keys."""
    parts = _NUMBER.split(text)
    return tuple((_counted(part) if at % 2 else 0, part) for at, part in enumerate(parts))  # text and numbers in turns


def _counted(digits: str) -> int:
    return int(digits) if len(digits) <= _COUNTED else 10**_COUNTED


def heights(paths: Iterable[Path]) -> dict[Path, int]:
    """Return the tier of each switch on these paths, and of the nameless top ().

    A leaf has tier 1, every other switch one more than the highest switch below it.
    """
    found: dict[Path, int] = {(): 1}
    for path in paths:
        for depth in range(len(path) + 1):
            found[path[:depth]] = max(found.get(path[:depth], 0), len(path) - depth + 1)
    return found


def top(tier_of: Mapping[Path, int], roots: int) -> int:
    """Return the tier that holds everything: that of the only root, else that of the nameless top."""
    return tier_of[()] - 1 if roots == 1 and tier_of[()] > 1 else tier_of[()]


def row(path: Path, tier_of: Mapping[Path, int], tiers: int) -> tuple[Path, ...]:
    """Return the switches above a host, of tier T, T-1, ..., 1; for each tier the highest one that is not above it."""
    chain = [path[:depth] for depth in range(len(path), 0, -1)]
    own_leaf = (*path, "")  # where hosts and switches hang side by side
    switches = []
    for tier in range(1, tiers + 1):
        below = [switch for switch in chain if tier_of[switch] <= tier]
        switches.append(below[-1] if below else own_leaf)
    if tiers == tier_of[()]:
        switches[-1] = ()
    return tuple(reversed(switches))


def rows(paths: Iterable[Path]) -> dict[Path, tuple[int, ...]]:
    """Return for each path the numbers of its switches of tier 1, 2, ..., T, counted at every tier in natural order.

    Paths are not empty. The numbers equal those of fabric.build() for a fabric of hosts on these paths.
    """
    distinct = set(paths)
    tier_of = heights(distinct)
    tiers = top(tier_of, len({path[0] for path in distinct}))
    keys = {name: natural(name) for name in {"", *(name for path in distinct for name in path)}}
    chains = sorted(
        ((row(path, tier_of, tiers), path) for path in distinct),
        key=lambda each: [keys[name] for name in each[0][-1]],
    )
    numbers: list[dict[Path, int]] = [{} for _ in range(tiers)]
    found = {}
    for chain, path in chains:
        upwards = zip(numbers, reversed(chain), strict=True)
        found[path] = tuple(
            switch_numbers.setdefault(switch, len(switch_numbers)) for switch_numbers, switch in upwards
        )
    return found


def path_text(path: Sequence[str]) -> str:
    """Write a path as root/.../leaf. A slash, a blank or a percent sign inside a name is escaped as in a URL."""
    return "/".join(quote(name, safe=_PLAIN) for name in path)


def read_path(text: str) -> Path:
    """Read what path_text() wrote, ignoring blanks around it; () from a blank text. Raises BadPath."""
    text = text.strip()
    if not text:
        return ()
    if len(text) > _LONGEST:
        raise BadPath(f"a path of {len(text)} characters, at most {_LONGEST} are allowed")
    try:
        path = tuple(unquote(name, errors="strict") for name in text.split("/"))
    except UnicodeDecodeError as error:
        raise BadPath(f"{shown(text)}: an escape stands for no character") from error
    if len(path) > MAX_TIERS:
        raise BadPath(f"a path of {len(path)} switches, at most {MAX_TIERS} are allowed")
    for name in path:
        if wrong := switch_fault(name):
            raise BadPath(f"{shown(text)}: {wrong}")
    return path
