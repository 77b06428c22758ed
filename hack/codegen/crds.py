"""Write deploy/crds from jobs/kinds: `python -m hack.codegen.crds`. This module always writes;
tests/deploy/test_crds.py fails if a file is stale.

`python -m hack.codegen.crds FILE...` writes definitions of other projects anew, without descriptions, for tests/crds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from turnout.jobs.kinds.registry import definitions

FOLDER = Path("deploy/crds")
HEAD = "# Written by `python -m hack.codegen.crds` from jobs/kinds: change it there.\n"


OTHERS_GROUPS = ("volcano.sh",)  # `kubectl apply -f deploy/crds` leaves folders out: Volcano's own definition is fuller


def files() -> dict[str, str]:
    """Return the text of each file by its name. CRDs of groups that another project installs (OTHERS_GROUPS)
    are in a folder.
    """
    return {f"{_folder(each)}{each['metadata']['name']}.yaml": HEAD + _text(each) for each in definitions()}


def _folder(body: Mapping[str, Any]) -> str:
    return next((f"{group}/" for group in OTHERS_GROUPS if body["spec"]["group"].endswith(group)), "")


class _AnchorlessDumper(yaml.SafeDumper):
    """Writes an object that occurs twice in full each time, without an anchor."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _text(body: object) -> str:
    return str(yaml.dump(body, Dumper=_AnchorlessDumper, sort_keys=False, width=120))


def without_descriptions(body: Any) -> Any:
    """Return a schema without its description texts, which do not change what it accepts."""
    if isinstance(body, list):
        return [without_descriptions(each) for each in body]
    if not isinstance(body, dict):
        return body
    texts = [key for key, value in body.items() if key == "description" and isinstance(value, str)]
    return {key: without_descriptions(value) for key, value in body.items() if key not in texts}


def main(files_of_others: Sequence[str]) -> int:
    """Write our definitions. With arguments, instead rewrite those files of other projects without descriptions.
    Return 0.
    """
    for path in map(Path, files_of_others):
        path.write_text(_text(without_descriptions(yaml.load(path.read_text(), yaml.CSafeLoader))))
    if files_of_others:
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).parent.mkdir(exist_ok=True)
        (FOLDER / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
