"""The job to which the series of a pod's launcher belong. tests/deploy/test_scrape_targets.py asks Prometheus."""

import pytest

from tests.jobs.scraped_pods import NAMESPACE, PODS
from turnout.jobs.kinds.scrape_target import scrape_key
from turnout.jobs.model import JobKey


@pytest.mark.parametrize(("pod", "job"), PODS.values(), ids=PODS)
def test_the_job_of_a_scraped_pod(pod, job):
    assert scrape_key(pod) == JobKey(job[0], NAMESPACE, job[1])
