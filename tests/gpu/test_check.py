"""The GPU check: what its summary says, what a hanging stage costs, and all of it with the CPU as the device."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from hack.gpu.__main__ import STAGES, Stage, main
from hack.gpu.figures import Figure, StageEnd, summary

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("figure", "device", "row"),
    [
        pytest.param(Figure("restart-ours", "to_next_step_s", 2.5), "cuda", "| 2.5 | yes |", id="a target that is met"),
        pytest.param(Figure("restart-ours", "to_next_step_s", 3.5), "cuda", "| 3.5 | no |", id="one that is missed"),
        pytest.param(Figure("ours-overlapped", "rate_beside_copy", 0.96), "cuda", "| 0.96 | no |", id="a lower limit"),
        pytest.param(
            Figure("restart-ours", "to_next_step_s", 2.5), "cpu", "| 2.5 | not on a GPU |", id="a CPU meets no target"
        ),
        pytest.param(Figure("card", "card", "a | b"), "cuda", "| card | card | a / b |", id="words with a bar"),
    ],
)
def test_what_the_summary_says_of_a_figure(figure, device, row):
    assert row in summary([figure], [], device)


def test_a_target_without_a_figure_was_not_measured():
    assert summary([], [StageEnd("card", "failed", 1.0, "no driver")], "cuda").count("| not measured |") == 7


def test_a_hanging_stage_costs_its_limit_and_no_figure_of_the_others(tmp_path):
    stages = [
        Stage("hangs", "tests.gpu.hanging_stage", 3),
        Stage("missing", "tests.gpu.no_such_stage", 20),
        Stage("bandwidth", "hack.gpu.stages.bandwidth", 60),
    ]
    assert main(["--device", "cpu", "--out", str(tmp_path)], stages) == 1
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {line["stage"]: line["status"] for line in lines if "status" in line} == {
        "hangs": "timed out",
        "missing": "failed",
        "bandwidth": "ok",
    }
    assert {line["name"] for line in lines if "name" in line} >= {"before_it_hangs", "pageable_to_host"}
    (child,) = (line["value"] for line in lines if line.get("name") == "child")
    assert not Path(f"/proc/{child}").exists(), "what it started in a session of its own is killed too"


def test_an_unknown_stage_is_refused_with_the_names_of_all(capsys):
    assert main(["--only", "card,cards"]) == 2
    assert "no stage cards; there are card, bandwidth" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_stage_ends_well_with_only_torch_and_the_bundle(tmp_path):
    command = [ROOT / "hack" / "gpu" / "check.sh", "--cpu", "--out", tmp_path]
    before = {*Path("/dev/shm").glob("gpu-check-*"), *Path(tempfile.gettempdir()).glob("gpu-check-*")}
    ended = subprocess.run(
        command, env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert {line["stage"] for line in lines if line.get("status") == "ok"} == {stage.name for stage in STAGES}
    figures = {(line["stage"], line["name"]) for line in lines if "name" in line}
    assert figures >= {("restore", "restore_s"), ("restart-ours", "to_next_step_s"), ("ours-overlapped", "stall_s")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.jsonl", "stages.log", "summary.md"]
    assert {*Path("/dev/shm").glob("gpu-check-*"), *Path(tempfile.gettempdir()).glob("gpu-check-*")} <= before
