"""The fourteen threats of the facts, and the ports, have their rows in SECURITY.md, with tests that are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECURITY = (ROOT / "SECURITY.md").read_text()
FACTS = (ROOT / "docs/facts/reliability.md").read_text()


def section(text, head):
    """The text of a section, up to the next head."""
    return re.split(r"^#+ ", text.partition(f"{head}\n")[2], flags=re.M)[0]


def rows(text):
    """The cells of a table's rows."""
    found = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line[:2] == "| "]
    return [each for each in found[1:] if not set(each[0]) <= set("-|")]


def cited(cell):
    """The tests that a cell names."""
    return re.findall(r"`(tests/[^`]+\.py)::(\w+)`", cell)


THREATS = [row[0].partition(": ")[0].partition(" (")[0] for row in rows(section(FACTS, "## 2. Threats"))]
HELD = {row[0]: row[-1] for row in rows(section(SECURITY, "### The fourteen threats to such systems"))}
PORTS = {row[0]: row[-1] for row in rows(section(SECURITY, "## Ports"))}


def test_the_facts_name_fourteen_threats():
    assert len(THREATS) == 14


@pytest.mark.parametrize("threat", THREATS)
def test_a_threat_has_a_row_with_tests_that_are_there(threat):
    tests = cited(HELD[threat])
    assert tests
    for file, name in tests:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.M), f"{file}::{name}"


@pytest.mark.parametrize("who", PORTS)
def test_what_stands_at_a_port_is_held_by_a_test(who):
    assert cited(PORTS[who])
