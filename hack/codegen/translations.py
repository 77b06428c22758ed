"""Writes a notice on each Chinese page whose English pages have changed after its translation.

`python -m hack.codegen.translations --write` writes them. A page of docs/zh begins with the names of the English pages
that it was translated from, each with a digest of their text at that time. After an update of a Chinese page, record
the present digests with `--translated docs/zh/jobs.md`. Comments and line breaks of an English page do not count.
"""

from __future__ import annotations

import argparse
import hashlib
import posixpath
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "zh"
_SOURCES = re.compile(r"\A<!-- translated from (.*?) -->\n")
_NOTICE = re.compile(r"^> \*\*英文版之后有改动\*\*.*\n\n", re.M)
_TITLE = re.compile(r"^# .*\n\n", re.M)


class NoSource(Exception):
    """A Chinese page does not say which English pages it was translated from."""


def digest(text: str) -> str:
    """Return twelve hex digits of the words of the page `text`. Comments and white space do not count."""
    words = " ".join(re.sub(r"<!--.*?-->", "", text, flags=re.S).split())
    return hashlib.sha256(words.encode()).hexdigest()[:12]


def sources(page: str, text: str) -> Mapping[str, str]:
    """Return the English pages of a Chinese page, each with its digest at the time of translation: path -> digest.

    page: path of the Chinese page, for the message. text: its content. Raises NoSource if its first line names none.
    """
    match = _SOURCES.match(text)
    if match is None:
        raise NoSource(f"{page} has no `<!-- translated from PAGE DIGEST -->` in its first line")
    pairs = (each.partition(" ") for each in match[1].split(", "))
    return {path: then for path, _, then in pairs}


def with_notice(page: str, text: str, read: Callable[[str], str]) -> str:
    """Return the text of a Chinese page: with a notice if an English page has changed since, otherwise without.

    page: path in the repository. text: its content. read: returns the text of an English page. Raises NoSource if the
    first line of the page names no English page.
    """
    newer = [path for path, then in sources(page, text).items() if digest(read(path)) != then]
    text = _NOTICE.sub("", text)
    if not newer:
        return text
    links = "、".join(f"[{path}]({posixpath.relpath(path, posixpath.dirname(page))})" for path in newer)
    notice = f"> **英文版之后有改动**：{links}。两者不一致时以英文为准。\n\n"
    return _TITLE.sub(lambda match: match[0] + notice, text, count=1)


def with_present_digests(page: str, text: str, read: Callable[[str], str]) -> str:
    """Return the text of a Chinese page with the present digests of its English pages, and without a notice.

    Raises NoSource if the first line of the page names no English page. page: its path. text: its content. read:
    returns the content of the page at a path.
    """
    now = ", ".join(f"{path} {digest(read(path))}" for path in sources(page, text))
    return with_notice(page, _SOURCES.sub(f"<!-- translated from {now} -->\n", text), read)


def read(path: str) -> str:
    """Return the text of a page of this repository. path: relative to the repository."""
    return (ROOT / path).read_text()


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the notices on Chinese pages with the English pages; with --write write them.

    --translated: record that these pages are up to date. Returns 1 if a notice is wrong and was not written, else 0.
    argv: None for that of this process.
    """
    parser = argparse.ArgumentParser(prog="translations", description="Notices on Chinese pages that are old.")
    parser.add_argument("--write", action="store_true", help="write the notices")
    parser.add_argument("--translated", nargs="+", default=[], metavar="PAGE", help="pages that are up to date now")
    args = parser.parse_args(argv)
    wrong = 0
    for file in sorted(FOLDER.glob("*.md")):
        page = file.relative_to(ROOT).as_posix()
        old = file.read_text()
        new = (with_present_digests if page in args.translated else with_notice)(page, old, read)
        if new != old and (args.write or page in args.translated):
            file.write_text(new)
        elif new != old:
            print(f"{page}: its notice is wrong: python -m hack.codegen.translations --write", file=sys.stderr)
            wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
