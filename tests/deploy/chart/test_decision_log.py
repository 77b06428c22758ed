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


@pytest.mark.parametrize(("values", "reads"), [
    pytest.param({"enabled": "true", "existingClaim": "logs"}, True, id="a claim"),
    pytest.param({"enabled": "true"}, False, id="a log that is lost with its pod is of no use to another pod"),
    pytest.param({"enabled": "false", "existingClaim": "logs"}, False, id="no log"),
])  # fmt: skip
def test_the_page_reads_the_log_of_a_claim(values, reads):
    chosen = {f"autoscaler.decisionLog.{name}": value for name, value in values.items()}
    objects = chart.documents(chart.render({"page.enabled": "true", **chosen}))
    (deployment,) = (
        each for each in objects if (each["kind"], each["metadata"]["name"]) == ("Deployment", "turnout-page")
    )
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    mounts = {"name": "decision-log", "mountPath": "/var/log/turnout", "readOnly": True}
    assert (mounts in container["volumeMounts"]) == reads
    assert ("--decision-log=/var/log/turnout" in container["args"]) == reads
    claim = {"name": "decision-log", "persistentVolumeClaim": {"claimName": "logs", "readOnly": True}}
    assert (claim in spec["volumes"]) == reads
