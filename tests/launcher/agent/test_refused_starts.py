"""turnout-run with what it cannot use: a message and the exit code of a wrong command line, without a traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from turnout.launcher.model import Exit

ROOT = Path(__file__).resolve().parents[3]


def run(tmp_path, env, *options):
    """Run a script that does nothing; return the exit code and what is on stderr."""
    script = tmp_path / "train.py"
    script.write_text("pass\n")
    argv = [sys.executable, "-m", "turnout.launcher", "--standalone", "--nproc-per-node=1", *options, str(script)]
    ended = subprocess.run(
        argv, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    ("env", "why"),
    [
        pytest.param({"POD_NAME": "a" * 254}, "a name of 1 to 253 characters", id="a name that no pod has"),
        pytest.param({"LOGLEVEL": "loud"}, "LOGLEVEL is 'loud'", id="a level that logging does not know"),
    ],
)
def test_what_cannot_be_used_is_told_without_a_traceback(tmp_path, env, why):
    code, stderr = run(tmp_path, env)
    assert (code, "Traceback" in stderr) == (Exit.USAGE, False), stderr
    assert stderr.startswith("turnout-run: ")
    assert why in stderr


def test_the_longest_name_of_a_pod_is_good_enough(tmp_path):
    code, stderr = run(tmp_path, {"POD_NAME": "a" * 253})
    assert code == Exit.DONE, stderr
