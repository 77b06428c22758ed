"""The rights that are installed are those that the code needs, and what is written of a job is what may be."""

import copy
import random
from pathlib import Path

import pytest
import yaml

from hack.codegen import chart, fault_report_policy, rbac
from tests.kit.cluster import indexed_job, pytorch_job
from tests.simulator.jobs.world import volcano_job
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.informers import AutoscalerInformers
from turnout.autoscaler.rbac_rules import ANNOTATION_PREFIX, NAMED_CONFIGMAPS, OBSERVE, READ
from turnout.autoscaler.rbac_rules import KINDS as RIGHTS
from turnout.autoscaler.settings import Settings
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import BadJob
from turnout.kube import labels
from turnout.kube.client.clock import RealClock

ROOT = Path(__file__).parents[2]
ACT = ROOT / chart.MANIFESTS / "autoscaler/act"


def group_and_resource(path):
    """Split a path: /api/v1/nodes is ("", "nodes"), /apis/batch/v1/jobs is ("batch", "jobs")."""
    parts = path.strip("/").split("/")
    return ("" if parts[0] == "api" else parts[1], parts[-1])


def test_every_watch_of_the_autoscaler_may_be_read():
    readable = {(rule.group, resource) for rule in OBSERVE if set(READ) <= {*rule.verbs} for resource in rule.resources}
    default = Settings()
    informers = AutoscalerInformers(Cache(KINDS), None, KINDS, RealClock(), random.Random(1), default.configmaps())
    watched = {group_and_resource(reflector.path) for reflector in informers.reflectors.values()}
    assert len(watched) > len(KINDS)
    assert watched - readable == {("", "configmaps")}  # three of them, which follow
    (given,) = NAMED_CONFIGMAPS
    assert {*default.configmaps()} == {f"{chart.NAMESPACE}/{name}" for name in given.names}


def of_rights(kind):
    return RIGHTS[kind].group, RIGHTS[kind].resource


def test_every_kind_has_its_rights():
    assert {name: group_and_resource(kind.path) for name, kind in KINDS.items()} == {k: of_rights(k) for k in RIGHTS}


def leaves(value, at=""):
    """The fields of a patch, lists as []."""
    if isinstance(value, dict) and value:
        return {leaf for key, each in value.items() for leaf in leaves(each, f"{at}.{key}" if at else key)}
    if isinstance(value, list) and value:
        return {leaf for each in value for leaf in leaves(each, f"{at}[]")}
    return {at}


def changed(was, body, at=""):
    """The fields in which a merge patch differs from what is there."""
    if isinstance(was, dict) and isinstance(body, dict):
        found = (changed(was.get(key), each, f"{at}.{key}" if at else key) for key, each in body.items())
        return set().union(*found)
    if isinstance(was, list) and isinstance(body, list) and len(was) == len(body):
        return set().union(*(changed(a, b, f"{at}[]") for a, b in zip(was, body, strict=True)))
    return set() if was == body else leaves(body, at)


TEMPLATE = {"spec": {"containers": [{"name": "m", "image": "i"}]}}
WORKERS = {"groupName": "g", "replicas": 2, "minReplicas": 2, "maxReplicas": 8, "template": TEMPLATE}
HEAD = {"groupName": "h", "template": TEMPLATE}
JOBS = {
    "Job": indexed_job("a", 2),
    "PyTorchJob": pytorch_job("a", 2, maximum=4),
    "PyTorchJob.ctyun.cn": pytorch_job("a", 2, maximum=4),
    "MSJob": {
        "spec": {
            "enableDynamicWorker": True,
            "msReplicaSpecs": {n: {"replicas": k, "template": TEMPLATE} for n, k in (("Scheduler", 1), ("Worker", 2))},
        }
    },
    "VolcanoJob": volcano_job(minimum=2),
    "MPIJob": {
        "spec": {
            "mpiReplicaSpecs": {n: {"replicas": k, "template": TEMPLATE} for n, k in (("Launcher", 1), ("Worker", 2))}
        }
    },
    "RayCluster": {"spec": {"headGroupSpec": HEAD, "workerGroupSpecs": [WORKERS]}},
    "LeaderWorkerSet": {"spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 1, "workerTemplate": TEMPLATE}}},
    "ElasticJob": {"spec": {"replicaSpecs": {"worker": {"replicas": 2, "template": TEMPLATE}}}},
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if RIGHTS[kind].sizes is not None])
def test_a_resize_changes_only_allowed_fields_and_our_annotations(kind):
    job = copy.deepcopy(JOBS[kind])
    meta = {"name": "a", "namespace": "default", "uid": "u", **job.get("metadata", {}), "resourceVersion": "7"}
    job["metadata"] = {**meta, "annotations": {labels.MIN_WORKERS: "2", labels.MAX_WORKERS: "4"}}
    change = KINDS[kind].change(job, 3, ("a-1",))
    assert (change.method, group_and_resource(change.path.rpartition("/")[0])) == ("PATCH", of_rights(kind))
    resized = changed(job, change.body)
    fields = {field for field in resized if not field.startswith(f"metadata.annotations.{ANNOTATION_PREFIX}")}
    assert all(any(f"{field}.".startswith(f"{size}.") for size in RIGHTS[kind].sizes) for field in fields)
    assert bool(fields) == bool(RIGHTS[kind].sizes)
    resources = {group_and_resource(then.path) for then in (change.then,) if then is not None}
    assert resources == {(RIGHTS[kind].group, resource) for resource in RIGHTS[kind].creates}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if RIGHTS[kind].sizes is None])
def test_a_kind_without_the_right_to_be_resized_never_is(kind):
    with pytest.raises(BadJob, match="cannot be resized"):
        KINDS[kind].change({}, 3)


def test_the_files_are_those_that_the_code_writes():
    files = rbac.files()
    assert {path: (ROOT / rbac.FOLDER / path).read_text() for path in files} == files


def test_the_policy_that_guards_verdicts_is_the_one_that_the_code_writes():
    files = fault_report_policy.files()
    assert {path: (ROOT / path).read_text() for path in files} == files


def test_who_believes_fault_reports_guards_them_unless_an_admin_says_no():
    installed = yaml.safe_load_all((ROOT / chart.MANIFESTS / "autoscaler/base/autoscaler.yaml").read_text())
    guards = {each["kind"]: each["spec"] for each in installed if each["metadata"]["name"] == fault_report_policy.NAME}
    (rule,) = guards["ValidatingAdmissionPolicy"]["matchConstraints"]["resourceRules"]
    assert {"pods", "pods/status"} <= {*rule["resources"]}
    (where,) = guards["ValidatingAdmissionPolicyBinding"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert (where["operator"], where["values"]) == ("NotIn", ["false"])


def test_every_kind_that_is_resized_has_a_file_that_acting_installs():
    files = {f"resize-{name.lower()}.yaml" for name, kind in RIGHTS.items() if kind.writes}
    assert {file.name for file in ACT.glob("resize-*.yaml")} == files
    listed = yaml.safe_load((ACT / "kustomization.yaml").read_text())["resources"]
    assert listed == ["../base", "gang-mins.yaml", *sorted(files)]


def test_a_role_of_one_kind_gives_nothing_of_another():
    given = {
        name: {(rule.group, each) for rule in kind.writes for each in rule.resources} for name, kind in RIGHTS.items()
    }
    every = [right for rights in given.values() for right in rights]
    assert len(every) == len({*every})
    assert all(group == RIGHTS[name].group for name, rights in given.items() for group, _ in rights)
