"""Build the programs of the control plane that the selected tests need: `python -m tests.kit.needed_parts -m real`.

The arguments are those of pytest. A test needs a program that its module, or a module of tests/ or hack/ that it
imports, names in a call: `cache.binary("helm")`, `start_kwok()`. A fixture that starts a control plane needs the
programs of Kubernetes, of the release that the test's parameters name.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache as remembered
from pathlib import Path

import pytest

from hack.controlplane.errors import ControlPlaneError
from hack.controlplane.tools import build
from hack.controlplane.tools.parts import BY_NAME, NEXT

ROOT = Path(__file__).resolve().parents[2]
PLANES = frozenset({"control_plane", "module_plane", "make_control_plane"})
KUBERNETES = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl")
CALLS = {
    "start_kwok": "kwok",
    "start_training_operator": "training-operator",
    "training_crds": "training-operator",
}
_BINARY = re.compile(r"\bbinary\(f?[\"']([\w-]+)")
_CALL = re.compile(rf"\b({'|'.join(CALLS)})\b")
_OURS = ("tests", "hack")
_NOT_FOLLOWED = ("hack/controlplane/", "tests/conftest.py", "tests/support/")  # they can start everything


def named(text: str) -> set[str]:
    """Return the programs that the text of a module names in a call."""
    found = {name for name in _BINARY.findall(text) if name in BY_NAME}
    return found | {CALLS[name] for name in _CALL.findall(text)}


def needed(fixtures: Iterable[str], release: str, texts: Iterable[str]) -> set[str]:
    """Return the programs that one test needs.

    fixtures: the names of its fixtures. release: "" or NEXT, of the control plane that its parameters ask for. texts:
    of its module, and of those that it imports.
    """
    found = set().union(*map(named, texts)) if texts else set()
    if PLANES & set(fixtures):
        found |= set(KUBERNETES)
        found |= {name for name in BY_NAME if release and name.endswith(NEXT)}
    return found


def imported(path: Path) -> Iterator[Path]:
    """Yield a test file, the conftest.py files above it, and what they import of tests/ and hack/, each once."""
    above = [folder / "conftest.py" for folder in path.parents if folder.is_relative_to(ROOT / "tests")]
    pending = [path, *(file for file in above if file.is_file() and file != ROOT / "tests/conftest.py")]
    known = set(pending)
    while pending:
        yield (file := pending.pop())
        for module in _modules(file.read_text()):
            target = ROOT / (module.replace(".", "/") + ".py")
            name = target.relative_to(ROOT).as_posix()
            if target not in known and target.is_file() and not name.startswith(_NOT_FOLLOWED):
                known.add(target)
                pending.append(target)


def _modules(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(_OURS):
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


@remembered
def _texts(path: Path) -> tuple[str, ...]:
    return tuple(file.read_text() for file in imported(path))


class Selected:
    """A pytest plugin that notes which programs the selected tests need."""

    def __init__(self) -> None:
        self.parts: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Look at each selected test."""
        for item in session.items:
            callspec = getattr(item, "callspec", None)
            settings = callspec.params.get("control_plane") if callspec is not None else None
            release = settings.get("release", "") if isinstance(settings, dict) else ""
            self.parts |= needed(getattr(item, "fixturenames", ()), release, _texts(item.path))


def main(argv: Sequence[str]) -> int:
    """Build what the selected tests need, and return 0; 1 when something cannot be built.

    Where the cache has every program, nothing is collected.
    """
    if build.is_complete():
        return 0
    selected = Selected()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(["--collect-only", "-qq", "-n", "0", *argv], plugins=[selected])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(output.getvalue())
        return int(code)
    try:
        if selected.parts:
            build.build(sorted(selected.parts), lambda line: print(line, flush=True))
    except ControlPlaneError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
