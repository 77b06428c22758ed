"""GPUs by their resources: the same names in the autoscaler and the extender, and sums over several makes of them."""

import json

import pytest

from tests.autoscaler.observe.test_job_pods import pod, view_of, worker_names
from tests.jobs.test_kinds import indexed
from turnout.autoscaler.model import gpu_limit, largest_gpu_amount, remaining_gpus, total_gpus
from turnout.autoscaler.reporting.queue_status import queue_configmaps
from turnout.autoscaler.reporting.usage import gpus_of
from turnout.autoscaler.settings import read_settings
from turnout.jobs.queues.model import QueueSpec
from turnout.kube import labels
from turnout.kube.objects import Resources
from turnout.scheduler_ext.cluster.member import member_of
from turnout.scheduler_ext.settings import Settings, extender_settings

MAKES = ("nvidia.com/gpu", "metax-tech.com/gpu", "amd.com/gpu")
TWO = MAKES[:2]


@pytest.mark.contract("DL-20")
def test_the_autoscaler_and_the_extender_count_the_same_by_default():
    assert read_settings([]).gpu_resource == Settings().gpu_resource == labels.GPU_RESOURCES
    assert {*MAKES} <= {*labels.GPU_RESOURCES}


@pytest.mark.contract("DL-20")
def test_other_resources_count_by_one_flag_in_both():
    argv = ["--gpu-resource", "example.com/a", "--gpu-resource", "example.com/b"]
    assert (
        read_settings(argv).gpu_resource == extender_settings(argv).gpu_resource == ("example.com/a", "example.com/b")
    )


def of_make(make, gpus=2):
    one_pod = pod("j-0-x", gpus=gpus, **{labels.JOB_INDEX: "0"})
    one_pod.spec.containers[0].resources = Resources(requests={make: str(gpus)}, limits={make: str(gpus)})
    return one_pod


@pytest.mark.contract("DL-20")
@pytest.mark.parametrize("make", MAKES)
def test_a_gpu_of_any_make_counts_alike_in_both(make):
    raw = indexed(1, {labels.QUEUE: "q"})
    raw["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {make: "2"}}
    view = view_of(("Job", raw))
    view.queues.put(QueueSpec("q", capability={make: 8}))
    view.put_pod(of_make(make))
    (only,) = worker_names(view)
    names = read_settings([]).gpu_resource
    document = json.loads(queue_configmaps(view.observation(0.0), [], names, dry_run=True)["q"]["status"])["gpus"]
    assert (document["used"], document["limit"], document["free"]) == (2, 8, 6)
    assert (gpus_of(only.job.shape, names), member_of(of_make(make), Settings().gpu_resource).gpus) == (2, 2)


@pytest.mark.parametrize(
    ("limits", "used", "allowed", "left"),
    [
        pytest.param({}, {TWO[0]: 3}, None, None, id="no bound"),
        pytest.param({TWO[0]: 8}, {TWO[0]: 3}, 8, 5, id="one bound"),
        pytest.param({TWO[0]: 8, TWO[1]: 4}, {TWO[0]: 3, TWO[1]: 4}, 12, 5, id="both bounds"),
        pytest.param({TWO[0]: 8}, {TWO[0]: 3, TWO[1]: 99}, 8, 5, id="one bound, and another make in use"),
        pytest.param({TWO[0]: 8, TWO[1]: 4}, {TWO[0]: 10, TWO[1]: 1}, 12, 3, id="one used beyond its bound"),
        pytest.param({"cpu": 8}, {"cpu": 3}, None, None, id="what is no GPU"),
    ],
)
def test_what_limits_of_several_makes_allow_and_leave_is(limits, used, allowed, left):
    assert (gpu_limit(limits, TWO), remaining_gpus(limits, used, TWO)) == (allowed, left)


def test_amounts_are_added_and_headroom_is_not():
    amounts = {TWO[0]: 3, TWO[1]: 4, "cpu": 9}
    assert (total_gpus(amounts, TWO), largest_gpu_amount(amounts, TWO), largest_gpu_amount({}, TWO)) == (7, 4, 0)


def test_headroom_is_kept_of_every_make():
    policy = read_settings(["--headroom-gpus", "4", "--gpu-resource", TWO[0], "--gpu-resource", TWO[1]]).policy()
    assert policy.headroom == dict.fromkeys(TWO, 4)
