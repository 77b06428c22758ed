"""`turnout topology check`: every fault with its line, and an exit code that a script can trust."""

import subprocess
import sys
from pathlib import Path

import pytest

from turnout.cli.__main__ import main
from turnout.cli.topo_check import data_of

GOOD = "leaf-1 spine-1 10.0.0.1\n  leaf-1   spine-1 10.0.0.2\n\nleaf-2 spine-1 10.0.0.3\n"
CONFIGMAP = """apiVersion: v1
kind: ConfigMap
metadata: {name: node-topology-config}
data:
  topology_config: |
    leaf-1 spine-1 10.0.0.1
    leaf-1 spine-1
"""
YAML = "fabric:\n  spine-1:\n    leaf-1: gpu[001-008]\n    leaf-2: gpu[009-016]\n"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        pytest.param(GOOD, 0, ["3 hosts under 2 leaf switches, 2 tiers"], id="a right text"),
        pytest.param(YAML, 0, ["16 hosts under 2 leaf switches, 2 tiers"], id="our YAML form"),
        pytest.param("", 0, ["empty: a map of no hosts"], id="an empty map is a valid map"),
        pytest.param(
            GOOD + "leaf-2\nleaf-9 spine-1 10.0.0.1\n",
            3,
            ["map:5: ", "map:6: ", "2 faults"],
            id="every fault, with lines",
        ),
        pytest.param(CONFIGMAP, 3, ["map:2: ", "1 fault;"], id="a whole ConfigMap"),
    ],
)
def test_check(text, code, message, tmp_path, capsys):
    (tmp_path / "map").write_text(text)
    assert main(["topology", "check", str(tmp_path / "map")]) == code
    printed = capsys.readouterr()
    output = printed.err if code else printed.out
    assert not (printed.out if code else printed.err)
    for part in message:
        assert part in output


def test_stdin():
    command = [sys.executable, "-m", "turnout.cli", "topology", "check", "-"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, input="leaf-1\n", cwd=root, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("stdin:1: ")


def test_a_file_that_is_not_there_is_a_failure(capsys):
    assert main(["topology", "check", "/nowhere/at/all"]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_a_wrong_value_of_a_tag_makes_a_text_no_configmap():
    assert list(data_of("kind: ConfigMap\nx: !!int ''\n").values()) == ["kind: ConfigMap\nx: !!int ''\n"]
