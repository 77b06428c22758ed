"""A run that is killed at any point of writing goes on, and its output is that of a run that nobody disturbed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed {seed}") for seed in range(1)])
def test_a_killed_run_goes_on_to_the_same_bytes(seed, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "tests.preprocess.scripts.killed", str(tmp_path), str(seed)],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # numpy's threads, which a fork must not meet
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    points, kills = map(int, ended.stdout.split())
    assert kills == points > 30


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(seed, id=f"seed {seed}") for seed in range(1, 4)])
def test_more_kills(seed, tmp_path):
    test_a_killed_run_goes_on_to_the_same_bytes(seed, tmp_path)
