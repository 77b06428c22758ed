"""Each alert has a runbook: what it means, how urgent it is, where to look and what to do."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy/prometheus/rules.yaml").read_text())["groups"]
ALERTS = [rule["alert"] for group in RULES for rule in group["rules"] if "alert" in rule]
PAGE = (ROOT / "docs/runbooks.md").read_text()


def sections():
    """Return the text of each section by its heading."""
    parts = re.split(r"^## (.+)\n", PAGE, flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_page_has_a_section_for_each_alert_and_no_other():
    assert sorted(sections()) == sorted(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_a_runbook_answers_four_questions(alert):
    rows = dict(re.findall(r"^\| (\w+) \| (.+) \|$", sections()[alert], re.M))
    assert set(rows) == {"meaning", "urgency", "look", "do"}
    assert rows["urgency"].startswith(("Now", "Today", "This week"))
