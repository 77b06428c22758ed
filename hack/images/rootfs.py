"""Unpacks an image and starts its programs as a container runtime would: with a read-only root, and not as root.

Two user namespaces are nested, so that this works without root wherever a user may create a user namespace.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hack.images.oci import config_and_layers

# Mounts, as root of the outer namespace: the root read-only, /tmp in memory, a few devices, the folders that are given.
_MOUNTS = """set -e
root=$1; shift
mount --bind "$root" "$root"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
while [ "$1" != -- ]; do mkdir -p "$root/run/$2"; mount --bind "$1" "$root/run/$2"; shift 2; done
shift
mount -o remount,bind,ro "$root"
exec "$@"
"""


def unpack_image(layout: Path, into: Path) -> dict[str, Any]:
    """Unpack the layers of an image into a new folder, lowest first. Return the image's configuration.

    layout: folder of an OCI image layout. into: the new folder; its parents are created. Raises FileExistsError if
    `into` exists.
    """
    config, layers = config_and_layers(layout)
    into.mkdir(parents=True)
    for layer in layers:
        with tarfile.open(layer, "r:gz") as tar:
            tar.extractall(into, filter="tar")
    return config


def command(
    config: Mapping[str, Any],
    root: Path,
    program: Sequence[str],
    mounts: Mapping[Path, str] | None = None,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the command line that runs a program in an unpacked image.

    config: as `unpack_image` returned it, with a User of the form "UID:GID". root: the folder that `unpack_image` made.
    program: name on the image's PATH, and arguments; a program that is not found fails when the command runs. mounts:
    folders of this machine -> names below /run, writable. env: added to the image's variables. The rest of the root is
    read-only, except /tmp and /run. The network is this machine's. The command has the program's exit code; signals
    reach the program.
    """
    user, group = config["config"]["User"].split(":")
    outer = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"]
    outer += ["sh", "-c", _MOUNTS, "mounts", str(root)]
    for source, target in (mounts or {}).items():
        outer += [str(source), target]
    inner = [
        shutil.which("unshare") or "unshare",
        "--user",
        f"--map-user={user}",
        f"--map-group={group}",
        f"--root={root}",
        "--wd=/",
    ]
    variables = [*config["config"]["Env"], *(f"{key}={value}" for key, value in (env or {}).items())]
    loader = _program(root, program[0], dict(each.split("=", 1) for each in variables)["PATH"])
    return [*outer, "--", "env", "-i", *variables, *inner, "--", loader, *program[1:]]


def why_not_runnable() -> str:
    """Return why no image can be started on this machine; "" if one can."""
    if shutil.which("unshare") is None:
        return "unshare is missing (util-linux)"
    probe = ["unshare", "--user", "--map-root-user", "--mount", "unshare", "--user", "--map-user=65532", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{shlex.join(probe)}: {done.stderr.strip()}"


def _program(root: Path, name: str, path: str) -> str:
    """Return a program's path inside the image; the bare name if no folder of PATH has it. path: the image's PATH.

    root: folder of the unpacked image.
    """
    for folder in path.split(":"):
        if (root / folder.lstrip("/") / name).exists():
            return f"{folder}/{name}"
    return name
