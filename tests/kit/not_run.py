"""Report tests that need what this machine lacks as not run, with the line that brings it.

A mark says what a test needs: `debian(package)`, `spark`, `root`, `peers`, `mindspore`, `gpu`. Under CI no package of
Debian and no target of the Makefile may be missing: the run fails then, although every test that ran has passed.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest

PREFIX = "not run: "
# Of Debian, each with a program of it.
PACKAGES = {
    "openssl": "openssl",
    "iproute2": "ip",
    "util-linux": "unshare",
    "openssh-server": "/usr/sbin/sshd",
    "default-jre-headless": "java",
    "chromium": "chromium",
}
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")


def missing(item) -> str | None:
    """Return what would have to be done so that the test could run; None if it can run."""
    for mark in item.iter_markers("debian"):
        (package,) = mark.args
        if shutil.which(PACKAGES[package]) is None:
            return f"apt-get install {package}"
    if item.get_closest_marker("spark") and not any(metadata.distributions(name="pyspark")):
        return "make setup-spark"
    if item.get_closest_marker("root") and os.geteuid() != 0:
        return "be root"
    if item.get_closest_marker("peers") and not os.environ.get("TURNOUT_PEERS"):
        return "set TURNOUT_PEERS to a folder with the binaries of Volcano, koordinator and Kueue"
    if item.get_closest_marker("mindspore") and not os.environ.get("TURNOUT_MINDSPORE"):
        return "pip install mindspore into a virtual environment, and set TURNOUT_MINDSPORE to its python"
    if item.get_closest_marker("gpu") and not any(Path(driver).exists() for driver in GPU_DRIVERS):
        return "a GPU with its driver"
    return None


def leave_out(items) -> None:
    """Mark each test that cannot run here."""
    for item in items:
        if remedy := missing(item):
            item.add_marker(pytest.mark.skip(reason=PREFIX + remedy))


def not_run(skipped) -> Counter[str]:
    """Count the tests that were left out, by what would bring them."""
    reasons = (report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple))
    words = (reason.removeprefix("Skipped: ") for reason in reasons)
    return Counter(word.removeprefix(PREFIX) for word in words if word.startswith(PREFIX))


def pytest_report_header():
    """Say at the start what is missing, before anybody has waited for it."""
    lacks = [package for package, program in PACKAGES.items() if shutil.which(program) is None]
    return f"not run here, for want of packages: apt-get install {' '.join(lacks)}" if lacks else None


def pytest_terminal_summary(terminalreporter):
    """Say at the end how many tests were not run, and what brings them."""
    left_out = not_run(terminalreporter.stats.get("skipped", ()))
    for remedy, count in sorted(left_out.items()):
        terminalreporter.write_line(f"not run: {count} test{'s' * (count != 1)}: {remedy}", yellow=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Fail under CI if a package of Debian or a target of the Makefile was missing: there all of them are installed."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or not os.environ.get("CI"):
        return
    left_out = not_run(terminal.stats.get("skipped", ()))
    lacks = [remedy for remedy in left_out if remedy.startswith(("apt-get ", "make "))]
    if lacks and session.exitstatus == 0:
        session.exitstatus = 1
