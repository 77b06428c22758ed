"""Write deploy/crds from controllers/schemas: `python -m hack.codegen.crds`. A test holds that they are up to date."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from turnout.controllers.schemas.registry import definitions

FOLDER = Path("deploy/crds")
HEAD = "# Written by `python -m hack.codegen.crds` from controllers/schemas: change it there.\n"


def files() -> dict[str, str]:
    """Give the text of each file by its name."""
    return {f"{each['metadata']['name']}.yaml": HEAD + _text(each) for each in definitions()}


class _Plain(yaml.SafeDumper):
    """Writes what stands twice twice: an anchor is read by few."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(body: object) -> str:
    return str(yaml.dump(body, Dumper=_Plain, sort_keys=False, width=120))


def main() -> int:
    """Write them all."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, whole in files().items():
        (FOLDER / name).write_text(whole)
    return 0


if __name__ == "__main__":
    sys.exit(main())
