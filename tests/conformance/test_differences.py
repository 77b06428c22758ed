"""Features that the embedded API refuses with 501, lists in docs/local-cluster.md, and a real server has."""

import re
from pathlib import Path

import pytest

from tests.conformance.sides import JSON, config_map, pod
from tests.conformance.test_custom import CRDS, SCHEMA, definition

pytestmark = [pytest.mark.real, pytest.mark.asyncio]
MOST = 10
APPLY = "application/apply-patch+yaml"


def with_rules(group):
    rule = {"rule": "self.size > 0", "message": "too small"}
    spec = SCHEMA["properties"]["spec"] | {"x-kubernetes-validations": [rule]}
    return definition(group, SCHEMA | {"properties": SCHEMA["properties"] | {"spec": spec}})


def two_versions(group):
    crd = definition(group)
    (first,) = crd["spec"]["versions"]
    crd["spec"]["versions"] = [first, first | {"name": "v2", "storage": False}]
    return crd


async def protobuf(side):
    """The four bytes that begin every protobuf of Kubernetes, and nothing after them: read, and found too short."""
    return await side.peek("POST", side.path("configmaps"), "k8s\0", "application/vnd.kubernetes.protobuf")


async def apply(side):
    body = {"apiVersion": "v1", "kind": "ConfigMap", **config_map("a")}
    return await side.peek("PATCH", side.path("configmaps", "a"), body, APPLY, fieldManager="me")


async def dry_run(side):
    return await side.peek("POST", side.path("configmaps"), config_map("a"), dryRun="All")


async def other_kinds(side):
    return await side.peek("GET", side.path("ingresses", group="networking.k8s.io/v1"))


async def in_a_container(side):
    node = f"n-{side.namespace}"
    await side.peek("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    await side.peek("POST", side.path("pods"), pod("a", spec={"nodeName": node}))
    return await side.peek("GET", side.path("pods", "a", "exec"))


async def rules_of_a_crd(side):
    return await side.peek("POST", CRDS, with_rules(f"{side.namespace}.example.com"), JSON)


async def versions_of_a_crd(side):
    return await side.peek("POST", CRDS, two_versions(f"{side.namespace}.example.com"), JSON)


async def logs_since(side):
    await side.peek("POST", side.path("pods"), pod("a"))
    return await side.peek("GET", side.path("pods", "a", "log"), sinceSeconds="1")


DIFFERENCES = {
    "bodies in protobuf": protobuf,
    "server-side apply": apply,
    "dry runs": dry_run,
    "kinds of Kubernetes": other_kinds,
    "exec, attach": in_a_container,
    "a CRD with `x-kubernetes-validations`": rules_of_a_crd,
    "a CRD that serves several versions": versions_of_a_crd,
    "logs with `since`": logs_since,
}


@pytest.mark.parametrize("difference", DIFFERENCES)
async def test_a_difference_is_refused_with_501_here_and_served_there(both, difference):
    code, status = await DIFFERENCES[difference](both.sides["embedded"])
    assert (code, status["reason"]) == (501, "NotImplemented")
    assert status["message"]
    code, answer = await DIFFERENCES[difference](both.sides["real"])
    assert code not in (404, 501), answer


async def test_every_difference_is_told_and_they_are_few():
    text = (Path(__file__).parents[2] / "docs/local-cluster.md").read_text()
    section = text.split("## What it refuses", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (?!what is refused|---)(.+?) \|", section, re.M)
    assert len(rows) <= MOST
    assert [next((d for d in DIFFERENCES if row.startswith(d)), row) for row in rows] == list(DIFFERENCES)
