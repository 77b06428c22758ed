"""Ask the package index for known vulnerabilities of what the locks install: `python -m hack.sbom.advisories`.

Needs pip-audit (`make advisories` brings it, from a lock of its own). Exit codes: 0 nothing known of what could be
asked, 1 something is known, 3 the index could be asked of nothing: then nothing is shown either way.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LOCKS = Path("hack/locks")
CHECKED = ("controllers.txt", "launcher.txt", "dev.txt", "preprocess.txt", "spark.txt")
KNOWN, NOTHING_ASKED = 1, 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answers on one lock. known: `name version: advisories`. asked, silent: packages that it has, and has not."""

    known: tuple[str, ...]
    asked: int
    silent: int


def verdict(report: str) -> Verdict:
    """Read pip-audit's JSON."""
    packages = json.loads(report)["dependencies"]
    asked = [each for each in packages if "skip_reason" not in each]
    known = tuple(
        f"{each['name']} {each['version']}: {', '.join(vuln['id'] for vuln in each['vulns'])}"
        for each in asked
        if each["vulns"]
    )
    return Verdict(known, len(asked), len(packages) - len(asked))


def told(lock: str, found: Verdict) -> list[str]:
    """Return what is printed of one lock."""
    if not found.asked:
        return [f"{lock}: nothing was checked: the index has no advisories of any of its {found.silent} packages"]
    rest = f", {found.silent} that the index does not have" if found.silent else ""
    head = f"{lock}: {len(found.known)} known among {found.asked} packages{rest}"
    return [head, *(f"  {one}" for one in found.known)]


def code(found: Sequence[Verdict]) -> int:
    """Return the exit code for these locks together."""
    if any(each.known for each in found):
        return KNOWN
    return 0 if any(each.asked for each in found) else NOTHING_ASKED


def main(argv: Sequence[str]) -> int:
    """Check each lock. argv: pip-audit's path."""
    (tool,) = argv
    found = []
    for lock in CHECKED:
        options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "-f", "json"]
        command = [tool, "-r", str(LOCKS / lock), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.stdout.startswith("{"):
            print(f"{lock}: pip-audit failed: {done.stderr.strip()[-500:]}", file=sys.stderr)
            return NOTHING_ASKED
        found.append(verdict(done.stdout))
        print("\n".join(told(lock, found[-1])))
    return code(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
