"""Each benchmark really runs, as a person starts it, at a size too small to measure anything."""

import json
import os
import subprocess
import sys

import pytest

from hack.bench.__main__ import names_of_benchmarks
from hack.bench.support.outcome import MISSED
from hack.chaos.testbed.manifests import ROOT


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("name", names_of_benchmarks())
def test_a_benchmark_runs_at_its_smallest_size_and_prints_its_figures(name):
    command = [sys.executable, "-m", "hack.bench", name, "--smallest"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=env)
    print(run.stdout, run.stderr)
    assert run.returncode in (0, MISSED)
    printed = json.loads(run.stdout.splitlines()[-1])
    assert printed["bench"] == name
    assert printed["figures"]
    assert printed["targets"]
