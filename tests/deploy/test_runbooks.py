"""Each alert has a runbook: what it means, how urgent it is, where to look and what to do."""

import re
from pathlib import Path

import pytest
import yaml

from hack.codegen.alerts import __main__ as generator

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy/prometheus/rules.yaml").read_text())["groups"]
ALERTS = [rule["alert"] for group in RULES for rule in group["rules"] if "alert" in rule]
PAGE = (ROOT / "docs/runbooks.md").read_text()


def sections():
    """Return the text of each section by its heading."""
    parts = re.split(r"^## (.+)\n", PAGE, flags=re.M)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_rules_and_runbooks_are_made_from_their_tables():
    assert generator.main([]) == 0


def test_the_page_has_a_section_for_each_alert_and_no_other():
    assert sorted(sections()) == sorted(set(ALERTS))


@pytest.mark.parametrize("alert", sorted(set(ALERTS)))
def test_a_runbook_answers_four_questions(alert):
    rows = dict(re.findall(r"^\| (\w+) \| (.+) \|$", sections()[alert], re.M))
    assert set(rows) == {"meaning", "urgency", "look", "do"}
    assert rows["urgency"].startswith(("Now", "Today", "This week"))


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, id=f"{rule['alert']}, {rule['labels']['severity']}")
        for group in RULES
        for rule in group["rules"]
        if "alert" in rule
    ],
)
def test_an_alert_names_its_object_and_its_owner(rule):
    labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"]))))
    assert labels <= grouped | set(re.findall(r"\w+", " ".join(recorded_labels(rule["expr"]))))
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    for owner in ("job_namespace", "gang_namespace"):
        if owner in grouped:
            assert rule["labels"]["namespace"] == f"{{{{ $labels.{owner} }}}}"
            assert labels >= {owner, owner.replace("namespace", "name")}


def recorded_labels(expr):
    """Yield the label lists of the rules that record the series of a query."""
    for group in RULES:
        for rule in group["rules"]:
            if rule.get("record", " ") in expr:
                yield from re.findall(r"by \(([^)]*)\)", rule["expr"])
