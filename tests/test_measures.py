"""`hack.lint.measures` counts lines of code and lines of docstrings apart."""

from hack.lint.measures import measures

MODULE = '''"""Waits.

In two paragraphs.
"""

PAUSE_S = 1.0  # seconds

# A comment of its own.
TEXT = """a text
of two lines"""


def wait(
    seconds: float,
) -> None:
    """Wait."""
    print(
        seconds,
    )
'''


def test_docstrings_comments_and_blank_lines_are_not_code(tmp_path):
    (tmp_path / "kube").mkdir()
    (tmp_path / "kube" / "wait.py").write_text(MODULE)
    values = {measure.name: measure.value for measure in measures(tmp_path)}
    assert values["product lines"] == 19
    assert values["product lines of docstrings"] == 5
    assert values["product lines of code"] == 9
