"""The examples of docs/training.md do what the page says, and so does the example script."""

import doctest
from pathlib import Path
from textwrap import dedent

import pytest

from hack.lint.code_blocks import run_by

ROOT = Path(__file__).resolve().parents[3]
SHOWN = run_by(
    "tests/launcher/elastic/test_documented_training.py::test_every_line_that_is_typed_on_the_page_answers_as_it_says"
)
COPIED = run_by("tests/launcher/elastic/test_documented_training.py::test_the_code_on_the_page_is_that_of_the_example")


def test_every_line_that_is_typed_on_the_page_answers_as_it_says():
    run = doctest.DocTestRunner(verbose=False)
    typed = doctest.DocTestParser().get_doctest("\n".join(block.text for block in SHOWN), {}, "training.md", None, 0)
    assert len(typed.examples) > 10
    assert run.run(typed).failed == 0


@pytest.mark.parametrize("block", COPIED, ids=["the loop", "following the world"])
def test_the_code_on_the_page_is_that_of_the_example(block):
    lines = (ROOT / "deploy/examples/train_elastic.py").read_text().splitlines()
    page_lines = block.text.splitlines()
    places = [lines[at : at + len(page_lines)] for at in range(len(lines))]
    assert block.text.strip() in [dedent("\n".join(place)).strip() for place in places]
