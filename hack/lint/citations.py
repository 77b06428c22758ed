"""Checks that everything cited in sources exists: paths of docs, their sections, ids of the contract, and addresses.

Comments, docstrings and docs pages are read alike, as text. tests/test_docs.py checks links between docs pages.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

_PAGE = re.compile(r"(?<![\w/])docs/[\w/-]+\.md")
_SECTIONS = re.compile(r"(docs/(?:facts/[\w-]+|design)\.md)((?:(?: and|,|;)? ?\d+(?:\.\d+)?(?=[\s,;:.)\"'`]|$))+)")
_BARE = re.compile(r"(?<![\w/(])facts/[\w-]+\.md|(?<!\w)DESIGN(?:\.md)?\b|\b[Ii]ssue \d+\b")
_ID = re.compile(r"(?<![\w-])(CS|DL|CA|PE|VE|MS|XD|SD)-(\d{2,3})(?!\d|-\d)")
_ADDRESS = re.compile(r"https?://([^\s,/\"'`{}<>)\]\\:]+)")
# Names that nobody can own, this machine, a cluster's own services, numbers (of IPv6 in
# brackets), and the names of XML's spaces and of in-toto's types, which are no addresses.
_NOWHERE = re.compile(
    r"(localhost\.?$|.*\.svc(\.cluster\.local)?$|.*\.svc\.|.*example(\.(com|org|net))?$|.*\.invalid$|[\w-]+$"
    r"|www\.w3\.org$|in-toto\.io$|slsa\.dev$|\d+(\.\d+){3}\.?$|\[)"
)


def faults(text: str, pages: Mapping[str, str], ids: Collection[str]) -> Iterator[str]:
    """Yield each citation in a text whose target does not exist.

    pages: text of each page by path. ids: of the contract's rows and of the table of differences.
    """
    for found in _PAGE.finditer(text):
        if found[0] not in pages:
            yield f"{found[0]} is not here"
    for found in _SECTIONS.finditer(text):
        for number in re.findall(r"\d+(?:\.\d+)?", found[2]):
            if found[1] in pages and not _has(pages[found[1]], number):
                yield f"{found[1]} has no section {number}"
    for found in _BARE.finditer(text):
        yield f"{found[0]} is not here"
    for found in _ID.finditer(text):
        if found[0] not in ids:
            yield f"{found[0]} is no row of the contract"
    for found in _ADDRESS.finditer(text):
        if not _NOWHERE.match(found[1]):
            yield f"{found[0]} is an address outside this repository"


def _has(page: str, section: str) -> bool:
    """Return True if a page has the section, or the numbered line of its section 0."""
    if re.search(rf"^#+ {re.escape(section)}\.?\s", page, re.MULTILINE):
        return True
    return section.startswith("0.") and re.search(rf"^{re.escape(section[2:])}\. ", page, re.MULTILINE) is not None
