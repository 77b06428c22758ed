"""Prepare the environment of child programs: our packages, no wait for authorities, and an end with ours."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

from turnout.launcher.linux import die_with

STOP_S = 0.5  # they have nothing to save, and a person waits for the prompt
# aiohttp reads the machine's certificate authorities when it is imported, which takes a twentieth of a second; our
# programs call nobody but an API server, whose authority stands in the kubeconfig.
_NO_AUTHORITIES = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": os.devnull}


class ChildFailed(Exception):
    """A program that was started did not come up. The message holds the last lines that it wrote."""


def environment() -> dict[str, str]:
    """Ours, and where the child finds `turnout`, from whatever folder we were started."""
    spec = importlib.util.find_spec("turnout")
    package_root = str(Path(spec.origin).parent.parent) if spec and spec.origin else ""
    path = os.pathsep.join(filter(None, (package_root, os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, **_NO_AUTHORITIES, "PYTHONPATH": path}


def die_with_parent() -> None:
    """Ask Linux to kill the child when its parent is killed: nobody would be left to insist."""
    die_with(os.getppid(), signal.SIGKILL)
