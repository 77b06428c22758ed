"""docs/launcher.md tells every word that an agent logs, every reason and every exit code, and no others."""

import ast
import re
from pathlib import Path

from hack.lint.code_blocks import run_by
from tests.e2e.launcher.test_controllers import WRAPPED
from turnout.launcher.model import Exit, Reason

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "launcher.md").read_text()
SPEAKERS = {"log_event", "_log_event", "_log_rarely", "info", "warning"}


def section(heading):
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)[1]


def first_cells(text):
    return [re.findall(r"`?([\w]+)`?", cell) for cell in re.findall(r"^\| ([^|]+) \|", text, re.M)][2:]


def spoken():
    """The constant first words of whatever logs."""
    for file in (ROOT / "launcher").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            word = node.args[0]
            if name in SPEAKERS and isinstance(word, ast.Constant) and isinstance(word.value, str):
                yield word.value.split()[0]


def test_every_word_of_the_log_is_told_and_every_told_word_is_said():
    words_of_page = {word for cell in first_cells(section("The log")) for word in cell}
    assert words_of_page == {word for word in spoken() if re.fullmatch(r"[a-z]+(_[a-z]+)*", word)}


def test_every_reason_is_told():
    (line,) = re.findall(r"^A reason is one of: (.*)$", PAGE, re.M)
    assert re.findall(r"`(\w+)`", line) == [reason.value for reason in Reason]


def test_every_exit_code_is_told():
    assert [int(cell[0]) for cell in first_cells(section("Exit codes"))] == [code.value for code in Exit]


def test_the_shell_that_is_shown_is_the_one_that_was_tried():
    """The example is tried by tests/e2e/launcher, under a real training-operator."""
    (block,) = run_by(
        "tests/launcher/cli/test_documented_options.py::test_the_shell_that_is_shown_is_the_one_that_was_tried"
    )
    assert block.text.rstrip("\n") == WRAPPED.format(run="turnout-run train.py")
