"""Worker pods of DLRover name their ElasticJob as owner and not as controller: they count all the same.

Source: DLRover's pod_scaler; docs/facts/job-kinds.md 1.1.
"""

import pytest

from turnout.autoscaler.observe import job_pods
from turnout.kube.objects import ObjectMeta, OwnerReference, Pod

OWNER = OwnerReference(kind="ElasticJob", name="bert", uid="job", controller=False)


def counted_pods(**more):
    """The uids of the owners that may speak for a pod."""
    meta = {"labels": {"elasticjob.dlrover/name": "bert"}, "owner_references": [OWNER], **more}
    pod = Pod(metadata=ObjectMeta(name="bert-edljob-worker-0", namespace="ns", uid="pod", **meta))
    return [ref.uid for ref in job_pods.with_owners(pod, (), {}).metadata.owner_references]


@pytest.mark.parametrize(
    ("more", "uids"),
    [
        pytest.param({}, ["job"], id="its labels name the job that it names as owner"),
        pytest.param({"labels": {"elasticjob-name": "bert"}}, ["job"], id="older masters have another label"),
        pytest.param({"labels": {}}, [], id="no label does"),
        pytest.param({"labels": {"elasticjob.dlrover/name": "other"}}, [], id="its labels name another job"),
        pytest.param(
            {"owner_references": [OwnerReference(kind="Job", name="bert", uid="job", controller=False)]},
            [],
            id="another kind that is no controller",
        ),
    ],
)
def test_whose_a_pod_of_dlrovers_master_is(more, uids):
    assert counted_pods(**more) == uids
