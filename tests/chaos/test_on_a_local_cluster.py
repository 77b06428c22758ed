"""Kinds of faults under seeds: jobs on the local cluster, with real agents and torch, and scenarios beside them."""

import json
import os
import subprocess
import sys

import pytest

from hack.chaos.testbed.manifests import ROOT


def play(folder, *flags, within_s):
    """The last line of a run; what it has printed is shown where it failed."""
    command = [sys.executable, "-m", "hack.chaos", "--folder", str(folder), *flags]
    run = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within_s,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    print(run.stdout, run.stderr)
    assert run.returncode == 0
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.long
def test_no_law_is_broken_under_six_faults(tmp_path):
    last = play(tmp_path, "--seed=1", "--faults=6", "--kinds=job", within_s=600)
    assert last["broken"] == 0
    assert last["struck"] >= 5, "hardly anybody was hit"
    assert list(tmp_path.iterdir()) == [], "a history that obeys the laws is not kept"


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.debian("iproute2")
@pytest.mark.debian("util-linux")
def test_no_law_is_broken_by_cuts_of_the_network(tmp_path):
    last = play(tmp_path, "--seed=1", "--faults=0", "--kinds=partition", within_s=300)
    assert (last["kinds_struck"], last["never_struck"], last["broken"]) == (1, [], 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
@pytest.mark.root
@pytest.mark.debian("iproute2")
@pytest.mark.debian("util-linux")
@pytest.mark.timeout(7_300)
def test_no_law_is_broken_by_any_kind_under_ten_seeds(tmp_path):
    """Each seed is twenty faults of a training job, and a strike of every kind that has a scenario."""
    last = play(tmp_path, "--seed=1", "--seeds=10", "--faults=20", within_s=7_200)
    assert (last["kinds_struck"], last["never_struck"], last["broken"]) == (9, [], 0)
    assert last["struck"] >= 180
