"""Jobs under seeded faults on the embedded local cluster: real agents, real processes, real torch over gloo."""

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


def test_no_law_is_broken_under_six_faults(tmp_path):
    last = play(tmp_path, "--seed=1", "--faults=6", within_s=600)
    assert last["broken"] == 0
    assert last["struck"] >= 5, "hardly anybody was hit"
    assert list(tmp_path.iterdir()) == [], "a history that obeys the laws is not kept"


@pytest.mark.long
@pytest.mark.timeout(5_500)
def test_no_law_is_broken_under_ten_times_twenty_faults(tmp_path):
    last = play(tmp_path, "--seed=1", "--seeds=10", "--faults=20", within_s=5_400)
    assert last["broken"] == 0
    assert last["struck"] >= 180
