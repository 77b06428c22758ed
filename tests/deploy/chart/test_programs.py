"""Pods, accounts and names of the chart's programs, as an admin's values say."""

from __future__ import annotations

import json

import pytest
import yaml

from hack.codegen import chart
from tests.deploy.chart.test_rendered import EVERYTHING, named, rendered

pytestmark = pytest.mark.real

WHERE = {
    "affinity": {"nodeAffinity": {}},
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "a"}],
    "topologySpreadConstraints": [{"maxSkew": 2}],
    "priorityClassName": "high",
}
VALUES = {
    **WHERE,
    "podLabels": {"team": "ours"},
    "podAnnotations": {"note": "theirs"},
    "podSecurityContext": {"runAsUser": 7, "fsGroup": None},
    "securityContext": {"readOnlyRootFilesystem": False},
    "resources": {"limits": {"memory": "3Gi"}},
    "serviceAccount": {"create": False, "name": "somebody"},
    "extraEnv": [{"name": "A", "value": "b"}],
}


def accounts_of(objects):
    """The accounts to which anything is bound."""
    return {each["name"] for found in objects for each in found.get("subjects", ())}


@pytest.mark.parametrize("program", chart.PROGRAMS)
def test_the_pods_of_a_program_are_as_an_admin_says(program, tmp_path):
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({program: VALUES}))
    found = rendered(EVERYTHING, f"--values={file}")
    (deployment,) = (
        each
        for each in found
        if each["kind"] == "Deployment" and each["metadata"]["labels"]["app.kubernetes.io/component"] == program
    )
    template = deployment["spec"]["template"]
    spec, (container, *_) = template["spec"], template["spec"]["containers"]
    assert {key: spec[key] for key in WHERE} == WHERE
    assert template["metadata"]["labels"]["team"] == "ours"
    assert template["metadata"]["annotations"]["note"] == "theirs"
    assert spec["securityContext"]["runAsUser"] == 7
    assert "fsGroup" not in spec["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is False
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["resources"]["limits"] == {"memory": "3Gi"}
    assert {"name": "A", "value": "b"} in container["env"]
    assert spec["serviceAccountName"] == "somebody"
    names = {each["metadata"]["name"] for each in found if each["kind"] == "ServiceAccount"}
    assert f"turnout-{program}" not in names | accounts_of(found)
    assert "somebody" in accounts_of(found) - names


@pytest.mark.parametrize("program", ["nominator", "autoscaler"])
def test_a_renamed_account_stays_guarded(program):
    found = rendered({**EVERYTHING, f"{program}.serviceAccount.name": "somebody"})
    guards = json.dumps([each for each in found if each["kind"] == "ValidatingAdmissionPolicy"])
    assert "system:serviceaccount:turnout-system:somebody'" in guards
    assert f"turnout-system:turnout-{program}'" not in guards


def test_every_pod_is_restricted_by_default():
    for deployment in (each for each in rendered(EVERYTHING) if each["kind"] == "Deployment"):
        spec = deployment["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            locked = container["securityContext"]
            assert (locked["allowPrivilegeEscalation"], locked["capabilities"]) == (False, {"drop": ["ALL"]})


@pytest.mark.parametrize(
    ("values", "release", "name"),
    [
        pytest.param({}, "prod", "prod-extender", id="the release's name begins it"),
        pytest.param({"nameOverride": "gangs"}, "prod", "prod-gangs-extender", id="a name of one's own follows"),
        pytest.param({"nameOverride": "prod"}, "prod", "prod-extender", id="once is enough"),
        pytest.param({"nameOverride": "a", "fullnameOverride": "b"}, "prod", "b-extender", id="the full name wins"),
    ],
)
def test_names(values, release, name):
    found = rendered(values, release=release)
    (service,) = (each for each in found if each["kind"] == "Service")
    assert service["metadata"]["name"] == name
    assert named(found, "Deployment", name)["spec"]["selector"] == {
        "matchLabels": {"app.kubernetes.io/name": "turnout-extender", "app.kubernetes.io/instance": release}
    }


@pytest.mark.parametrize(
    ("values", "arguments"),
    [
        pytest.param({}, ["--extender=turnout-extender.turnout-system.svc:9443"], id="the extender"),
        pytest.param(
            {"extender.enabled": "false", "controller.kinds": "{PyTorchJob,ElasticJob}"},
            [
                "--served=elastic.iml.github.io/v1alpha1/elasticjobs",
                "--served=ctyun.cn/v1/pytorchjobs",
                "--served=kubeflow.org/v1/pytorchjobs",
            ],
            id="kinds of jobs",
        ),
        pytest.param({"extender.enabled": "false"}, None, id="nothing to ask: no test"),
    ],
)
def test_helm_test_asks_about_what_is_installed(values, arguments):
    pods = [each for each in rendered(values, tests=True) if each["kind"] == "Pod"]
    assert [pod["spec"]["containers"][0]["args"] for pod in pods] == ([] if arguments is None else [arguments])
    for pod in pods:
        (container,) = pod["spec"]["containers"]
        script = (chart.ROOT / chart.CHART / "files/check_installation.py").read_text()
        assert container["command"] == ["python3", "-c", script]
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        mounted = {each["name"] for each in container.get("volumeMounts", ())}
        assert mounted == ({"tls"} if "--extender" in container["args"][0] else set())
