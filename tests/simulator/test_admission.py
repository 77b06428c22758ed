"""What the embedded API refuses: values that break a CRD's schema, and evictions that break a disruption budget."""

import pytest

from turnout.simulator.api.kinds.schema import fill_defaults, validation_errors
from turnout.simulator.api.model import ApiRefusal
from turnout.simulator.api.writes.admission import check_budgets

LOWER_CASE = {"type": "string", "pattern": "^[a-z]+$"}


@pytest.mark.parametrize(
    ("field", "value", "messages"),
    [
        pytest.param(LOWER_CASE, "abc", [], id="a text that matches the pattern"),
        pytest.param(
            LOWER_CASE,
            "abc\n",
            [r"""spec.f: Invalid value: "abc\n": spec.f in body should match '^[a-z]+$'"""],
            id="the end of a pattern is the end of the text, not a newline before it",
        ),
        pytest.param({"type": "string", "pattern": r"^[$]\$(a|$)"}, "$$", [], id="a dollar sign that is no end"),
        pytest.param(
            {"type": "string", "pattern": r"^\d$"},
            "٣",
            [r"""spec.f: Invalid value: "٣": spec.f in body should match '^\d$'"""],
            id="a digit of another script",
        ),
        pytest.param(
            {"type": "integer"},
            "three",
            ['spec.f: Invalid value: "string": spec.f in body must be of type integer: "string"'],
            id="a wrong type is named, not its value",
        ),
        pytest.param(
            {"type": "integer", "format": "int32"},
            1.5,
            ['spec.f: Invalid value: "number": spec.f in body must be of type integer: "number"'],
            id="a fraction for an int32",
        ),
        pytest.param(
            {"x-kubernetes-int-or-string": True},
            True,
            ['spec.f: Invalid value: "boolean": spec.f in body must be of type integer,string: "boolean"'],
            id="an int or string",
        ),
        pytest.param(
            {"type": "string"},
            None,
            ['spec.f: Invalid value: "null": spec.f in body must be of type string: "null"'],
            id="null",
        ),
        pytest.param(
            {"type": "string", "enum": ["a", "b"]},
            "q",
            ['spec.f: Unsupported value: "q": supported values: "a", "b"'],
            id="a value that is none of an enum",
        ),
        pytest.param(
            {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
            0,
            ["spec.f: Invalid value: 0: spec.f in body should be greater than 0"],
            id="an exclusive bound",
        ),
        pytest.param(
            {"type": "array", "minItems": 1, "items": {}},
            [],
            ["spec.f: Invalid value: 0: spec.f in body should have at least 1 items"],
            id="a short list",
        ),
        pytest.param(
            {"type": "array", "x-kubernetes-list-map-keys": ["b", "a"], "items": {}},
            [{"a": "x", "b": 1}, {"a": "x", "b": 1}],
            ['spec.f[1]: Duplicate value: {"a":"x","b":1}'],
            id="a key that two items of a list have",
        ),
    ],
)
def test_the_errors_of_a_schema_are_worded_as_by_the_api_server(field, value, messages):
    """Source: kube-openapi pkg/validation/errors and validate, apiextensions-apiserver pkg/apiserver/validation"""
    schema = {"properties": {"spec": {"type": "object", "properties": {"f": field}}}}
    assert list(validation_errors(schema, {"spec": {"f": value}})) == messages


TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


@pytest.mark.parametrize(
    ("field", "value", "stored"),
    [
        pytest.param({"type": "integer"}, {"f": None}, {}, id="a null that is not allowed"),
        pytest.param({"type": "integer", "default": 3}, {"f": None}, {"f": 3}, id="a null that has a default"),
        pytest.param({"type": "integer", "nullable": True}, {"f": None}, {"f": None}, id="a null that is allowed"),
        pytest.param({"type": "integer", "default": 3, "nullable": True}, {}, {"f": 3}, id="an absent field"),
        pytest.param(TEXTS, {"f": {"a": None, "b": "c"}}, {"f": {"b": "c"}}, id="a null in a map"),
        pytest.param({"type": "array", "items": TEXTS}, {"f": [None]}, {"f": [None]}, id="a null in a list"),
    ],
)
def test_a_null_is_replaced_by_the_default_or_removed(field, value, stored):
    """Source: pkg/apiserver/schema/defaulting of apiextensions-apiserver"""
    assert fill_defaults({"type": "object", "properties": {"f": field}}, value) == stored


def running_pod(name, ready):
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"name": name, "labels": {"app": "a"}},
        "status": {"phase": "Running", "conditions": conditions},
    }


ALWAYS = {"unhealthyPodEvictionPolicy": "AlwaysAllow"}


@pytest.mark.parametrize(
    ("pod_ready", "others_ready", "budget", "allowed"),
    [
        pytest.param(True, 2, {"minAvailable": 2}, True, id="a ready pod above the minimum"),
        pytest.param(True, 1, {"minAvailable": 2}, False, id="a ready pod of the minimum"),
        pytest.param(False, 2, {"minAvailable": 2}, True, id="a pod that is not ready, and enough others are"),
        pytest.param(False, 1, {"minAvailable": 2}, False, id="a pod that is not ready, and too few others are"),
        pytest.param(False, 1, {"minAvailable": 2, **ALWAYS}, True, id="AlwaysAllow lets a pod go that is not ready"),
        pytest.param(True, 1, {"minAvailable": 2, **ALWAYS}, False, id="AlwaysAllow does not count for a ready pod"),
        pytest.param(False, 0, {"minAvailable": 0}, False, id="nothing is healthy and nothing is required"),
        pytest.param(False, 1, {"minAvailable": 0}, True, id="one is healthy and nothing is required"),
    ],
)
def test_which_evictions_a_budget_allows(pod_ready, others_ready, budget, allowed):
    """Without a policy of its own a budget has IfHealthyBudget. Source: EvictionREST.Create of Kubernetes"""
    evicted = running_pod("evicted", pod_ready)
    pods = [evicted, *(running_pod(f"other-{number}", True) for number in range(others_ready))]
    budgets = [{"spec": {"selector": {"matchLabels": {"app": "a"}}, **budget}}]
    if allowed:
        check_budgets(evicted, pods, budgets)
    else:
        with pytest.raises(ApiRefusal) as refusal:
            check_budgets(evicted, pods, budgets)
        assert refusal.value.reason == "TooManyRequests"
