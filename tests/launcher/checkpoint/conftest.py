"""Checkpointers of this process, each with memory of its own and a daemon that ends with the test."""

import os
import signal
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.launcher.agent.crew import pids_of
from turnout.launcher import linux
from turnout.launcher.checkpoint.arena.arena_files import ALLOCATOR
from turnout.launcher.checkpoint.engine.checkpointer import Checkpointer


@pytest.fixture
def memory():
    with tempfile.TemporaryDirectory(prefix="turnout-test-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.fixture
def daemons(memory):
    """Lists the daemons of this test's memory: whatever other tests have left says nothing about it."""
    return lambda: pids_of(f"--folder {memory} --run ")


@pytest.fixture
def stopped(memory, daemons):
    """Stops this test's daemon while the block runs, at a moment in which it makes no pages.

    It makes those of the next save in the background, and whoever saves waits until they are there.
    """

    def makes_pages():
        for path in memory.glob("*.arena"):
            file = os.open(path, os.O_RDWR)
            try:
                if not linux.try_lock(file, ALLOCATOR, exclusive=True):
                    return True
            finally:
                os.close(file)
        return False

    @contextmanager
    def stop():
        (pid,) = daemons()
        while True:
            os.kill(pid, signal.SIGSTOP)
            while Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "T":
                time.sleep(0.001)
            if not makes_pages():
                break
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    return stop


@pytest.fixture
def environ(memory):
    """Give the environment of a process that no launcher has started."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TURNOUT_")}
    return variables | {"TURNOUT_MEMORY_DIR": str(memory)}


@pytest.fixture
def make(environ):
    """A checkpointer for a folder; with keywords of its own, and variables of the environment in capitals."""
    checkpointers = []

    def maker(folder, **options):
        variables = {name: options.pop(name) for name in list(options) if name.isupper()}
        checkpointers.append(Checkpointer(folder, environ=environ | variables, **options))
        return checkpointers[-1]

    yield maker
    for each in checkpointers:
        each.close()
