"""Build a meta.k8s.io/v1 Table: a list as kubectl prints it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from turnout.simulator.api.kinds.printer_columns import ANY
from turnout.simulator.api.model import Object, ResourceKind


def asked_for(accept: str) -> bool:
    """True if a caller prefers a Table to every other form.

    accept: the Accept header.
    """
    first = accept.split(",", 1)[0]
    return "as=Table" in first and "g=meta.k8s.io" in first


def table(
    kind: ResourceKind, objects: Iterable[Object], version: str, now_s: float, head: bool = True
) -> dict[str, Any]:
    """Return the Table of some objects.

    head: include the columns' names; a watch sends them once.
    """
    columns = kind.columns or ANY
    rows = []
    for obj in objects:
        cells = [column.show(obj, now_s) for column in columns]
        part = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": obj["metadata"]}
        rows.append({"cells": cells, "object": part})
    names = [
        {"name": c.name, "type": "integer" if c.form == "integer" else "string", "format": "name" * (c.form == "name")}
        | {"description": "", "priority": c.priority}
        for c in columns
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": version},
        "columnDefinitions": names if head else [],
        "rows": rows,
    }
