"""The command `python -m hack.controlplane`, from the outside."""

import json
import signal
import subprocess
import sys

import pytest

from hack.controlplane.__main__ import main
from hack.controlplane.tools import cache


def test_a_part_that_is_not_built_is_told_in_one_line_with_the_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TURNOUT_CONTROLPLANE_CACHE", str(tmp_path))
    assert main(["path", "kwok"]) == 1
    assert capsys.readouterr().err.endswith("Type: make controlplane\n")


@pytest.mark.real
def test_path_prints_where_a_program_lies(capsys):
    assert main(["path", "kubectl"]) == 0
    assert capsys.readouterr().out.strip() == str(cache.binary("kubectl"))


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_up_serves_kubectl_until_it_is_told_to_end(end, control_plane):
    # control_plane is asked for so that missing binaries are told in the usual way.
    command = [sys.executable, "-m", "hack.controlplane", "up", "--nodes", "4", "--gpus", "2", "--leaves", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as up:
        try:
            lines = []
            while not lines or not lines[-1].startswith("export KUBECONFIG="):
                lines.append(up.stdout.readline())
                assert lines[-1], up.stderr.read()
            kubeconfig = lines[-1].strip().partition("=")[2]
            shown = subprocess.run(
                [cache.binary("kubectl"), "get", "nodes", "-o", "json", "--kubeconfig", kubeconfig],
                capture_output=True,
                text=True,
                timeout=60,
            )
            nodes = json.loads(shown.stdout)["items"]
            assert [node["status"]["allocatable"]["nvidia.com/gpu"] for node in nodes] == ["2"] * 4
            assert len({node["metadata"]["labels"]["turnout.dev/test-leaf"] for node in nodes}) == 2
            up.send_signal(end)
            assert up.wait(60) == 0
            assert "stopped" in up.stderr.read()
        finally:
            up.kill()
