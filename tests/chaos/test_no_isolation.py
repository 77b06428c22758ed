"""Without isolation of pods, chaos runs and the demo end at once and say what to do."""

import os
import subprocess
import sys

import pytest

# After setuid() a process may not write the map of its user namespace, so the namespace is of no use to it.
AS_NOBODY = """
import os, sys
from hack.chaos{package}.__main__ import main
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
sys.exit(main({argv}))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("package", "argv"),
    [
        pytest.param(".demo", ["--plain"], id="demo-train"),
        pytest.param("", ["--kinds", "job", "--faults", "1", "--folder", "/tmp/turnout-nobody"], id="a chaos run"),
    ],
)
def test_the_error_names_the_cause_and_the_next_step(package, argv):
    code = AS_NOBODY.format(package=package, argv=argv)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "allow user namespaces" in ended.stderr
    assert "Traceback" not in ended.stderr
