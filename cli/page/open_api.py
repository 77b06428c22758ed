"""The OpenAPI document of `/api/v1`, generated from the structs of its answers."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from turnout.cli.page import messages
from turnout.cli.page.answers import DECISION_FILTERS, JOB_FILTERS, NODE_FILTERS, QUEUE_FILTERS
from turnout.cli.page.usage_rows import FILTERS as USAGE_FILTERS

_LIST = ("limit", "continue", "sort")
# Path, the struct of its answer, its parameters, and the question that it answers.
PATHS: tuple[tuple[str, type[msgspec.Struct], tuple[str, ...], str], ...] = (
    ("/api/v1/viewer", messages.Viewer, (), "Who am I, and may I see all namespaces?"),
    ("/api/v1/summary", messages.Summary, (), "How many GPUs are used, lent and free, and how many jobs wait?"),
    ("/api/v1/fabric/tree", messages.FabricTree, (), "Which hosts are under which switches?"),
    ("/api/v1/fabric/gpus", messages.GpuCells, ("under",), "Who holds each GPU?"),
    ("/api/v1/fabric/largest", messages.LargestGangs, (), "Which is the largest gang that fits in each tier?"),
    ("/api/v1/explain", messages.LandingAnswer, ("gang", "namespace"), "Where would a gang land now?"),
    ("/api/v1/queues", messages.QueueList, (*QUEUE_FILTERS, *_LIST), "What is each queue's quota, and who uses it?"),
    ("/api/v1/queues/{queue}/history", messages.QueueHistory, ("queue", "window"), "How was a queue used over time?"),
    ("/api/v1/jobs", messages.JobList, (*JOB_FILTERS, *_LIST), "Which jobs wait and run, and why?"),
    ("/api/v1/jobs/{kind}/{namespace}/{name}", messages.JobDetail, ("kind", "namespace", "name"), "How is this job?"),
    (
        "/api/v1/jobs/{kind}/{namespace}/{name}/goodput",
        messages.JobTime,
        ("kind", "namespace", "name"),
        "What was this job's time spent on?",
    ),
    (
        "/api/v1/usage",
        messages.UsageList,
        (*USAGE_FILTERS, *_LIST),
        "Who used how many GPU-hours, and who lent to whom?",
    ),
    (
        "/api/v1/jobs/{kind}/{namespace}/{name}/sizes",
        messages.JobSizes,
        ("kind", "namespace", "name"),
        "How large was this job before the page started?",
    ),
    ("/api/v1/decisions", messages.DecisionList, (*DECISION_FILTERS, *_LIST), "What was decided, for whom and why?"),
    ("/api/v1/nodes", messages.NodeList, (*NODE_FILTERS, *_LIST), "Which nodes need somebody?"),
)


@cache
def document() -> bytes:
    """Return the OpenAPI document of the page's API as JSON."""
    structs = [*dict.fromkeys(struct for _, struct, _, _ in PATHS), messages.Problem]
    schemas, components = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
    by_struct = dict(zip(structs, schemas, strict=True))
    paths = {path: {"get": _get(path, by_struct[struct], names, text)} for path, struct, names, text in PATHS}
    return msgspec.json.format(
        msgspec.json.encode(
            {
                "openapi": "3.1.0",
                "info": {"title": "The page of Turnout", "version": "1"},
                "paths": paths,
                "components": {"schemas": components},
            }
        )
    )


def _get(path: str, schema: Any, names: tuple[str, ...], summary: str) -> dict[str, Any]:
    """Return the OpenAPI description of a GET request.

    path: with path parameters in braces. schema: of its answer. names: of its parameters; those that are not in `path`
    belong to the query and are optional. summary: a sentence on the request.
    """
    parameters = [
        {
            "name": name,
            "in": "path" if f"{{{name}}}" in path else "query",
            "required": f"{{{name}}}" in path,
            "schema": {"type": "integer" if name == "limit" else "string"},
        }
        for name in names
    ]
    answer = {"description": "The answer.", "content": {"application/json": {"schema": schema}}}
    problem = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": {"200": answer, "default": {"description": "What is wrong.", "content": problem}},
    }
