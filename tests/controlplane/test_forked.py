"""A program of ours in a fork does what its users' own start of it does, and ends with whom it belongs to."""

import os
import re
import select
import signal
import sys

import pytest

from hack.controlplane.children import Children
from hack.controlplane.forked import module_of
from hack.controlplane.plane import free_ports
from tests.kit.wait import until
from tests.kube.world import kubeconfig

WITHIN_S = 60.0
TIME = re.compile(r'"time": "[^"]*"')


@pytest.fixture
def start(tmp_path):
    """Start a program in a fork or as its users do; give what holds it."""
    open_files = []

    def started(fork, *words):
        open_files.append(children := Children(tmp_path, fork=fork))
        children.start("program", [sys.executable, "-m", *words])
        return children

    yield started
    for children in open_files:
        children.close()


def ended(children):
    """Wait until the program has ended; its exit status and what it wrote."""
    until(lambda: children.state("program")[1] is not None)
    return children.state("program")[1], TIME.sub("", children.log("program"))


@pytest.mark.slow
@pytest.mark.parametrize(("words", "status"), [
    pytest.param(["turnout.scheduler_ext", "--version"], 0, id="its version"),
    pytest.param(["turnout.controllers", "--no-such-option"], 2, id="an option that it has not"),
    pytest.param(["turnout.scheduler_ext.nominator", "--kubeconfig=/nowhere"], 1, id="a kubeconfig that is not there"),
])  # fmt: skip
def test_a_fork_writes_and_ends_as_the_program_itself(start, words, status):
    forked, own = ended(start(True, *words)), ended(start(False, *words))
    assert forked[0] == own[0] == status
    assert forked[1].splitlines()[-1:] == own[1].splitlines()[-1:]


def test_a_module_that_cannot_be_imported_is_told_in_its_fork_alone(start):
    children = start(True, "turnout.no_such_module")
    status, log = ended(children)
    assert status == 1
    assert "No module named turnout.no_such_module" in log
    children.start("program", [sys.executable, "-m", "turnout.scheduler_ext", "--version"])
    assert ended(children)[0] == 0


def running(start, tmp_path):
    """A nominator in a fork that seeks an API server which is not there."""
    (port, probes) = free_ports(2)
    config = kubeconfig(tmp_path, f"http://127.0.0.1:{port}")
    bind = f"--metrics-bind=127.0.0.1:{probes}"
    children = start(True, "turnout.scheduler_ext.nominator", f"--kubeconfig={config}", bind)
    until(lambda: children.log("program"))
    return children


def test_a_fork_that_is_asked_to_end_does_so_in_its_own_order(start, tmp_path):
    children = running(start, tmp_path)
    children.signal("program", signal.SIGTERM)
    assert ended(children)[0] == 0


@pytest.mark.parametrize("victim", ["program", "supervisor"])
def test_a_fork_is_gone_once_it_or_its_supervisor_is_killed(start, tmp_path, victim):
    children = running(start, tmp_path)
    pid = children.state("program")[0]
    handle = os.pidfd_open(pid)
    os.kill(pid if victim == "program" else children.pid, signal.SIGKILL)
    assert select.select([handle], [], [], WITHIN_S)[0] == [handle]
    os.close(handle)
    if victim == "program":
        assert ended(children)[0] == -signal.SIGKILL


@pytest.mark.parametrize(("argv", "module"), [
    pytest.param([sys.executable, "-m", "turnout.autoscaler", "--x"], "turnout.autoscaler", id="ours"),
    pytest.param([sys.executable, "-m", "http.server"], None, id="a module of somebody else"),
    pytest.param([sys.executable, "-W", "error", "-m", "turnout.autoscaler"], None, id="options of Python's own"),
    pytest.param(["/usr/bin/other-python", "-m", "turnout.autoscaler"], None, id="another Python"),
    pytest.param([sys.executable, "turnout.py"], None, id="a script"),
    pytest.param(["kwok"], None, id="no Python"),
])  # fmt: skip
def test_only_a_module_of_ours_under_this_python_is_forked(argv, module):
    assert module_of(argv) == module
