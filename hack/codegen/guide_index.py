"""Write docs/guide-index.md, where each promise is told in both languages: `python -m hack.codegen.guide_index`.

tests/docs/test_guide_index.py holds that it is up to date, names each promise once, and that every place is there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

DOCS = Path("docs")
ROOT = Path(__file__).resolve().parents[2]
PAGE = DOCS / "guide-index.md"
HEAD = """# Where each promise is told, in English and in Chinese · 中英文索引

Made from docs/guide-index.yaml by `python -m hack.codegen.guide_index`. What each id promises, and the tests that show
it: [contract.md](contract.md).

| id | promise | English | 中文 |
| --- | --- | --- | --- |
"""


class BadRange(ValueError):
    """A word is neither an ID nor a range of IDs of one group in ascending order."""


@dataclass(frozen=True, slots=True)
class PromisePages:
    """The pages that tell a promise, with their sections, relative to docs/."""

    en: str
    zh: str


def ids(words: Iterable[str]) -> Iterator[str]:
    """Yield each ID in a list of IDs and ranges, as in `CS-01..CS-04`, in order.

    Raises BadRange for a word that is no ID, for a range over two groups, and for a range that descends.
    """
    for word in words:
        first, _, last = word.partition("..")
        group, _, number = first.partition("-")
        last_group, _, last_number = (last or first).partition("-")
        if (
            group != last_group
            or not (number.isdecimal() and last_number.isdecimal())
            or int(number) > int(last_number)
        ):
            raise BadRange(word)
        yield from (f"{group}-{each:02}" for each in range(int(number), int(last_number) + 1))


def places(text: str) -> dict[str, list[PromisePages]]:
    """Parse the YAML table of places. Return all places of each ID, in the order of the table."""
    found: dict[str, list[PromisePages]] = {}
    for row in yaml.safe_load(text):
        for each in ids(row["rows"]):
            found.setdefault(each, []).append(PromisePages(row["en"], row["zh"]))
    return found


def page(promises: Mapping[str, str], mentions: Mapping[str, list[PromisePages]]) -> str:
    """Return the text of the page. promises: short text of each ID, in the page's order. mentions: places of each ID.

    Only the first place of each ID is linked. Raises KeyError for an ID without a place.
    """
    lines = []
    for each, promise in promises.items():
        place = mentions[each][0]
        links = (f"[{name.removeprefix('../')}]({name})" for name in (place.en, place.zh))
        lines.append(f"| {each} | {promise.replace('|', chr(92) + '|')} | {' | '.join(links)} |\n")
    return HEAD + "".join(lines)


def generate_page() -> str:
    """Return the text of the page for this repository."""
    rows = yaml.safe_load((ROOT / DOCS / "contract.yaml").read_text())
    promises = {row["id"]: row["promise"] for row in rows}
    return page(promises, places((ROOT / DOCS / "guide-index.yaml").read_text()))


def main() -> int:
    """Write the page. Return 0."""
    (ROOT / PAGE).write_text(generate_page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
