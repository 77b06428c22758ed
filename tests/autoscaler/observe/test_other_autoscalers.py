"""A job that a HorizontalPodAutoscaler scales is left to it, as long as it does."""

import pytest

from tests.autoscaler.test_cache import job, node, pod
from turnout.autoscaler.cache import Cache
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import JobKey

REASON = "the HorizontalPodAutoscaler {} resizes it, and only one program may change its size"
JOB = ("batch/v1", "Job", "j-u")


@pytest.fixture
def cache():
    cache = Cache(KINDS)
    cache.put_node(node("n"))
    cache.put_job("Job", job(replicas=1))
    return cache


def refused(cache):
    """Why the job is left alone, "" if it is not."""
    (observed_job,) = cache.observation(0.0).jobs
    return observed_job.job.refused


def test_without_one_it_is_resized(cache):
    assert refused(cache) == ""


# What an autoscaler of a namespace scales, and whether that is our job.
REFERENCES = {
    "the job": ("ns", JOB, True),
    "the job in another version of its group": ("ns", ("batch/v2", "Job", "j-u"), True),
    "one of that name in another namespace": ("other", JOB, False),
    "another of the namespace": ("ns", ("batch/v1", "Job", "j-v"), False),
    "another kind": ("ns", ("apps/v1", "Deployment", "j-u"), False),
    "the kind of another group": ("ns", ("batch.volcano.sh/v1alpha1", "Job", "j-u"), False),
    "nothing": ("ns", ("", "", ""), False),
}


@pytest.mark.parametrize(("namespace", "reference", "ours"), REFERENCES.values(), ids=REFERENCES)
def test_it_speaks_for_what_its_reference_names(cache, namespace, reference, ours):
    cache.others.put(namespace, "by-loss", *reference)
    assert refused(cache) == (REASON.format("by-loss") if ours else "")


def test_it_may_come_before_its_job():
    cache = Cache(KINDS)
    cache.others.put("ns", "by-loss", *JOB)
    cache.put_job("Job", job(replicas=1))
    assert refused(cache) == REASON.format("by-loss")


def test_a_job_is_resized_again_once_the_last_is_gone_or_scales_another(cache):
    for name in ("b", "a"):
        cache.others.put("ns", name, *JOB)
    assert refused(cache) == REASON.format("a")
    cache.others.drop("ns", "a")
    assert refused(cache) == REASON.format("b")
    cache.others.put("ns", "b", "batch/v1", "Job", "j-v")
    assert refused(cache) == ""
    cache.others.drop("ns", "never-seen")


def test_a_job_of_a_kind_that_two_groups_have_is_known_by_its_group():
    events = []
    others = Cache(KINDS).others
    others._changed = events.append
    others.put("ns", "h", "ctyun.cn/v1", "PyTorchJob", "bert")
    others.put("ns", "i", "kubeflow.org/v1", "PyTorchJob", "bert")
    assert events == [JobKey("PyTorchJob.ctyun.cn", "ns", "bert"), JobKey("PyTorchJob", "ns", "bert")]


def test_what_was_lent_before_it_came_can_be_taken_and_nothing_is_added(cache):
    """An owner who makes one while his job borrows keeps nothing by it."""
    cache.put_job("Job", job(replicas=4))
    for index in range(4):
        cache.put_pod(pod(index, on="n"))
    cache.observation(0.0)
    cache.others.put("ns", "by-loss", *JOB)
    (observed_job,) = cache.observation(0.0).jobs
    assert (observed_job.job.refused, observed_job.job.bounds.maximum) == ("", 4)
