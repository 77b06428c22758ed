"""The oldest versions that setup.cfg lets a trainer have. All other tests run on the newest, those of launcher.txt."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[5]


def floor(*command, **environ):
    """Run this with the Python of the oldest versions, which are fetched once."""
    return subprocess.run(
        [sys.executable, "-m", "hack.codegen.minimum_versions", *map(str, command)],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)} | environ, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_saves_of_every_kind_on_the_oldest_versions(tmp_path):
    done = floor(
        "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", "--basetemp", tmp_path / "floor",
        "tests/launcher/checkpoint/engine",
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-6_000:]


@pytest.mark.long
def test_where_they_cannot_be_fetched_that_is_said_and_nothing_is_kept(tmp_path):
    done = floor(
        "-c", "print('ran')", XDG_CACHE_HOME=str(tmp_path), PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0",
        PIP_FIND_LINKS="", PIP_EXTRA_INDEX_URL="",
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "the oldest versions (launcher-floor.txt) cannot be installed" in done.stderr
    assert "give pip an index that has them" in done.stderr
    assert list((tmp_path / "turnout" / "launcher-floor").iterdir()) == []
