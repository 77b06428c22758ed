"""Queue objects with every field that is read, against the schemas that their projects publish."""

import pytest

from tests.jobs.test_queue import GPU
from tests.kit.published_crds import published
from turnout.jobs.queues import koordinator, kueue, volcano
from turnout.jobs.queues.model import Flavor

READ = (
    ("volcano/scheduling.volcano.sh_queues", "v1beta1"),
    ("koordinator/scheduling.sigs.k8s.io_elasticquotas", "v1alpha1"),
    ("kueue/kueue.x-k8s.io_clusterqueues", "v1beta1"),
    ("kueue/kueue.x-k8s.io_clusterqueues", "v1beta2"),
    ("kueue/kueue.x-k8s.io_cohorts", "v1beta1"),
    ("kueue/kueue.x-k8s.io_cohorts", "v1beta2"),
    ("kueue/kueue.x-k8s.io_localqueues", "v1beta2"),
)

FLAVORS = [
    {
        "coveredResources": [GPU],
        "flavors": [
            {"name": "f", "resources": [{"name": GPU, "nominalQuota": "8", "lendingLimit": "2", "borrowingLimit": 3}]}
        ],
    }
]
POLICIES = {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"}
SPECS = {
    "volcano/scheduling.volcano.sh_queues": {
        "capability": {GPU: "8", "cpu": "96"},
        "deserved": {GPU: 4},
        "guarantee": {"resource": {GPU: 2}},
        "parent": "root",
        "weight": 3,
    },
    "koordinator/scheduling.sigs.k8s.io_elasticquotas": {"min": {GPU: 4}, "max": {GPU: "8"}},
    "kueue/kueue.x-k8s.io_clusterqueues": {"resourceGroups": FLAVORS, "preemption": POLICIES, "stopPolicy": "Hold"},
    "kueue/kueue.x-k8s.io_cohorts": {"resourceGroups": FLAVORS, "parentName": "up"},
    "kueue/kueue.x-k8s.io_localqueues": {"clusterQueue": "q", "stopPolicy": "HoldAndDrain"},
}
MORE = {"v1beta1": {"cohort": "c"}, "v1beta2": {"cohortName": "c"}}


def schema(file, version):
    """The schema of a spec as its project publishes it."""
    versions = {each["name"]: each["schema"] for each in published(*file.split("/"))["spec"]["versions"]}
    return versions[version]["openAPIV3Schema"]["properties"]["spec"]


def misfits(document, rule, where="spec"):
    """Find where a value does not meet a structural schema: unknown fields, other types, other words."""
    if rule.get("x-kubernetes-int-or-string"):
        return [] if isinstance(document, int | str) else [where]
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    if not isinstance(document, kinds[rule["type"]]) or document not in rule.get("enum", [document]):
        return [where]
    if isinstance(document, list):
        return [fault for each in document for fault in misfits(each, rule["items"], f"{where}[]")]
    if not isinstance(document, dict):
        return []
    known, others = rule.get("properties", {}), rule.get("additionalProperties")
    return [
        fault
        for key, value in document.items()
        for fault in (
            misfits(value, known.get(key, others), f"{where}.{key}") if key in known or others else [f"{where}.{key}"]
        )
    ]


@pytest.mark.parametrize(("file", "version"), READ, ids=lambda part: part)
def test_the_fields_that_are_read_are_those_of_the_schema(file, version):
    spec = SPECS[file] | (MORE[version] if "clusterqueues" in file else {})
    rule = schema(file, version)
    assert misfits(spec, rule) == []
    assert misfits({**spec, "nonsense": 1}, rule) == ["spec.nonsense"]


def filled_object(file, **more):
    return {"metadata": {"name": "q", "namespace": "n"}, "spec": SPECS[f"{file}"] | more}


def test_every_field_of_them_is_understood():
    queue = volcano.read(filled_object("volcano/scheduling.volcano.sh_queues"))
    assert (queue.capability, queue.deserved, queue.guarantee) == ({GPU: 8, "cpu": 96_000}, {GPU: 4}, {GPU: 2})
    assert (queue.parent, queue.sharing.weight) == ("root", 3)
    quota = koordinator.read(filled_object("koordinator/scheduling.sigs.k8s.io_elasticquotas"))
    assert (quota.deserved, quota.capability) == ({GPU: 4}, {GPU: 8})
    cluster_queue = kueue.read(filled_object("kueue/kueue.x-k8s.io_clusterqueues", cohortName="c"))
    assert (cluster_queue.kueue.flavors, cluster_queue.parent, cluster_queue.open) == (
        (Flavor("f", GPU, 8, 2, 3),),
        "cohort/c",
        False,
    )
    assert (cluster_queue.kueue.preempts, cluster_queue.kueue.reclaims) == ("LowerPriority", True)
    above = kueue.read_cohort(filled_object("kueue/kueue.x-k8s.io_cohorts"))
    assert (above.name, above.parent, above.kueue.flavors) == ("cohort/q", "cohort/up", cluster_queue.kueue.flavors)
    local = filled_object("kueue/kueue.x-k8s.io_localqueues")
    assert (kueue.local_queue(local), kueue.accepts_workloads(local)) == (("n/q", "q"), False)
