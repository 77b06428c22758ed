"""The training loop that the pages show: it saves each step, and continues after the newest step."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from hack.lint.code_blocks import run_by

BLOCKS = run_by("tests/launcher/checkpoint/test_documented_loop.py::test_the_loop_on_a_page_saves_and_continues")


class Ended(Exception):
    """Ends a loop that goes on for as long as the job trains."""


def life(block, folder):
    """Train three steps as the page shows, and return the numbers of the steps in the state."""
    steps = []

    def train(state):
        if len(steps) == 3:
            raise Ended
        state["done"] += 1
        steps.append(int(state["done"]))

    # Every second step goes to storage: without an agent memory ends with the process.
    text = block.text.replace("/checkpoints/bert", str(folder)).replace("step % 500", "step % 2")
    names = {"fresh": lambda: {"done": torch.zeros(())}, "train": train}
    with suppress(Ended):
        exec(text, names)
    names["checkpoints"].wait()
    names["checkpoints"].close()
    return steps


@pytest.mark.parametrize("block", BLOCKS, ids=[block.place for block in BLOCKS])
def test_the_loop_on_a_page_saves_and_continues(block, tmp_path, monkeypatch):
    monkeypatch.setenv("TURNOUT_MEMORY_DIR", str(tmp_path))
    assert life(block, tmp_path / "checkpoints") == [1, 2, 3]
    assert life(block, tmp_path / "checkpoints") == [3, 4, 5]
