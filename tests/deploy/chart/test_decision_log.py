"""The chart may give the autoscaler a volume for its decision log."""

import pytest

from hack.codegen import chart

pytestmark = pytest.mark.real


@pytest.mark.parametrize(("claim", "volume"), [
    pytest.param("", {"emptyDir": {"sizeLimit": "160Mi"}}, id="without a claim it is lost with its pod"),
    pytest.param("logs", {"persistentVolumeClaim": {"claimName": "logs"}}, id="a claim"),
])  # fmt: skip
def test_the_autoscaler_may_write_a_decision_log(claim, volume):
    values = {"autoscaler.decisionLog.enabled": "true", "autoscaler.ownerLabel": "example.com/owner"}
    objects = chart.documents(
        chart.render({**values, **({"autoscaler.decisionLog.existingClaim": claim} if claim else {})})
    )
    (deployment,) = (
        each for each in objects if (each["kind"], each["metadata"]["name"]) == ("Deployment", "turnout-autoscaler")
    )
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    folder = next(each["mountPath"] for each in container["volumeMounts"] if each["name"] == "decision-log")
    assert {f"--decision-log={folder}/$(POD_NAME)", "--owner-label=example.com/owner"} <= set(container["args"])
    assert {"name": "decision-log", **volume} in spec["volumes"]


def test_without_a_decision_log_the_autoscaler_has_no_volume_for_it():
    assert "decision-log" not in chart.render({})
