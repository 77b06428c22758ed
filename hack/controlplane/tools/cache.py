"""Finds the built programs, which are outside the repository. Each Go module has a folder, named after its sources."""

from __future__ import annotations

import os
from pathlib import Path

from hack.controlplane.errors import NotBuilt
from hack.controlplane.tools import parts


def root() -> Path:
    """Return the folder of all that is built: TURNOUT_CONTROLPLANE_CACHE, else a folder in the user's cache."""
    configured = os.environ.get("TURNOUT_CONTROLPLANE_CACHE")
    if configured:
        return Path(configured)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "turnout" / "controlplane"


def folder(module: str, modules: Path = parts.MODULES, cache: Path | None = None) -> Path:
    """Return the folder for the programs that the present state of one Go module gives. It may not exist.

    module: folder of the module in `modules`. cache: None for `root()`.
    """
    go_mod, go_sum = ((modules / module / name).read_text() for name in ("go.mod", "go.sum"))
    return (cache or root()) / parts.key(module, go_mod, go_sum)


def binary(name: str) -> Path:
    """Return the path of a built program. Raises NotBuilt, whose message has the command that builds it."""
    if name not in parts.BY_NAME:
        raise NotBuilt(f"{name} (known: {', '.join(parts.BY_NAME)})", root())
    path = folder(parts.BY_NAME[name].module) / "bin" / name
    if not path.is_file():
        raise NotBuilt(name, path)
    return path


def training_crds() -> Path:
    """Return the folder of training-operator's CRDs. Raises NotBuilt if the cache does not have it."""
    path = folder("training") / parts.TRAINING_CRDS
    if not path.is_dir():
        raise NotBuilt("training-operator", path)
    return path
