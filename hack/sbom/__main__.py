"""`python -m hack.sbom [LOCK …]`: print the bill of materials of what the lock files of hack/locks pin."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from hack.sbom.cyclonedx import BadLock, document, packages

LOCKS = Path(__file__).parents[1] / "locks"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the bill of materials of the named locks. Return 0; 1 if a package in a lock has no hash.

    argv: None for that of this process.
    """
    known = sorted(path.name for path in LOCKS.glob("*.txt"))
    parser = argparse.ArgumentParser(prog="python -m hack.sbom", description="Print a CycloneDX bill of materials.")
    parser.add_argument("locks", nargs="*", metavar="LOCK", help=f"of {', '.join(known)} (dev.txt and launcher.txt)")
    chosen = parser.parse_args(argv).locks or ["dev.txt", "launcher.txt"]
    if unknown := sorted(set(chosen) - set(known)):
        parser.error(f"{', '.join(unknown)}: one of {', '.join(known)} is needed")
    try:
        found = packages({name: (LOCKS / name).read_text() for name in chosen})
    except BadLock as error:
        print(f"hack.sbom: {error}", file=sys.stderr)
        return 1
    print(json.dumps(document("turnout", metadata.version("turnout"), found, licences()), indent=1))
    return 0


def licences() -> dict[str, str]:
    """Return the licence of each installed package that says it as an SPDX expression."""
    expressions = (
        (each.metadata["Name"], each.metadata.json.get("license_expression")) for each in metadata.distributions()
    )
    return {name.lower().replace("_", "-"): text for name, text in expressions if name and isinstance(text, str)}


if __name__ == "__main__":
    sys.exit(main())
