"""Lay the pages of the docs site out as its generator reads them: every link of a page leads to a page or a file.

Pages keep their paths in the repository; a page outside docs/ comes under repository/. Nothing is read or written here:
`__main__.py` does that.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection
from dataclasses import dataclass

_FENCE = re.compile(r"^(```.*?^```)", re.M | re.S)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_ABROAD = re.compile(r"[a-z]+:")
_LOADS = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=\"((?:https?:)?//[^\"]+)"
    r"|<link\b(?![^>]*rel=\"(?:canonical|next|prev)\")[^>]*?\bhref=\"((?:https?:)?//[^\"]+)"
    r"|url\([\"']?((?:https?:)?//[^)\"']+)"
)


@dataclass(frozen=True, slots=True)
class SitePage:
    """The text of one page on the site, and the other files of the repository that it links to."""

    text: str
    files: tuple[str, ...]  # paths in the repository, in order, each once


def place(path: str) -> str:
    """Return the path of a repository's file on the site: without docs/, or below repository/ for other files."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"


def stage(path: str, text: str, files: Collection[str]) -> SitePage:
    """Return one page with its links rewritten for the site. path, text: of the page in the repository. files: all
    paths of the repository.

    A link to a folder leads to its README. Of a link to a path that does not exist only its text stays.
    """
    linked: dict[str, None] = {}

    def link(match: re.Match[str]) -> str:
        """Return the link with its target on the site."""
        mark, words, target = match.groups()
        address, _, anchor = target.partition("#")
        if not address or _ABROAD.match(target):
            return match[0]
        found = _file(posixpath.normpath(posixpath.join(posixpath.dirname(path), address)), files)
        if found is None:
            return words
        if not found.endswith(".md"):
            linked[found] = None
        href = posixpath.relpath(place(found), posixpath.dirname(place(path)) or ".")
        return f"{mark}[{words}]({href}{'#' if anchor else ''}{anchor})"

    parts = _FENCE.split(text)
    return SitePage("".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts), tuple(linked))


def with_site_paths(configuration: str) -> str:
    """Return the site's configuration with the paths that the pages have on the site."""
    return re.sub(r'"([\w./-]+\.md)"', lambda match: f'"{place(match[1])}"', configuration)


def with_local_search_worker(page: str, html: str) -> str:
    """Return the page with the site's own copy of the search worker's script in place of another host's copy.

    The site's generator loads the script from another host; with the own copy, the search works without a server. A
    page without the script stays as it is. page: its path on the site. html: its text.
    """
    src = posixpath.relpath("iframe-worker.js", posixpath.dirname(page) or ".")
    return re.sub(r'src="[^"]*iframe-worker/shim"', f'src="{src}"', html)


def foreign_resources(html: str) -> list[str]:
    """Return the addresses of other hosts from which a browser would load a part of this page, in order."""
    return [next(filter(None, found)) for found in _LOADS.findall(html)]


def _file(path: str, files: Collection[str]) -> str | None:
    readme = f"{path}/README.md"
    return path if path in files else readme if readme in files else None
