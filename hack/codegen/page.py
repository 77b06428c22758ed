"""Check that the page's bundle is made from its sources: `python -m hack.codegen.page [--write]`.

The bundle names the digest of what it was made from. Only `--write` needs Node: it runs `npm ci` and the build.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

WEB, BUNDLE = Path("cli/page/web"), Path("cli/page/static/page.js")
NAMES = ("package.json", "package-lock.json", "tsconfig.json", "build.mjs", "index.html", "icon.svg")
_SOURCE = re.compile(r"\.(tsx?|css)$")


def source_digest() -> str:
    """Return the digest of all sources of the bundle; build.mjs writes the same digest into the bundle."""
    sources = [path.relative_to(WEB).as_posix() for path in (WEB / "src").rglob("*") if _SOURCE.search(path.name)]
    digest = hashlib.sha256()
    for name in sorted([*NAMES, *sources]):
        digest.update(f"{name}\0{(WEB / name).read_text()}\0".encode())
    return digest.hexdigest()


def bundle_digest() -> str:
    """Return the digest that the bundle names, "" if it names none."""
    found = re.match(r"// sources ([0-9a-f]{64})\n", BUNDLE.read_text()) if BUNDLE.exists() else None
    return found[1] if found is not None else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Check that the bundle of the page is built from the present sources; with --write build it by npm first.

    Returns 1 if it is stale, else 0. argv: None for that of this process.
    """
    if "--write" in (sys.argv[1:] if argv is None else argv):
        for command in (["npm", "ci", "--no-audit", "--no-fund"], ["npm", "run", "check"], ["npm", "run", "build"]):
            subprocess.run(command, cwd=WEB, check=True)
    if bundle_digest() == source_digest():
        return 0
    print("cli/page/static/page.js is not made from cli/page/web; run: python -m hack.codegen.page --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
