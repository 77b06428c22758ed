"""Fixtures that any test may ask for. What they start ends with the test, also when the test is killed."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import settings

from tests.kit import distribution, not_run
from tests.kit.control_planes import control_plane, idle_planes, make_control_plane, module_plane  # noqa: F401  fixtures
from tests.kit.distribution import pytest_xdist_make_scheduler  # noqa: F401  a hook
from tests.kit.leftover_processes import daemons_end_with_their_module  # noqa: F401  a fixture
from tests.kit.not_run import pytest_report_header, pytest_sessionfinish, pytest_terminal_summary  # noqa: F401  hooks

# The API servers of tests live for minutes: with garbage collected less often they take a fifth less of the processors.
os.environ.setdefault("GOGC", "500")

# A shell ignores Ctrl-C for what it runs in the background, and so would all programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The files beside a test may hold the machine for a while: no example has to end in 200 ms, hypothesis' own limit.
# `ci`, of `make test`, tries the same examples each time, so that a run says something about the change and not about
# luck; `usual`, of `make test-slow`, three times as many; `deep` looks for others, thirty times as many
# (tests/kit/hypothesis_examples.py).
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=34)
settings.register_profile("usual", deadline=None, derandomize=True, max_examples=100)
settings.register_profile("deep", deadline=None, max_examples=1_000)
settings.load_profile("usual")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the garbage collector from modules and tests: they stay to the end, and to look through them is slow.

    Some tests collect garbage, each a second long without this; and what forks of a worker share with it stays shared.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items):
    """Put what waits the longest first: side by side, the short ones fill the gaps."""
    items.sort(key=lambda item: distribution.place(item.nodeid))
    not_run.leave_out(items)
