"""Write Prometheus' rules and their runbooks: `python -m hack.codegen.alerts --write`; without --write it compares."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap

from hack.codegen.alerts import launchers, placement, programs, scaling
from hack.codegen.alerts.model import Alert, Group, Record, expand

ROOT = Path(__file__).resolve().parents[3]
RULES, RUNBOOKS = ROOT / "deploy" / "prometheus" / "rules.yaml", ROOT / "docs" / "runbooks.md"
GROUPS = (
    scaling.GROUP,
    placement.EXTENDER,
    placement.NOMINATOR,
    placement.GATES,
    programs.CONTROLLER,
    programs.PROGRAMS,
    launchers.GOODPUT,
    launchers.LAUNCHER,
    programs.PAGE,
)
_MADE = "by `python -m hack.codegen.alerts --write` from its tables: change them there."
_HEAD = f"""# Written {_MADE}
# A group for each program, as Prometheus reads them: name this file under rule_files, or let the chart make a
# PrometheusRule of those that it installs. docs/runbooks.md says for each alert what to do, docs/reference/metrics.md
# what each metric means. The label `cluster` may be missing: then all is one cluster.
groups:
"""
_INTRODUCTION = (
    "One section for each alert of [rules.yaml](../deploy/prometheus/rules.yaml): what it means, how urgent it is, "
    "where to look and what to do. With `docs.baseUrl` the chart adds the address of the section to each alert "
    "(`runbook_url`)."
)
_BUDGETS = (
    "Alerts on a share of bad events (`ratio` in their expression) fire when the budget of a month is spent fast: "
    "14.4 times too fast in the last hour and in the last five minutes, or six times too fast in the last six hours "
    "and in the last half hour. Ten bad events in six hours are the least. So a single error is silent, and so is an "
    "error that is over. Alerts on jobs and gangs have the label `namespace`, those on jobs and queues the label "
    "`queue`: Alertmanager can route them to owners."
)
_PAGE = f"""<!-- Written {_MADE} -->

# Runbooks

{_INTRODUCTION}

{_BUDGETS}
"""


def files() -> Mapping[Path, str]:
    """Return the text of each file that is written here."""
    rules = _HEAD + "".join(line + "\n" for group in GROUPS for line in _group_lines(group))
    return {RULES: rules, RUNBOOKS: _PAGE + "".join(_runbook(each) for group in GROUPS for each in group.alerts)}


def _group_lines(group: Group) -> Iterator[str]:
    """Yield the lines of a group as an element of `groups:` in Prometheus' rules file."""
    yield f"  - name: turnout-{group.name}" + (f"  # {group.about}" if group.about else "")
    if group.interval:
        yield f"    interval: {group.interval}"
    yield "    rules:"
    for record in group.records:
        yield from _record(record)
    for alert in group.alerts:
        yield from _alert(alert)


def _record(record: Record) -> Iterator[str]:
    """Yield the YAML lines of a recording rule."""
    if record.about:
        yield f"      # {record.about}"
    yield f"      - record: {record.name}"
    yield from _expr(record.expr)


def _alert(alert: Alert) -> Iterator[str]:
    """Yield the YAML lines of an alert."""
    yield f"      - alert: {alert.full_name}"
    yield from _expr(alert.expr)
    if alert.wait:
        yield f"        for: {alert.wait}"
    yield "        labels:"
    for name, value in {"severity": alert.severity.value, **alert.labels}.items():
        yield f"          {name}: {_quote(value)}"
    yield "        annotations:"
    yield f"          summary: {_quote(alert.summary)}"
    yield f"          description: {_quote(f'{alert.look} {alert.do}')}"


def _expr(text: str) -> Iterator[str]:
    """Yield the YAML lines of a query, folded if it is long. YAML joins folded lines with spaces."""
    lines = wrap(expand(text), 110, break_long_words=False, break_on_hyphens=False)
    if len(lines) == 1 and ": " not in lines[0] and " #" not in lines[0]:
        yield f"        expr: {lines[0]}"
        return
    yield "        expr: >-"
    yield from (f"          {line}" for line in lines)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if any(each in text for each in "{}:#`*&!|>'\"%@") else text


def _runbook(alert: Alert) -> str:
    """Return the section of an alert in the runbook; "" for a second rule with the same name."""
    if not alert.has_runbook:
        return ""
    urgency = f"{alert.severity.word}{f': {_lower(alert.urgency)}' if alert.urgency else '.'}"
    rows = {"meaning": alert.meaning, "urgency": urgency, "look": alert.look, "do": alert.do}
    lines = ["", f"## {alert.full_name}", "", "| | |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {name} | {text} |" for name, text in rows.items())]) + "\n"


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the files with the code, or with --write write them. Return 1 if a file is stale, else 0.

    argv: None for that of this process.
    """
    differs = False
    for path, text in files().items():
        if "--write" in (sys.argv[1:] if argv is None else argv):
            path.write_text(text)
        elif path.read_text() != text:
            print(f"{path.relative_to(ROOT)} differs; run: python -m hack.codegen.alerts --write")
            differs = True
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
