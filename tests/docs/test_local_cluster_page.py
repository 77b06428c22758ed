"""docs/local-cluster.md: its commands, typed as they stand."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hack.controlplane.tools import cache
from hack.lint.code_blocks import run_by

pytestmark = pytest.mark.real  # for kubectl


def test_the_page_starts_and_ends_a_local_cluster(tmp_path):
    (block,) = run_by("tests/docs/test_local_cluster_page.py::test_the_page_starts_and_ends_a_local_cluster")
    path = os.pathsep.join([str(Path(sys.executable).parent), str(cache.binary("kubectl").parent), os.environ["PATH"]])
    done = subprocess.run(
        ["sh", "-euc", block.text],
        env={"HOME": str(tmp_path), "PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "16 nodes, 8 GPUs each" in done.stdout
    assert len(re.findall(r"^gpu\S+ +Ready ", done.stdout, re.M)) == 16, done.stdout
    assert "16 of 16 ready" in done.stdout
    assert done.stdout.rstrip().endswith("the local cluster is gone")
