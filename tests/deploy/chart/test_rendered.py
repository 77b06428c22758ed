"""The chart rendered from values: every toggle, every Kubernetes, what DLRover's users set, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import re
import subprocess
from datetime import datetime, timedelta
from itertools import product

import pytest
import yaml
from cryptography import x509

from hack.codegen import chart
from hack.controlplane import schemas
from hack.controlplane.tools import cache
from tests.deploy.test_manifests import _rights as rights

pytestmark = pytest.mark.real

VERSIONS = [f"1.{minor}.0" for minor in range(29, 38)]
TOGGLES = ("extender", "nominator", "autoscaler", "controller", "scheduler", "networkPolicy")
EVERYTHING = {
    "nominator.enabled": "true",
    "nominator.annotateSwitchPath": "true",
    "nominator.gates": "true",
    "autoscaler.act": "true",
    "autoscaler.markPods": "true",
    "autoscaler.taintNodes": "true",
    "controller.kinds": "{PyTorchJob,ElasticJob,MSJob,ColossalAIJob}",
    "controller.gang": "volcano",
    "scheduler.enabled": "true",
    "page.enabled": "true",
    "monitoring.podMonitors": "true",
    "monitoring.launchers.podMonitor": "true",
    "monitoring.rules": "true",
    "monitoring.dashboards": "true",
}
DIGEST = f"sha256:{'0' * 64}"
GATES = {"nominator.enabled": "true", "nominator.gates": "true", "nominator.gatePods": "true"}
FLAG = "--docs-base-url="
# What no API server of ours knows the schema of.
FOREIGN = {"PodMonitor", "PrometheusRule", "Certificate", "Issuer"}
NEWER = {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}  # than the API server that tells the schemas


def rendered(values=None, *more, **flags):
    return chart.documents(chart.render(values or {}, *more, **flags))


def as_text(objects):
    """Objects as a YAML text: as JSON, since a hundred times these definitions take PyYAML a minute."""
    return "---\n".join(json.dumps(each) + "\n" for each in objects)


def named(objects, kind, name):
    (found,) = (each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def container_of(objects, deployment, number=0):
    return named(objects, "Deployment", deployment)["spec"]["template"]["spec"]["containers"][number]


def images(objects):
    pods = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Deployment"]
    return {container["image"] for pod in pods for container in pod["containers"]}


def rights_of(objects, role):
    return set(rights(named(objects, "ClusterRole", role)))


@pytest.fixture(scope="module")
def schema_folder(module_plane, tmp_path_factory):
    folder = tmp_path_factory.mktemp("schemas")
    schemas.write(module_plane.request("GET", "/openapi/v2"), folder)
    return folder


@pytest.mark.contract("DL-01")
def test_helm_finds_no_fault_in_it():
    output = chart.helm("lint", "--strict", str(chart.CHART), "--kube-version=1.35")
    assert "1 chart(s) linted, 0 chart(s) failed" in output


@pytest.mark.slow
def test_every_file_that_is_made_from_another_is_up_to_date():
    for path, text in {**chart.copies(), **chart.files()}.items():
        assert (chart.ROOT / path).read_text() == text, f"{path}: python -m hack.codegen.chart"


@pytest.mark.slow
def test_every_toggle_renders_valid_objects(schema_folder, tmp_path):
    """64 choices in one call of kubeconform. Names are unique and namespaces the release's in each of them."""
    files = []
    for number, chosen in enumerate(product(("true", "false"), repeat=len(TOGGLES))):
        values = {f"{part}.enabled": on for part, on in zip(TOGGLES, chosen, strict=True)}
        objects = rendered({**EVERYTHING, **values}, namespace="gpu-team", release="mine")
        keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
        assert len(keys) == len(set(keys))
        assert {space for _, space, _ in keys} <= {None, "gpu-team", "kube-system"}
        assert all(
            name.startswith("mine-") or kind in ("CustomResourceDefinition", "ValidatingAdmissionPolicy")
            for kind, space, name in keys
            if space is None and not name.startswith("turnout-verdicts-")
        )
        file = tmp_path / f"{number}.yaml"
        file.write_text(as_text(each for each in objects if each["kind"] not in FOREIGN))
        files.append(file)
    results = schemas.kubeconform(schema_folder, files)
    assert schemas.faults(results) == []
    assert {each["filename"] for each in results} <= {str(file) for file in files}


# What else an admin chooses: each value's two settings, where both stand together with every other's.
CHOICES = {
    "nominator.gates,nominator.gatePods,nominator.preempt": "true",
    "nominator.readQueues": "true",
    "nominator.failOpenAfterSeconds": "600",
    "nominator.annotateSwitchPath": "true",
    "autoscaler.act": "true",
    "autoscaler.markPods": "true",
    "autoscaler.taintNodes": "true",
    "controller.crds": "false",
    "monitoring.podMonitors,monitoring.rules,monitoring.dashboards": "true",
    "page.enabled": "true",
    "certManager.enabled": "true",
    "guards": "anyNamespace",
    "rbac.viewer,rbac.queueAdmin": "false",
    "networkPolicy.enabled": "false",
}


def pairwise(count):
    """Rows of so many choices, few, in which every two of them meet in all four ways."""
    left = {(a, x, b, y) for a in range(count) for b in range(a) for x in (False, True) for y in (False, True)}
    dice, rows = random.Random(1), []
    while left:
        candidates = [[dice.random() < 0.5 for _ in range(count)] for _ in range(40)]
        met = [{(a, row[a], b, row[b]) for a in range(count) for b in range(a)} & left for row in candidates]
        best = max(range(len(candidates)), key=lambda at: len(met[at]))
        rows.append(candidates[best])
        left -= met[best]
    return rows


@pytest.mark.slow
def test_every_two_choices_render_valid_objects_together(schema_folder, tmp_path):
    files = []
    for number, row in enumerate(pairwise(len(CHOICES))):
        chosen = [item for item, on in zip(CHOICES.items(), row, strict=True) if on]
        values = {"nominator.enabled": "true"} | {key: text for keys, text in chosen for key in keys.split(",")}
        objects = rendered(values, f"--kube-version=1.{30 + number % 8}.0")
        keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
        assert len(keys) == len(set(keys))
        file = tmp_path / f"{number}.yaml"
        file.write_text(as_text(each for each in objects if each["kind"] not in FOREIGN | NEWER))
        files.append(file)
    assert schemas.faults(schemas.kubeconform(schema_folder, files)) == []


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_it_renders_for_kubernetes(version):
    """Before 1.30 nothing bounds what an account may write, so only what writes nothing is installed."""
    minor = int(version.split(".")[1])
    flag = f"--kube-version={version}"
    if minor < 30:
        with pytest.raises(chart.HelmRefused, match=r"autoscaler\.enabled needs Kubernetes 1\.30 or newer"):
            rendered({}, flag)
        found = rendered({"autoscaler.enabled": "false"}, flag)
    else:
        found = rendered(EVERYTHING, flag)
    guarded = {each["kind"] for each in found} & {"ValidatingAdmissionPolicy"}
    assert bool(guarded) is (minor >= 30)


@pytest.mark.contract("DL-02", "MS-35")
def test_a_registry_goes_before_every_image():
    plain, moved = images(rendered(EVERYTHING)), images(rendered({**EVERYTHING, "registry": "r.io/p"}))
    assert moved == {f"r.io/p/{each}" for each in plain}
    arguments = container_of(rendered({"registry": "r.io/p/"}, chart.DLROVER), "turnout-controller-manager")["args"]
    assert "--master-image=r.io/p/dlrover-master:0.1.0" in arguments


@pytest.mark.contract("DL-03")
def test_the_map_is_rendered_as_it_is_given(tmp_path):
    text = "# ours\nasw-01 psw-01 10.0.1.11\n\n  asw-01  psw-01\t10.0.1.12\n"
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump({"topoMapper": {"topology_config": text}}))
    found = named(rendered({}, f"--values={file}"), "ConfigMap", "node-topology-config")
    assert found["data"] == {"topology_config": text}


@pytest.mark.contract("DL-01", "DL-04", "DL-05", "DL-06", "DL-07")
@pytest.mark.parametrize(
    ("values", "image", "master"),
    [
        pytest.param({}, "elasticjob-controller:0.1.0", "dlrover-master:0.1.0", id="neither is set"),
        pytest.param(
            {"controller.image": "mine"}, "mine:0.1.0", "dlrover-master:0.1.0", id="the controller's name, as a string"
        ),
        pytest.param(
            {"controller.image.tag": "v7", "dlroverMaster.image.tag": "v8"},
            "elasticjob-controller:v7",
            "dlrover-master:v8",
            id="both tags alone",
        ),
        pytest.param(
            {"controller.image.name": "a", "controller.image.tag": "1", "dlroverMaster.image": "b:2"},
            "a:1",
            "b:2",
            id="a map, and a string with a tag",
        ),
        pytest.param(
            {"image.repository": "r.io/ours", "image.tag": "3"}, "r.io/ours:3", "r.io/ours:3", id="one image for all"
        ),
        pytest.param(
            {"image.digest": DIGEST},
            f"elasticjob-controller@{DIGEST}",
            f"dlrover-master@{DIGEST}",
            id="one digest under the three names",
        ),
        pytest.param(
            {"image.digest": DIGEST, "controller.image": "mine"},
            "mine:0.1.0",
            f"dlrover-master@{DIGEST}",
            id="the digest is not that of another image",
        ),
    ],
)
def test_images_of_the_controller_and_the_master(values, image, master):
    named_ = {"controller.deploymentName": "dlrover-controller-manager"}
    texts = [f"--set-string={key}={value}" for key, value in values.items()]
    container = container_of(rendered(named_, chart.DLROVER, *texts), "dlrover-controller-manager")
    assert container["image"] == image
    assert f"--master-image={master}" in container["args"]


@pytest.mark.contract("DL-01")
def test_a_release_of_dlrovers_name_has_the_guides_deployment():
    found = rendered({}, chart.DLROVER, release="dlrover")
    arguments = container_of(found, "dlrover-controller-manager")["args"]
    assert "--kinds=ElasticJob,MSJob" in arguments
    kinds = {each["spec"]["names"]["kind"] for each in found if each["kind"] == "CustomResourceDefinition"}
    assert kinds == {"ElasticJob", "ScalePlan", "MSJob"}


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({}, id="by default"),
        pytest.param({"controller.enabled": "true"}, id="switched on without a kind"),
    ],
)
def test_jobs_of_no_kind_are_taken_unless_it_is_named(values):
    found = rendered(values)
    assert not [each for each in found if each["kind"] == "CustomResourceDefinition"]
    assert not [each for each in found if "controller" in each["metadata"]["name"]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        pytest.param({"extender.replica": "2"}, "additional properties 'replica' not allowed", id="a misspelt value"),
        pytest.param({"extender.replicas": "two"}, "got string, want integer", id="a word for a number"),
        pytest.param({"controller.kinds": "{TFJob}"}, "/controller/kinds/0", id="a kind that nobody controls"),
        pytest.param({"extender.tls.validityDays": "3650"}, "/extender/tls/validityDays", id="ten years"),
        pytest.param({"image.repository": "r.io/a:1"}, "/image/repository", id="a tag where the repository stands"),
        pytest.param({"image.name": "a"}, "additional properties 'name' not allowed", id="a value of old"),
        pytest.param({"image.digest": "sha256:12"}, "/image/digest", id="a digest that is none"),
        pytest.param(
            {"nominator.enabled": "true", "nominator.gatePods": "true"}, "nobody would lift", id="gates that stay"
        ),
        pytest.param({"docs.baseUrl": "docs"}, "/docs/baseUrl", id="an address that is none"),
        pytest.param({"page.grafanaUrl": "javascript:x"}, "/page/grafanaUrl", id="an address with a script"),
        pytest.param(
            {"page.prometheusUrl": "file:///etc"}, "/page/prometheusUrl", id="a file in place of a Prometheus"
        ),
        pytest.param({"controller.gatePods": "true"}, "nobody would lift", id="gates of the controllers that stay"),
    ],
)
def test_values_are_refused(values, message):
    with pytest.raises(chart.HelmRefused, match=re.escape(message)):
        rendered(values)


def test_every_program_learns_where_the_docs_are():
    values = {**EVERYTHING, "nominator.failOpenAfterSeconds": "600", "docs.baseUrl": "https://docs.example.com"}

    def addresses(found):
        text = yaml.safe_dump_all(found)
        return {
            name: sum(name in str(each) and FLAG in str(each) for each in found)
            for name in (
                *(f"turnout-{program}" for program in ("extender", "nominator", "autoscaler", "controller", "page")),
                "CronJob",
            )
            if name in text
        }

    assert all(addresses(rendered(values)).values())
    assert not any(addresses(rendered({**values, "docs.baseUrl": ""})).values())


def test_the_extender_and_the_nominator_plan_by_the_same_order_of_queues():
    plain = rendered({"nominator.enabled": "true"})
    values = {"nominator.enabled": "true", "nominator.strictQueues": "{team/train,low}", "nominator.readQueues": "true"}
    for name in ("turnout-extender", "turnout-nominator"):
        more = set(container_of(rendered(values), name)["args"]) - set(container_of(plain, name)["args"])
        assert more == {"--strict-queue=team/train", "--strict-queue=low", "--read-queues"}
        listed = [
            ("list", "clusterqueues.kueue.x-k8s.io") in rights_of(found, name) for found in (rendered(values), plain)
        ]
        assert listed == [True, False]


def test_only_who_wishes_it_gives_the_right_to_evict():
    gates = {"nominator.enabled": "true", "nominator.gates": "true"}
    for values, preempts in ((gates, False), ({**gates, "nominator.preempt": "true"}, True)):
        found = rendered(values)
        assert ("--preempt" in container_of(found, "turnout-nominator")["args"]) is preempts
        roles = {each["metadata"]["name"] for each in found if each["kind"] == "ClusterRole"}
        assert ("turnout-nominator-evicts" in roles) is preempts
        names = {(each["kind"], each["metadata"]["name"]) for each in found}
        assert (("ConfigMap", "turnout-reservations") in names) is preempts
    assert rights_of(found, "turnout-nominator-evicts") == {("create", "pods/eviction")}
    (rule,) = named(found, "Role", "turnout-nominator-reservations")["rules"]
    assert (rule["resourceNames"], rule["verbs"]) == (["turnout-reservations"], ["patch"])
    with pytest.raises(chart.HelmRefused, match=r"nominator.preempt needs nominator.gates"):
        rendered({"nominator.enabled": "true", "nominator.preempt": "true"})


def test_failing_open_is_chosen_and_bounded():
    gates = {"nominator.enabled": "true", "nominator.gates": "true"}
    assert not [each for each in rendered(gates) if each["kind"] == "CronJob"]
    found = named(
        rendered({**gates, "nominator.failOpenAfterSeconds": "600"}), "CronJob", "turnout-nominator-fails-open"
    )
    (container,) = found["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    lease = "--lease=turnout-system/turnout-nominator"
    assert container["args"] == ["--all", "--older-than=600", "--if-unplaced", lease]
    with pytest.raises(chart.HelmRefused, match="failOpenAfterSeconds"):
        rendered({**gates, "nominator.failOpenAfterSeconds": "30"})


BETA = "--api-versions=admissionregistration.k8s.io/v1beta1/MutatingAdmissionPolicy"


@pytest.mark.parametrize(
    ("by", "flag_value", "is_rendered"),
    [
        pytest.param("auto", ["--kube-version=1.30.0"], "webhook v1", id="old: the webhook"),
        pytest.param("auto", ["--kube-version=1.35.4"], "webhook v1", id="a plain 1.35 refuses v1beta1: the webhook"),
        pytest.param("auto", ["--kube-version=1.35.4", BETA], "policy v1beta1", id="v1beta1 is switched on"),
        pytest.param("auto", ["--kube-version=1.36.0"], "policy v1", id="1.36 serves it"),
        pytest.param("auto", ["--kube-version=1.37.2"], "policy v1", id="and 1.37"),
        pytest.param("policy", ["--kube-version=1.34.0"], "policy v1beta1", id="the policy is asked for"),
        pytest.param("webhook", ["--kube-version=1.37.2"], "webhook v1", id="the webhook is asked for"),
    ],
)
def test_what_gates_pods_is_what_the_api_server_takes(by, flag_value, is_rendered):
    found = rendered({**GATES, "nominator.gatePodsBy": by}, *flag_value)
    kinds = {"MutatingAdmissionPolicy": "policy", "MutatingWebhookConfiguration": "webhook"}
    which = [
        f"{kinds[each['kind']]} {each['apiVersion'].rpartition('/')[2]}" for each in found if each["kind"] in kinds
    ]
    assert which == [is_rendered]
    arguments = container_of(found, "turnout-nominator")["args"]
    assert ("--tls-cert=/tls/tls.crt" in arguments) is (is_rendered == "webhook v1")


def test_policy_and_webhook_ask_for_the_same_pods():
    found = rendered({**GATES, "nominator.gatePodsBy": "policy"}, "--kube-version=1.36.0")
    policy = named(found, "MutatingAdmissionPolicy", "turnout-nominator-gates-pods")["spec"]
    found = rendered({**GATES, "nominator.gatePodsBy": "webhook"})
    (webhook,) = named(found, "MutatingWebhookConfiguration", "turnout-nominator-gates-pods")["webhooks"]
    assert webhook["matchConditions"] == policy["matchConditions"]
    assert webhook["namespaceSelector"] == policy["matchConstraints"]["namespaceSelector"]
    assert (webhook["failurePolicy"], webhook["timeoutSeconds"]) == ("Ignore", 2)


def test_the_policy_is_refused_where_no_version_of_it_exists():
    with pytest.raises(chart.HelmRefused, match=r"gatePodsBy=policy needs Kubernetes 1\.34 or newer"):
        rendered({**GATES, "nominator.gatePodsBy": "policy"}, "--kube-version=1.33.0")
    with pytest.raises(chart.HelmRefused, match="caBundle is needed"):
        rendered({**GATES, "nominator.gatePodsBy": "webhook", "extender.tls.create": "false"})


def test_every_value_is_in_the_schema_and_nothing_else_is():
    values = yaml.safe_load((chart.ROOT / chart.CHART / "values.yaml").read_text())
    schema = json.loads((chart.ROOT / chart.CHART / "values.schema.json").read_text())

    def same(given, of, at):
        for key, each in given.items():
            inner = of["properties"][key]
            inner = schema["$defs"][inner["$ref"].rpartition("/")[2]] if "$ref" in inner else inner
            if isinstance(each, dict) and "properties" in inner:
                assert inner["additionalProperties"] is False, at
                optional = at and key in ("image", "resources", "issuerRef")  # maps of which an admin names some keys
                assert {*each} <= {*inner["properties"]}, f"{at}.{key}"
                assert optional or {*each} == {*inner["properties"]}, f"{at}.{key}"
                same(each, inner, f"{at}.{key}")

    assert {*schema["properties"]} == {*values, "global"}
    same(values, schema, "")


def test_every_value_has_a_comment():
    def leaves(given, above=""):
        for key, each in given.items():
            path = f"{above}{key}"
            flat = not isinstance(each, dict) or not each or path in groups
            yield from (path,) if flat else leaves(each, f"{path}.")

    comments = {key: (text, json.loads(default)) for key, text, default in chart.values()}
    groups = {key for key, (_, default) in comments.items() if isinstance(default, dict)}
    given = yaml.safe_load((chart.ROOT / chart.CHART / "values.yaml").read_text())
    assert {*leaves(given)} == {*comments}


ISSUER = {"certManager.issuerRef.name": "ours", "certManager.issuerRef.kind": "ClusterIssuer"}


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        pytest.param({}, {"Secret"}, id="helm makes a CA"),
        pytest.param({"certManager.enabled": "true"}, {"Certificate", "Issuer"}, id="cert-manager makes one"),
        pytest.param({"certManager.enabled": "true", **ISSUER}, {"Certificate"}, id="an issuer of one's own signs"),
        pytest.param({"extender.tls.create": "false"}, set(), id="the Secrets are there"),
    ],
)
def test_certificates(values, kinds):
    found = rendered(values)
    assert {each["kind"] for each in found} & {"Secret", "Certificate", "Issuer"} == kinds
    (volume,) = (
        each["secret"]["secretName"]
        for each in named(found, "Deployment", "turnout-extender")["spec"]["template"]["spec"]["volumes"]
        if "secret" in each
    )
    secrets = {each["metadata"]["name"] for each in found if each["kind"] == "Secret"}
    secrets |= {each["spec"]["secretName"] for each in found if each["kind"] == "Certificate"}
    assert not kinds or volume in secrets


def test_certificates_are_valid_for_a_year_and_their_ca_for_five():
    found = {each["metadata"]["name"]: each for each in rendered() if each["kind"] == "Secret"}
    days = {}
    for name, secret in found.items():
        certificate = x509.load_pem_x509_certificate(base64.b64decode(secret["data"]["tls.crt"]))
        until = datetime.fromisoformat(secret["metadata"]["annotations"]["turnout.dev/valid-until"])
        assert abs(until - certificate.not_valid_after_utc) < timedelta(hours=1)
        days[name] = (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days
    assert days == {"turnout-ca": 1825, "turnout-extender-tls": 365, "turnout-scheduler-tls": 365}
    certificates = [each for each in rendered({"certManager.enabled": "true"}) if each["kind"] == "Certificate"]
    durations = {each["spec"]["secretName"]: each["spec"]["duration"] for each in certificates}
    assert durations == {name: f"{24 * each}h" for name, each in days.items()}


GUARD = "turnout-verdicts-of-the-pod-itself-only"


@pytest.mark.parametrize(
    ("values", "guarded"),
    [
        pytest.param({}, True, id="by default"),
        pytest.param({"autoscaler.taintNodes": "true"}, True, id="where nodes are tainted"),
        pytest.param({"autoscaler.guardVerdicts": "false"}, False, id="unless an admin switches it off"),
        pytest.param({"autoscaler.enabled": "false"}, False, id="without an autoscaler nobody believes verdicts"),
    ],
)
def test_verdicts_on_nodes_are_guarded(values, guarded):
    policies = {each["metadata"]["name"] for each in rendered(values) if each["kind"] == "ValidatingAdmissionPolicy"}
    assert (GUARD in policies) is guarded


def test_every_account_has_the_rights_that_the_manifests_give_it():
    """The manifests are rendered from the chart, and tests/deploy/test_manifests.py lists their rights."""
    everything = {each["metadata"]["name"]: {*rights(each)} for each in rendered(EVERYTHING) if "rules" in each}
    assert not [name for name, given in everything.items() if any("*" in str(right) for right in given)]
    assert everything["turnout-scheduler"] == everything["turnout-extender"]
    writes = {verb for verb, _ in everything["turnout-extender"]} - {"get", "list", "watch"}
    assert writes == {"create", "patch"}  # Events
    assert {of for verb, of in everything["turnout-extender"] if verb in writes} == {"events"}


@pytest.mark.contract("MS-04", "MS-05")
@pytest.mark.asyncio
async def test_one_file_installs_the_job_controllers(control_plane):
    """Apply it by kubectl alone, twice: namespace, definitions, roles, and a Deployment of each."""
    file = chart.ROOT / chart.MANIFESTS / "controllers/install.yaml"
    argv = [cache.binary("kubectl"), "--kubeconfig", control_plane.kubeconfig, "apply", "-f", file]
    for word in ("created", "unchanged"):
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        # kubectl replaces the selector of a PodDisruptionBudget each time, whoever wrote it.
        lines = [line for line in done.stdout.splitlines() if "poddisruptionbudget" not in line]
        assert len(lines) > 12
        assert [line for line in lines if not line.endswith(word)] == []
    async with control_plane.api() as api:
        await api.get("/apis/apps/v1/namespaces/turnout-system/deployments/turnout-controller-manager")
        served = await api.get("/apis/mindspore.gitee.com/v1")
        assert "msjobs" in {each["name"] for each in served["resources"]}


@pytest.mark.contract("MS-06")
@pytest.mark.asyncio
async def test_make_deploy_takes_another_image(control_plane, tmp_path):
    variables = [f"HELM={cache.binary('helm')}", "IMG=r.io/p/ours:7", "NAMESPACE=gpu-team"]
    env = {"HOME": str(tmp_path), "KUBECONFIG": str(control_plane.kubeconfig), "PATH": os.environ["PATH"]}
    argv = ["make", "deploy", *variables, f"ARGS={chart.DLROVER}"]
    done = await asyncio.to_thread(
        subprocess.run, argv, cwd=chart.ROOT, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    async with control_plane.api() as api:
        found = (await api.get("/apis/apps/v1/namespaces/gpu-team/deployments"))["items"]
        assert images([{**each, "kind": "Deployment"} for each in found]) == {"r.io/p/ours:7"}
        arguments = [
            word
            for each in found
            for pod in each["spec"]["template"]["spec"]["containers"]
            for word in pod.get("args", ())
        ]
        assert "--master-image=r.io/p/ours:7" in arguments


@pytest.mark.parametrize(
    ("metric", "is_kept"),
    [
        pytest.param("turnout_launcher_rounds_total", True, id="a series of a launcher"),
        pytest.param("turnout_job_time_seconds_total", True, id="the goodput of a job"),
        pytest.param("turnout_job_unsaved_seconds", True, id="its unsaved time"),
        pytest.param("turnout_queue_gpus", False, id="a series of the autoscaler"),
        pytest.param("turnout_job_reason", False, id="a state of a job that the autoscaler tells"),
        pytest.param("up_turnout_launcher_rounds_total", False, id="a name that only contains ours"),
    ],
)
def test_a_tenants_page_gives_series_of_a_launcher_only(metric, is_kept):
    monitor = named(rendered({"monitoring.launchers.podMonitor": "true"}), "PodMonitor", "turnout-launchers")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    keep, _ = endpoint["metricRelabelings"]
    assert (keep["action"], keep["sourceLabels"]) == ("keep", ["__name__"])
    assert bool(re.fullmatch(keep["regex"], metric)) is is_kept


@pytest.mark.parametrize(
    ("cluster", "dropped"),
    [
        pytest.param("", {"exported_job_name", "exported_pod", "run", "queue", "cluster"}, id="without a cluster"),
        pytest.param("east", {"exported_job_name", "exported_pod", "run", "queue"}, id="with a cluster of our own"),
    ],
)
def test_a_tenants_labels_do_not_name_another_job(cluster, dropped):
    values = {"monitoring.launchers.podMonitor": "true", "monitoring.launchers.cluster": cluster}
    spec = named(rendered(values), "PodMonitor", "turnout-launchers")["spec"]
    (endpoint,) = spec["podMetricsEndpoints"]
    assert (endpoint["honorLabels"], spec["sampleLimit"]) == (False, 2000)
    targets = {each["targetLabel"]: each for each in endpoint["relabelings"]}
    assert targets["job_namespace"]["sourceLabels"] == ["__meta_kubernetes_namespace"]
    sources = {source for each in endpoint["relabelings"] for source in each.get("sourceLabels", ())}
    assert all(source.startswith("__meta_kubernetes_") for source in sources)  # tests/deploy/test_scrape_targets.py
    assert {"job_kind", "job_name"} < targets.keys()
    assert targets.get("cluster", {"replacement": ""})["replacement"] == cluster
    drop = endpoint["metricRelabelings"][1]
    labels = {"exported_job_name", "exported_pod", "run", "queue", "cluster", "rank", "reason", "job_name"}
    assert drop["action"] == "labeldrop"
    assert {label for label in labels if re.fullmatch(drop["regex"], label)} == dropped
