"""A script of scripts/ is run once for all tests of a module: large libraries take seconds to import."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def runs():
    """Runs a script; gives its runs by name, each with what it saw or how it ended."""
    with tempfile.TemporaryDirectory(prefix="turnout-test-", dir="/dev/shm") as home:

        def run(script):
            environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNOUT_")}
            done = subprocess.run(
                [sys.executable, str(Path(__file__).parent / "scripts" / script), home],
                env=environment | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
                capture_output=True, text=True, timeout=200, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-4000:]
            lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
            return {line.pop("name"): line for line in lines} | {"home": Path(home), "errors": done.stderr[-4000:]}

        yield run
