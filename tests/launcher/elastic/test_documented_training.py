"""The examples of docs/training.md do what the page says, and so does the example script."""

import doctest
import re
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parents[3]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/training.md").read_text(), re.M | re.S)
SHOWN = [block for block in BLOCKS if ">>>" in block]
COPIED = [block for block in BLOCKS if ">>>" not in block]


def test_every_line_that_is_typed_on_the_page_answers_as_it_says():
    run = doctest.DocTestRunner(verbose=False)
    typed = doctest.DocTestParser().get_doctest("\n".join(SHOWN), {}, "training.md", None, 0)
    assert len(typed.examples) > 10
    assert run.run(typed).failed == 0


@pytest.mark.parametrize("block", COPIED, ids=["the loop", "following the world"])
def test_the_code_on_the_page_is_that_of_the_example(block):
    lines = (ROOT / "deploy/examples/train_elastic.py").read_text().splitlines()
    wanted = block.splitlines()
    places = [lines[at : at + len(wanted)] for at in range(len(lines))]
    assert block.strip() in [dedent("\n".join(place)).strip() for place in places]
