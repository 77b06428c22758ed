"""An API server asks which pods get our gate: the answer as a JSONPatch, and every question that is none."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit import cluster
from turnout.kube import labels
from turnout.scheduler_ext.model import BadRequest
from turnout.scheduler_ext.wire.extender_v1 import MAX_BYTES, MAX_VALUES
from turnout.scheduler_ext.wire.pod_messages import GateRule, decode_review, encode_review, needs_gate

GATE = {"name": labels.PLACEMENT_GATE}


def pod(**more):
    return cluster.koordinator_gang("g", 2, **more)[0]


def with_amount(amount):
    one_pod = pod()
    one_pod["spec"]["containers"][0]["resources"]["limits"][cluster.GPU] = amount
    one_pod["spec"]["containers"][0]["resources"]["requests"][cluster.GPU] = amount
    return one_pod


def review(raw_pod, namespace="ml", operation="CREATE"):
    request = {"uid": "u-1", "namespace": namespace, "operation": operation, "object": raw_pod}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def answered(body, rule=GateRule()):  # noqa: B008
    """The patch of the answer, None without one."""
    review_request = decode_review(body)
    document = json.loads(encode_review(review_request, needs_gate(review_request, rule)))
    response = document["response"]
    assert (document["kind"], response["uid"], response["allowed"]) == ("AdmissionReview", "u-1", True)
    return json.loads(base64.b64decode(response["patch"])) if "patch" in response else None


ALONE = [{"op": "add", "path": "/spec/schedulingGates", "value": [GATE]}]
BESIDE = [{"op": "add", "path": "/spec/schedulingGates/-", "value": GATE}]


@pytest.mark.parametrize(
    ("body", "patch"),
    [
        pytest.param(review(pod()), ALONE, id="a gang's pod"),
        pytest.param(review(pod(schedulingGates=[{"name": "a/x"}])), BESIDE, id="beside another's gate"),
        pytest.param(review(pod(schedulingGates=[GATE])), None, id="ours is there"),
        pytest.param(review(pod(gpus=0)), None, id="no accelerator"),
        pytest.param(review(with_amount("0")), None, id="an amount of 0"),
        pytest.param(review(with_amount("many")), None, id="an amount that cannot be read"),
        pytest.param(review(cluster.make_pod("lone", 8)), None, id="no gang"),
        pytest.param(review(pod(nodeName="n1")), None, id="placed by its owner"),
        pytest.param(review(pod(scheduler="volcano")), None, id="another's scheduler"),
        pytest.param(review(pod(), namespace="kube-system"), None, id="a system namespace"),
        pytest.param(review(pod(), operation="UPDATE"), None, id="no creation"),
        pytest.param(review(None), None, id="no pod"),
        pytest.param(review({"spec": 7}), None, id="a pod that cannot be read"),
    ],
)
def test_the_gate_is_put_on_pods_of_gangs_with_accelerators(body, patch):
    assert answered(body) == patch


def test_the_schedulers_and_accelerators_are_those_that_an_admin_names():
    assert answered(review(pod(scheduler="volcano")), GateRule(frozenset({"volcano"}))) == ALONE
    assert answered(review(pod()), GateRule(gpu_resources=("example.com/gpu",))) is None


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"request": {"uid": ""}}', b'{"request": {"uid": 7}}', b"\xff", b'{"request":' * 2000]
)
def test_what_is_no_question_is_refused(body):
    with pytest.raises(BadRequest):
        decode_review(body)


def holding(spec):
    """A review as bytes of a pod with this spec."""
    return b'{"request":{"uid":"u-1","operation":"CREATE","object":{"spec":' + spec + b"}}}"


BUSY = b'{"volumes":[' + b",".join([b'{"":{}}'] * (MAX_VALUES // 3 + 1)) + b"]}"


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        pytest.param(holding(BUSY), f"at most {MAX_VALUES} values", id="objects in a field that is read as it is"),
        pytest.param(holding(BUSY.replace(b'{"":{}}', b"[[],[]]")), f"at most {MAX_VALUES} values", id="lists"),
        pytest.param(b"[" + b"0," * MAX_VALUES + b"0]", f"at most {MAX_VALUES} values", id="no object at all"),
        pytest.param(holding(b'"' + b" " * MAX_BYTES + b'"'), f"at most {MAX_BYTES} bytes", id="one long text"),
    ],
)
def test_a_question_of_too_many_values_or_bytes_is_refused_unread(body, fault):
    with pytest.raises(BadRequest, match=fault):
        decode_review(body)


def test_a_pod_of_many_variables_is_read():
    one_pod = pod()
    one_pod["spec"]["containers"][0]["env"] = [{"name": f"V{at}", "value": "x"} for at in range(5_000)]
    assert answered(review(one_pod)) == ALONE


@pytest.mark.parametrize("spec", [b'"\xff"', b'{"nodeName":"\xff"}', b'{"volumes":[{"a":"\xc3("}]}'])
def test_a_pod_that_is_not_utf8_is_allowed_as_it_is(spec):
    assert answered(holding(spec)) is None


LEAVES = st.none() | st.booleans() | st.integers() | st.text()
JSON = st.recursive(LEAVES, lambda each: st.lists(each) | st.dictionaries(st.text(), each))


@given(JSON)
def test_whatever_a_pod_holds_it_is_allowed(raw_pod):
    answered(review(raw_pod))
