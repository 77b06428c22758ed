"""Names of hosts and switches, ranges of names, and keys of the topology ConfigMap.

Ranges are written gpu[001-064], 10.0.0.[1-8,12] or r[1-4]n[1-8]. Each number of a range is at least as wide as the
first number, so leading zeros are kept. The size of an expansion is known before anything is expanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product

# Keys of the topology ConfigMap.
TEXT_KEY = "topology_config"  # the lines of the DLRover guide; DLRover's chart renders this key, empty by default
YAML_KEY = "topology.yaml"  # the key of our own YAML form
CONFIRMED_MAP_ANNOTATION = (
    "turnout.dev/confirmed-map"  # annotation: the digest of a large change that an admin has confirmed
)


MAX_TEXT_BYTES = 1 << 20  # of a map text, as of a whole ConfigMap
MAX_HOSTS = 200_000  # of a map
MAX_TIERS = 15  # of switches; Kueue allows 16 levels, hosts included
MAX_NAME = 253  # characters of a name, as of a DNS subdomain, which a node name must be

_HOST = re.compile(r"[A-Za-z0-9:][A-Za-z0-9.:_-]*\Z")  # node names, IPv4, IPv6
_GROUP = re.compile(r"\[([^\[\]]*)\]")
_SPAN = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")
_WORD = re.compile(r"(?:\[[^\]]*\]|[^\s,])+")


class BadRange(ValueError):
    """A range that cannot be read. The message names it."""


def host_fault(name: str) -> str:
    """Return why a host cannot have this name, as a sentence; "" if it can.

    Upper case is accepted, and host names are compared with their case. A name of a Kubernetes node has no capital.
    """
    if len(name) > MAX_NAME:
        return f"the host name has {len(name)} characters; at most {MAX_NAME} are allowed"
    return "" if _HOST.match(name) else f"{quote_text(name)} is neither a node name nor an IP"


def switch_fault(name: str, kind: str = "switch name") -> str:
    """Return why a switch cannot have this name, as a sentence; "" if it can. kind: its word in the sentence."""
    if not name or len(name) > MAX_NAME:
        return f"the {kind} has {len(name)} characters; 1 to {MAX_NAME} are allowed"
    return "" if name.isprintable() else f"the {kind} {quote_text(name)} holds characters that cannot be printed"


def quote_text(text: str) -> str:
    """Return a text as it is shown in a message: quoted, escaped, at most 60 characters of it."""
    return ascii(text if len(text) <= 60 else text[:57] + "...")


def split_words(text: str) -> list[str]:
    """Return the words of a text, which blanks and commas outside brackets separate."""
    return _WORD.findall(text)


def count_names(word: str) -> int:
    """Return how many names a word expands to: 1 for a name, more for ranges. Nothing is expanded.

    Raises BadRange if the word is malformed, or if its names are certainly too long. A range counts as one character,
    so host_fault() or switch_fault() may still find a name too long.
    """
    if len(_GROUP.sub("0", word)) > MAX_NAME:
        raise BadRange(f"{quote_text(word)} expands to names longer than {MAX_NAME} characters")
    total = 1
    for group in _GROUP.findall(word):
        total *= sum(last - first + 1 for first, last, _ in _spans(word, group))
    if "[" in _GROUP.sub("", word) or "]" in _GROUP.sub("", word):
        raise BadRange(f"{quote_text(word)} has no opening or no closing bracket")
    return total


def expand_range(word: str) -> Iterator[str]:
    """Return the names that a word expands to, in the order written: a name itself, or all names of its ranges.

    Call count_names() first, because a word may expand to too many names. Raises BadRange.
    """
    pieces = _GROUP.split(word)  # text, group, text, group, ..., text
    choices = [
        [f"{number:0{width}d}" for first, last, width in _spans(word, piece) for number in range(first, last + 1)]
        if position % 2
        else [piece]
        for position, piece in enumerate(pieces)
    ]
    return ("".join(parts) for parts in product(*choices))


def _spans(word: str, group: str) -> list[tuple[int, int, int]]:
    """Return (first number, last number, least digits) of each part of a range. Raises BadRange for a malformed part.

    word: the whole word, for the message. group: the text between the brackets, such as 1-8,12.
    """
    spans = []
    for part in group.split(","):
        match = _SPAN.match(part.strip())
        if match is None:
            raise BadRange(f"{quote_text(word)}: {quote_text(part)} is no range; write a range as [1-8] or [1-8,12]")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise BadRange(
                f"{quote_text(word)}: in the range {quote_text(part)} the first number is larger than the last"
            )
        spans.append((int(first), int(last), len(first)))
    return spans
