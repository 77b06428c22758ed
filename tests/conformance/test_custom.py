"""Kinds of CRDs: served once applied, pruned, filled in, checked, and gone with their CRD."""

import pytest

from tests.conformance.sides import MERGE, STRATEGIC

pytestmark = [pytest.mark.real, pytest.mark.asyncio]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

SCHEMA = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "minimum": 1, "maximum": 9},
                "count": {"type": "integer"},
                "least": {"type": "integer", "format": "int32"},
                "mode": {"type": "string", "enum": ["fast", "slow"], "default": "slow"},
                "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                "share": {"x-kubernetes-int-or-string": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "steps": {
                    "type": "array",
                    "maxItems": 2,
                    "items": {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}},
                },
                "gone": {"type": "string", "nullable": True},
            },
        },
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}}},
    },
}


def definition(group, schema=SCHEMA):
    scale = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.replicas"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    version["subresources"] = {"status": {}, "scale": scale | {"labelSelectorPath": ".status.selector"}}
    names = {"plural": "things", "kind": "Thing", "singular": "thing", "shortNames": ["th"]}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": f"things.{group}"}, "spec": spec}


def established(code, crd):
    conditions = crd.get("status", {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


async def applied(side):
    """Apply the CRD of this story's namespace and wait until it is served; the path of its objects' group."""
    group = f"{side.namespace}.example.com"
    code, _ = await side.peek("POST", CRDS, definition(group))
    assert code == 201
    await side.until(f"{CRDS}/things.{group}", established)
    things = side.path("things", group=f"{group}/v1")
    for _ in range(100):  # a real server serves it a moment after it says so
        code, _ = await side.peek("GET", things)
        if code == 200:
            return group
    raise AssertionError("it is never served")


def raw_definition(group, **more):
    """A Thing, which says what it is: the API server wants that of kinds that are not its own."""
    return {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "a"}, **more}


THINGS = [
    pytest.param({"spec": {"size": 3}}, id="defaults are filled in"),
    pytest.param(
        {"spec": {"size": 3, "unknown": 1, "free": {"x": {"y": 1}}}, "more": 2}, id="unknown fields are dropped"
    ),
    pytest.param({"spec": {"size": 3, "steps": [{}, {"n": 2, "x": 3}]}}, id="defaults inside a list"),
    pytest.param({"spec": {"size": 3, "labels": {"a": "b"}, "share": "50%"}}, id="maps, and numbers or texts"),
    pytest.param(
        {"spec": {"size": 3, "share": 5, "gone": None, "mode": None}}, id="null where it may be, and where not"
    ),
    pytest.param({"spec": {}}, id="a required field is missing"),
    pytest.param({}, id="a required object is missing"),
    pytest.param({"kind": "", "spec": {"size": 3}}, id="no kind"),
    pytest.param({"apiVersion": "v1", "spec": {"size": 3}}, id="another version"),
    pytest.param({"spec": {"size": 10}}, id="too large"),
    pytest.param({"spec": {"size": "3"}}, id="a text for a number"),
    pytest.param({"spec": {"size": 3, "mode": "medium"}}, id="not in the list"),
    pytest.param({"spec": {"size": 3, "name": "toolong"}}, id="too long"),
    pytest.param({"spec": {"size": 3, "name": "A1"}}, id="does not match"),
    pytest.param({"spec": {"size": 3, "steps": [{}, {}, {}]}}, id="too many"),
    pytest.param({"spec": {"size": 3}, "status": {"replicas": 7}}, id="no status at birth"),
]


@pytest.mark.slow
@pytest.mark.parametrize("thing", THINGS)
async def test_objects_of_a_crd(both, thing):
    async def story(side):
        group = await applied(side)
        await side.ask("POST", side.path("things", group=f"{group}/v1"), raw_definition(group, **thing))

    await both.agree(story)


FAULTS_OF_A_SPEC = [
    {"size": 10},
    {"size": 0},
    {"size": 3, "count": "3"},
    {"size": 3, "count": 2.5},
    {"size": 3, "count": True},
    {"size": 3, "count": None},
    {"size": 3, "least": 2.5},
    {"size": 3, "least": {}},
    {"size": 3, "mode": "medium"},
    {"size": 3, "name": "toolong"},
    {"size": 3, "name": "A1"},
    {"size": 3, "name": "a\n"},
    {"size": 3, "name": ["a"]},
    {"size": 3, "share": True},
    {"size": 3, "share": {"a": 1}},
    {"size": 3, "labels": {"a": 5}},
    {"size": 3, "steps": [{}, {}, {}]},
    {"size": 3, "steps": [{"n": "x"}]},
    {"size": 3, "steps": "none"},
    {"size": 3, "free": 1.5},
]


async def test_the_faults_of_an_object_are_told_in_the_same_words(both):
    async def story(side):
        group = await applied(side)
        for spec in FAULTS_OF_A_SPEC:
            thing = raw_definition(group, spec=spec, metadata={"generateName": "a-"})
            code, answer = await side.peek("POST", side.path("things", group=f"{group}/v1"), thing)
            faults = answer.get("message", "").partition(" is invalid: ")[2]
            side.transcript.append((str(spec), "", code, faults))

    await both.agree(story)


async def test_writing_to_them(both):
    async def story(side):
        group = await applied(side)
        path = side.path("things", "a", group=f"{group}/v1")
        _, first = await side.ask(
            "POST", side.path("things", group=f"{group}/v1"), raw_definition(group, spec={"size": 1})
        )
        await side.ask("PATCH", path, {"spec": {"size": 2}}, MERGE)
        await side.ask("PATCH", path, {"spec": {"size": 2}}, STRATEGIC)
        await side.ask("PUT", path, raw_definition(group, spec={"size": 4}))  # without a version
        await side.ask("PUT", path, first)
        await side.ask(
            "PATCH", path + "/status", {"status": {"replicas": 1, "selector": "a=b"}, "spec": {"size": 9}}, MERGE
        )
        await side.ask("GET", path + "/scale")
        await side.ask("PATCH", path + "/scale", {"spec": {"replicas": 5}}, MERGE)
        await side.ask("PATCH", path + "/scale", {"spec": {"replicas": 50}}, MERGE)
        await side.ask("GET", path)

    await both.agree(story)


async def test_a_kind_goes_with_its_crd(both):
    def unserved(code, answer):
        return code == 404

    async def story(side):
        things = side.path("things", group=f"{side.namespace}.example.com/v1")
        await side.ask("GET", things)
        group = await applied(side)
        await side.peek("POST", things, raw_definition(group, spec={"size": 1}))
        await side.peek("DELETE", f"{CRDS}/things.{group}")
        await side.until(f"{CRDS}/things.{group}", unserved)
        await side.until(things, unserved)

    await both.agree(story)


BROKEN = [
    pytest.param({"names": {"plural": "other", "kind": "Thing"}}, id="a name that is not its plural and group"),
    pytest.param({"names": {"plural": "things"}}, id="no kind"),
    pytest.param({"versions": [{"name": "v1", "served": True, "storage": True}]}, id="no schema"),
]


@pytest.mark.parametrize("change", BROKEN)
async def test_a_crd_with_faults_is_refused(both, change):
    async def story(side):
        crd = definition(f"{side.namespace}.example.com")
        await side.ask("POST", CRDS, crd | {"spec": crd["spec"] | change})

    await both.agree(story)
