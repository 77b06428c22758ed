"""Training commands and scripts of the docs, run as they stand, in folders of the test."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hack.lint.code_blocks import run_by
from tests.kit.saved_checkpoints import newest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
# Around the block of the page: a state that counts its steps, and tells every thousandth.
SCRIPT = """\
import torch


def fresh():
    return {"steps": torch.zeros(1)}


def train(state):
    state["steps"] += 1
    if state["steps"] % 1000 == 0:
        print("a thousand steps", flush=True)


"""


def environment(folder):
    memory = folder / "memory"
    memory.mkdir(exist_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {"PATH": path, "TURNOUT_MEMORY_DIR": str(memory), "OMP_NUM_THREADS": "1"}


def typed(line, folder):
    """Type one line of a page, whose /tmp is the test's folder. Returns the exit code and what it printed."""
    argv = ["sh", "-euc", line.replace(" /tmp/", f" {folder}/")]
    done = subprocess.run(
        argv, cwd=ROOT, env=environment(folder), capture_output=True, text=True, timeout=200, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_the_two_examples_train_to_their_end(tmp_path):
    (block,) = run_by("tests/launcher/elastic/test_pages.py::test_the_two_examples_train_to_their_end")
    for line in block.text.splitlines():
        code, printed = typed(line, tmp_path)
        assert code == 0, printed
        assert "agent_ended exit=0 reason=all_done" in printed
    for folder in ("run", "run-fsdp"):
        assert (tmp_path / folder / "step-0000000064").is_dir(), "four epochs of 500 samples in batches of 32"


def test_the_example_goes_on_in_a_larger_world(tmp_path):
    longer, faulty = run_by("tests/launcher/elastic/test_pages.py::test_the_example_goes_on_in_a_larger_world")
    begun, gone_on = (typed(line, tmp_path) for line in longer.text.splitlines())
    assert begun[0] == gone_on[0] == 0, begun[1] + gone_on[1]
    assert "ends at epoch 2, " in begun[1]
    assert "ends at epoch 4, " in gone_on[1]
    (tmp_path / "run.pt").unlink()
    died, resumed = (typed(line, tmp_path) for line in faulty.text.splitlines())
    assert died[0] != 0
    assert resumed[0] == 0, resumed[1]
    assert re.search(r"\bstep 28\b", resumed[1]), "the last save before step 30, every seven steps"


@pytest.mark.parametrize(
    "block",
    run_by("tests/launcher/elastic/test_pages.py::test_the_script_of_the_page_saves_when_told_to_end_and_goes_on"),
    ids=lambda block: block.place,
)
def test_the_script_of_the_page_saves_when_told_to_end_and_goes_on(block, tmp_path):
    folder = tmp_path / "bert"
    script = tmp_path / "train.py"
    script.write_text(SCRIPT + block.text.replace("/checkpoints/bert", str(folder)))
    argv = [sys.executable, "-m", "turnout.launcher", "--standalone", "--nproc-per-node", "1", str(script)]
    ends = []
    for _ in range(2):
        with subprocess.Popen(argv, cwd=ROOT, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as agent:
            assert any("a thousand steps" in line for line in agent.stdout)
            agent.send_signal(signal.SIGTERM)
            agent.communicate(timeout=60)
        assert agent.returncode == 143
        loaded = newest(folder)
        assert loaded.state["steps"].item() == loaded.step, "no step is lost and none is made twice"
        ends.append(loaded.step)
    assert 1000 <= ends[0] < ends[1]
