"""Paths of switches, read tier by tier without tables: what a fabric is built on, and what a launcher can afford alone.

Tiers count from below: a leaf is tier 1, however deep its branch. How a path is written in one line stands here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote, unquote

from turnout.topology.sources.names import MAX_TIERS, shown, switch_fault

Path = tuple[str, ...]
Key = tuple[tuple[int, int, str], ...]
_NUMBER = re.compile(r"(\d+)")
_PLAIN = "".join(chr(at) for at in range(33, 127) if chr(at) not in "/%")  # stands for itself in a written path
_LONGEST = 8_192  # characters of a written path


class BadPath(ValueError):
    """A text that is no path of switches. The message says why."""


def natural(text: str) -> Key:
    """Return a sort key under which gpu9 comes before gpu10; equal keys only for equal texts."""
    parts = _NUMBER.split(text)
    return tuple((1, int(part), part) if at % 2 else (0, 0, part) for at, part in enumerate(parts))


def heights(paths: Iterable[Path]) -> dict[Path, int]:
    """Return the tier of each switch on these paths, and of the nameless top () over all: 1 for a leaf, else one above
    the highest switch below."""
    found: dict[Path, int] = {(): 1}
    for path in paths:
        for depth in range(len(path) + 1):
            found[path[:depth]] = max(found.get(path[:depth], 0), len(path) - depth + 1)
    return found


def top(tier_of: Mapping[Path, int], roots: int) -> int:
    """Return the tier that holds everything: of the only root, else of the nameless top."""
    return tier_of[()] - 1 if roots == 1 and tier_of[()] > 1 else tier_of[()]


def row(path: Path, tier_of: Mapping[Path, int], tiers: int) -> tuple[Path, ...]:
    """Return the switches over a host, of tier T, T-1, ..., 1: of each tier the highest that is not above it."""
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
    """Return for each path the numbers of its switches of tier 1, 2, ..., T: at every tier in natural order.

    Paths are not empty. They are numbered as fabric.build() does it, in a fabric of hosts on these paths.
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
        found[path] = tuple(seen.setdefault(switch, len(seen)) for seen, switch in upwards)
    return found


def written(path: Sequence[str]) -> str:
    """Write a path as root/.../leaf. A slash, a blank or a percent sign inside a name is escaped as in a URL."""
    return "/".join(quote(name, safe=_PLAIN) for name in path)


def read(text: str) -> Path:
    """Read what written() wrote, blanks around it aside; () from a blank text. Raises BadPath."""
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
