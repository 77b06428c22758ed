"""Make the kubectl plugin for krew: an archive that holds all that `kubectl turnout` imports, and its manifest.

Source: krew's developer guide, "Writing Krew plugin manifests"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from hack.images import python_wheels
from hack.images.layer import Entry, pack_layer

PYTHON = "3.11"
LOCK = "demo.txt"  # the extra `cli`, with hashes
_BUILD_TOOLS = ("setuptools-", "wheel-")  # the lock has them for the demo
_PROGRAM = f"""#!/usr/bin/env python{PYTHON}
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "lib"))
from turnout.cli.programs import kubectl_turnout

sys.exit(kubectl_turnout())
"""


def archive(wheels: Iterable[Path]) -> bytes:
    """Return the archive: the program, and a folder with what these wheels install."""
    files: dict[str, Entry] = {}
    for wheel in wheels:
        if not wheel.name.startswith(_BUILD_TOOLS):
            files |= python_wheels.files(wheel, "lib", "bin", f"/usr/bin/env python{PYTHON}")
    libraries = {path: entry for path, entry in files.items() if path.startswith("lib/")}
    return pack_layer(libraries | {"kubectl-turnout": Entry(_PROGRAM.encode(), 0o755)})[1]


def name(version: str) -> str:
    """Return the name of the archive."""
    return f"kubectl-turnout-{version}-linux-amd64.tar.gz"


def manifest(version: str, url: str, sha256: str) -> str:
    """Return the manifest, for krew-index or for `kubectl krew install --manifest`. url: of the release's files."""
    platform = {
        "selector": {"matchLabels": {"os": "linux", "arch": "amd64"}},
        "uri": f"{url}/{name(version)}",
        "sha256": sha256,
        "bin": "kubectl-turnout",
    }
    spec: Mapping[str, object] = {
        "version": f"v{version}",
        "homepage": url,
        "shortDescription": "See why a GPU job waits, where it stands and what it costs",
        "description": _DESCRIPTION,
        "caveats": f"It needs Python {PYTHON}. For another one, pip install 'turnout[cli]' brings the same program.\n",
        "platforms": [platform],
    }
    about = {"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin"}
    return yaml.safe_dump({**about, "metadata": {"name": "turnout"}, "spec": spec}, sort_keys=False, width=100)


_DESCRIPTION = """Lists gangs, jobs, queues and GPU nodes, explains why a job waits or was resized, and checks an
installation of Turnout: gang placement under the fewest switches, and elastic GPU queues.
"""
