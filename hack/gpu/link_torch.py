"""Links torch and what it needs, and nothing else, from this Python's packages into another folder of packages.

`python -m hack.gpu.link_torch FOLDER`. So an environment that is as bare as a GPU machine costs no download.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement


def requirements_of(name: str) -> set[str]:
    """Return the names of a distribution and of all distributions that it needs, directly or not.

    Requirements whose marker does not hold on this machine are left out. Raises PackageNotFoundError if one of the
    others is not installed.
    """
    found, to_visit = set[str](), [Requirement(name)]
    while to_visit:
        requirement = to_visit.pop()
        if requirement.name in found:
            continue
        found.add(requirement.name)
        environments = [{"extra": extra} for extra in ["", *requirement.extras]]
        for text in distribution(requirement.name).requires or []:
            other = Requirement(text)
            if other.marker is None or any(other.marker.evaluate(each) for each in environments):
                to_visit.append(other)
    return found


def main() -> int:
    """Link every top-level file and folder of torch and its requirements into the folder of the first argument.

    Returns 0; 1 if torch is not installed.
    """
    folder = Path(sys.argv[1])
    try:
        names = requirements_of("torch")
    except PackageNotFoundError as error:
        print(f"{error}; run `make setup-launcher` first", file=sys.stderr)
        return 1
    for name in sorted(names):
        installed = distribution(name)
        home = Path(str(installed.locate_file("")))
        for first in {file.parts[0] for file in installed.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / first).exists():
                (folder / first).symlink_to(home / first)
    return 0


if __name__ == "__main__":
    sys.exit(main())
