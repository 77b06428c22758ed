"""Pack the chart as `helm package` does, but with the same bytes each time: `helm push` takes the archive."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from hack.images.layer import Entry, pack_layer
from hack.images.wheels import ROOT

CHART = "deploy/charts/turnout"


def read_chart_yaml() -> dict[str, Any]:
    """Return the content of Chart.yaml."""
    found: dict[str, Any] = yaml.safe_load((ROOT / CHART / "Chart.yaml").read_text())
    return found


def name() -> str:
    """Return the name of the archive, as `helm package` gives it."""
    about = read_chart_yaml()
    return f"{about['name']}-{about['version']}.tgz"


def archive() -> bytes:
    """Return the chart as a .tgz. Equal files give equal bytes.

    It holds every file below CHART that git tracks, and every untracked one that git does not ignore, such as a draft,
    below a folder of the chart's name. It leaves out .helmignore. Raises CalledProcessError if this is no git checkout.
    """
    listed = subprocess.run(
        ("git", "ls-files", "-coz", "--exclude-standard", CHART), cwd=ROOT, capture_output=True, check=True
    )
    files = {}
    for path in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / path).is_file() and Path(path).name != ".helmignore":
            files[f"{read_chart_yaml()['name']}/{Path(path).relative_to(CHART)}"] = Entry((ROOT / path).read_bytes())
    return pack_layer(files)[1]


def write(into: Path) -> Path:
    """Write the archive into a folder and return its path."""
    into.mkdir(parents=True, exist_ok=True)
    (into / name()).write_bytes(archive())
    return into / name()
