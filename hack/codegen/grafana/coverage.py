"""Check that every exported metric is on a board, and that every series in a query is exported or recorded.

The metrics are those of the programs' registries (reference.py), the recorded series those of deploy/prometheus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import yaml

from hack.codegen import reference
from hack.codegen.grafana.render import ANNOTATIONS

RULES = reference.ROOT / "deploy" / "prometheus" / "rules.yaml"
MAX_EXCEPTIONS = 10
# Metrics that are on no board, and why.
EXCEPTIONS = {
    "turnout_launcher_round": "a number without meaning of its own; rounds by cause are on the boards",
    "turnout_launcher_group_rank": "the place of one pod, which its log and the page show",
}
_SERIES = re.compile(r"\bturnout[_:][a-zA-Z0-9_:]+")


def series(exprs: Iterable[str]) -> set[str]:
    """Return the names of all series in the queries `exprs`."""
    return {name for expr in exprs for name in _SERIES.findall(expr)}


def exported_series() -> Mapping[str, str]:
    """Return each series that a program exports, and the metric of which it is a part: series -> metric."""
    found: dict[str, str] = {}
    for registry in reference.registries().values():
        for metric, _ in reference.families(registry):
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            parts = ("_bucket", "_sum", "_count") if metric.type == "histogram" else ("",)
            found |= {f"{name}{part}": name for part in parts}
    return found


def recorded_series() -> Mapping[str, str]:
    """Return each recorded series with its query."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["record"]: rule["expr"] for group in groups for rule in group["rules"] if "record" in rule}


def faults(exprs: Iterable[str]) -> Iterator[str]:
    """Yield a sentence for each metric on no board, each queried series that nothing exports or records, and each wrong
    exception.

    exprs: the queries of all boards.
    """
    metric_of, rules = exported_series(), recorded_series()
    on_boards = series([*exprs, *(query for _, _, query, *_ in ANNOTATIONS)])
    while more := series(rules[name] for name in on_boards if name in rules) - on_boards:
        on_boards |= more
    for name in sorted(on_boards | series(rules.values())):
        if name not in metric_of and name not in rules:
            yield f"no program exports {name}, and no rule records it"
    shown = {metric_of.get(name, name) for name in on_boards}
    for name in sorted({*metric_of.values()} - shown - EXCEPTIONS.keys()):
        yield f"the metric {name} is on no board: put it on one, or name it in EXCEPTIONS with the reason"
    for name in sorted(EXCEPTIONS):
        if name in shown or name not in metric_of.values():
            yield f"{name} is on a board or does not exist: take it out of EXCEPTIONS"
    if len(EXCEPTIONS) > MAX_EXCEPTIONS:
        yield f"{len(EXCEPTIONS)} exceptions, more than {MAX_EXCEPTIONS}"
