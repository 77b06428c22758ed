"""Our wheels, and environments with one of them and no more than it asks for."""

import os
import re
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
ALONE = ("--no-index", "--no-deps")


def needed_requirements(requirements, extra=""):
    """The distributions that these requirements bring, with what those ask for in turn."""
    names, waiting = set(), [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        if requirement.marker and not any(
            requirement.marker.evaluate({"extra": name}) for name in (extra, *sorted(requirement.extras))
        ):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in names:
            continue
        names.add(name)
        for text in distribution(name).requires or ():
            below = Requirement(text)
            if not below.marker or any(below.marker.evaluate({"extra": e}) for e in ("", *requirement.extras)):
                below.marker = None
                waiting.append(below)
    return names


def environment(folder, wheel, extra="", more=()):
    """An environment with a wheel and what it asks for with one of its extras; of all else here it knows nothing.

    What it asks for is linked from this environment, file by file as its installer noted them.
    """
    venv.create(folder, with_pip=False, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    command = [*PIP, "--python", folder / "bin/python", "install", *ALONE, wheel, *more]
    subprocess.run(command, check=True, timeout=120)
    (noted,) = site.glob("turnout-*.dist-info")
    requirements = re.findall(r"^Requires-Dist: (.*)$", (noted / "METADATA").read_text(), re.M)
    for name in needed_requirements(requirements, extra):
        try:
            files = distribution(name).files or ()
        except PackageNotFoundError:
            continue
        for top in {PurePosixPath(file).parts[0] for file in files} - {"..", "__pycache__"}:
            (site / top).symlink_to(distribution(name).locate_file(top))
    return folder


def run(environment, *command, cwd=None, timeout=60, **env):
    """Run a command of the environment far away from the checkout."""
    environment_variables = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    program, *arguments = command
    return subprocess.run(
        [environment / "bin" / program, *arguments],
        cwd=cwd or environment,
        env=environment_variables | env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
