"""Builds the control plane's programs from their Go modules into the cache.

A program that is in the cache is not built again. Only one build runs at a time. cache.py has the paths. A build needs
the network, or the proxy of GOPROXY, for each Go module that Go's own cache lacks; gotool.py may need PyPI, too.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hack.controlplane.errors import BuildFailed
from hack.controlplane.tools import cache, gotool, parts

Tell = Callable[[str], None]


def build(names: Sequence[str] = (), tell: Tell = print) -> None:
    """Build the named parts that the cache lacks, or all that it lacks: one `go build` for each version of Kubernetes.

    names: of parts, () for all; unknown names are ignored. tell: called with lines about the progress. Raises NoGo if
    there is no Go toolchain, and BuildFailed if a build fails; parts that were built before it stay in the cache.
    """
    selected = [part for part in parts.PARTS if not names or part.name in names]
    if not any(_is_missing(part) for part in selected):
        tell(f"control plane: all {len(selected)} parts are in {cache.root()}")
        return
    with _build_lock(cache.root(), tell):
        go = gotool.find(cache.root(), tell)
        began_s = time.monotonic()
        for group in _groups(selected):
            _build_group(go, group, tell)
        tell(f"control plane: {len(selected)} parts in {time.monotonic() - began_s:.0f} s, in {cache.root()}")


def is_complete() -> bool:
    """Return True if the cache has every part."""
    return not any(map(_is_missing, parts.PARTS))


def _is_missing(part: parts.Part) -> bool:
    """Return True if the cache lacks the part's program or one of its assets."""
    folder = cache.folder(part.module)
    return not all((folder / name).exists() for name in (f"bin/{part.name}", *(to for _, to in part.assets)))


def _groups(selected: Sequence[parts.Part]) -> list[list[parts.Part]]:
    """Return those of the parts `selected` that are not built, in groups that one `go build` can make.

    A group has the parts of one module with equal flags.
    """
    groups: dict[tuple[object, ...], list[parts.Part]] = {}
    for part in filter(_is_missing, selected):
        groups.setdefault((part.module, part.source, part.stamps, part.tags), []).append(part)
    return list(groups.values())


def _build_group(go: Path, group: Sequence[parts.Part], tell: Tell) -> None:
    """Build these parts by one `go build`, and move each into the cache when it is complete.

    go: the program. group: parts of one module with equal flags, not empty. Raises BuildFailed if go fails.
    """
    first, names = group[0], ", ".join(part.name for part in group)
    go_mod = (parts.MODULES / first.module / "go.mod").read_text()
    label = f"{names} {parts.version(first, go_mod)}"
    tell(f"{label}: building")
    began_s = time.monotonic()
    folder = cache.folder(first.module)
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"bin/.{os.getpid()}"
    try:
        unfinished.mkdir()
        packages = [part.package for part in group]
        _go(go, first, "build", *parts.flags(first, go_mod), "-o", f"{unfinished}/", *packages)
        for part in group:
            for source, target in part.assets:
                _copy_asset(go, part, source, folder / target)
            (unfinished / parts.program(part.package)).rename(
                folder / "bin" / part.name
            )  # a reader sees no partial file
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    tell(f"{label}: {time.monotonic() - began_s:.0f} s")


def _copy_asset(go: Path, part: parts.Part, source: str, target: Path) -> None:
    """Copy the YAML files of a folder in the part's source module into a folder of the cache, which is emptied first.

    go: the go command. source: the folder in the module. target: the folder in the cache.
    """
    module = Path(_go(go, part, "list", "-m", "-f", "{{.Dir}}", part.source).strip())
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in sorted((module / source).glob("*.yaml")):
        (target / file.name).write_bytes(file.read_bytes())  # the module's folder is read-only, the copy is not


def _go(go: Path, part: parts.Part, *arguments: str) -> str:
    """Run go in the part's module and return its stdout. Raises BuildFailed if it ends with another code than 0."""
    done = subprocess.run(
        [go, *arguments],
        cwd=parts.MODULES / part.module,
        env={**os.environ, **parts.BUILD_ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildFailed(part.name, " ".join(["go", *arguments]), done.stderr or done.stdout)
    return done.stdout


@contextmanager
def _build_lock(root: Path, tell: Tell) -> Iterator[None]:
    """Hold the build lock of a cache while the block runs; wait for another builder first.

    The kernel releases the lock if the builder is killed. root: of the cache, created if it is missing. tell: called
    with a line if it has to wait.
    """
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("another build is under way; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
