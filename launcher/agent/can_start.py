"""Checks, before anybody is met, that what is to be run and served is here at all."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec

from turnout.launcher.errors import BadSettings
from turnout.launcher.settings import Command, Kind


def check_command(command: Command) -> None:
    """Raise BadSettings if the script or the program does not exist. A module is looked for by its own process."""
    name = command.program
    match command.kind:
        case Kind.SCRIPT | Kind.RUN_PATH:
            if not os.path.exists(name):
                raise BadSettings(f"there is no script {name!r} in {os.getcwd()}")
        case Kind.PROGRAM:
            if shutil.which(name) is None:
                raise BadSettings(f"there is no program {name!r} that could be run")


def check_metrics(port: int | None) -> None:
    """Raise BadSettings if metrics are to be served and their library is not installed."""
    if port is not None and find_spec("prometheus_client") is None:
        raise BadSettings("--metrics-port needs pip install 'turnout[launcher]'")
