"""A script that runs in a copy of a checkout: tests once to see which lines they touch, or again and again on mutants.

child.py see SEEN.json SOURCE ... -- TEST ...    writes what touched what
child.py try SEEN.json                           a line of JSON in, a run in a fork, a line of JSON out

What tests import from elsewhere is imported before the forks. No module of the project is: each fork reads its own.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import sysconfig
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import coverage
import pytest

PYTEST = (
    "-x",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:faulthandler",
    "-m",
    "not slow and not long and not real",
)
# What has been imported before the fork is not rewritten by pytest: that matters to no test.
FORKED = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
COLLECT_S = 60


class CoveragePlugin:
    """Notes for each test how long it takes, and for each line the tests that run it.

    What runs outside a test, or in a fixture that several tests share, is noted as run by nobody in particular.
    """

    def __init__(self, lines: coverage.Coverage) -> None:
        self.seconds: dict[str, float] = {}
        self._lines = lines
        self._test = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        _forget_answers()
        self._test = item.nodeid
        self.seconds[item.nodeid] = 0
        self._lines.switch_context(self._test)
        try:
            return (yield)
        finally:
            self._lines.switch_context("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function":
            return (yield)
        self._lines.switch_context("")
        try:
            return (yield)
        finally:
            self._lines.switch_context(self._test)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration


def _forget_answers() -> None:
    """Empty the caches of all functions: one that answers from its cache would run no line."""
    for module in [module for module in list(sys.modules.values()) if _of(module, Path.cwd())]:
        for value in list(vars(module).values()):
            if callable(clear := getattr(value, "cache_clear", None)):
                clear()


def _of(module: object, folder: Path) -> bool:
    return str(getattr(module, "__file__", None) or "").startswith(f"{folder}{os.sep}")


class Chosen:
    """Runs the tests asked for, in the order asked, each within its time. One that was never seen runs first."""

    def __init__(self, within_s: dict[str, float], leave: Sequence[str]) -> None:
        self._within_s = within_s
        self._order = {test: place for place, test in enumerate(within_s)}
        self._leave = frozenset(leave)

    def pytest_sessionstart(self) -> None:
        """Try the same examples each time, and end at the first that fails: nobody reads it, so none is shrunk."""
        from hypothesis import HealthCheck, Phase, settings

        settings.register_profile(
            "mutants",
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.explicit, Phase.generate),
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow],
        )
        settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid not in self._leave),
            key=lambda item: self._order.get(item.nodeid, -1),
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        within_s = self._within_s.get(item.nodeid, COLLECT_S)
        faulthandler.dump_traceback_later(within_s, exit=True)


def see(seen: Path, sources: Sequence[str], tests: Sequence[str]) -> int:
    """Run the tests under coverage and write what was seen. Returns pytest's exit status."""
    include = [
        str(Path(source).absolute() / "*" if Path(source).is_dir() else Path(source).absolute()) for source in sources
    ]
    lines = coverage.Coverage(data_file=None, config_file=False, include=include)
    plugin = CoveragePlugin(lines)
    lines.start()
    status = int(pytest.main([*PYTEST, *tests], plugins=[plugin]))
    lines.stop()
    data = lines.get_data()
    places = {test: place for place, test in enumerate(plugin.seconds)}
    by_file = {
        Path(file).relative_to(Path.cwd()).as_posix(): {
            # -1: nobody in particular
            line: [places.get(test, -1) for test in tests]
            for line, tests in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }
    seen.write_text(json.dumps({"seconds": plugin.seconds, "lines": by_file, "modules": list(_foreign())}))
    return status


def _foreign() -> Iterator[str]:
    """Name the modules that are imported and installed, in the order in which they were."""
    installed = Path(sysconfig.get_path("purelib"))
    for name, module in list(sys.modules.items()):
        if _of(module, installed) and getattr(getattr(module, "__spec__", None), "name", None) == name:
            yield name


def serve(seen: Path) -> int:
    """Import what is foreign, then run what each line of the input asks for until there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in json.loads(seen.read_text())["modules"]:
            with suppress(Exception):
                importlib.import_module(name)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _try(asked["files"], Chosen(asked["within_s"], asked["leave"]))
        _, status = os.waitpid(pid, 0)
        with suppress(ProcessLookupError):
            os.killpg(pid, 9)
        print(json.dumps({"status": os.waitstatus_to_exitcode(status)}), flush=True)
    return 0


def _try(files: Sequence[str], plugin: Chosen) -> None:
    """Run in a fork and end it: it has a group of its own, so that all it started ends with it."""
    status = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nothing, stream)
        faulthandler.dump_traceback_later(COLLECT_S, exit=True)
        status = int(pytest.main([*PYTEST, *FORKED, *files], plugins=[plugin]))
    finally:
        os._exit(status)


def main(argv: Sequence[str]) -> int:
    """Do as the first word says."""
    sys.path.insert(0, str(Path.cwd()))
    if argv[0] == "try":
        return serve(Path(argv[1]))
    cut = argv.index("--")
    return see(Path(argv[1]), argv[2:cut], argv[cut + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
