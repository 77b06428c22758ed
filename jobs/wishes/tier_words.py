"""The tier of a level's name, such as "rack", if no map or label tells it."""

from __future__ import annotations

import re

from turnout.jobs.wishes.model import Level
from turnout.kube import labels

_WORDS = {
    "host": 0, "hostname": 0, "node": 0,
    "leaf": 1, "rack": 1, "asw": 1, "tor": 1, "access": 1, "subblock": 1,
    "spine": 2, "block": 2, "psw": 2, "aggregation": 2, "superpod": 2,
    "core": 3, "zone": 3, "datacenter": 3,
}  # fmt: skip
_FILLERS = {"layer", "topology", "network", "level", "tier", "switch", "name"}


def by_word(name: str) -> int | None:
    """Return the tier of a word, or of the last such word of a key; None if it has none."""
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name.rsplit("/", 1)[-1])
    words = [part.lower() for part in parts if part.lower() not in _FILLERS]
    found = [tier for each in words if (tier := _WORDS.get(each)) is not None]
    return found[-1] if found else None


def by_name(level: Level) -> int:
    """Return the tier of a level by its name. An unknown name counts as a leaf."""
    if isinstance(level, int):
        return level
    tier = 0 if level == labels.HOSTNAME else by_word(level)
    return 1 if tier is None else tier
