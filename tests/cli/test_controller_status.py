"""`turnout why` tells how a job stands with its controller, and what its owner can do."""

import copy

import pytest

from tests.controllers import elasticjobs, test_colossalaijob, test_msjob
from tests.controllers.jobs import NOW_S, job, role
from turnout.cli.controller_status import ControllerReport, JobChildren, JobEvent, JobPod, report_of_controller
from turnout.controllers.kinds.registry import KINDS
from turnout.kube import labels
from turnout.kube.times import rfc3339

NAME = "PyTorchJob/ns/bert"
CREATED = {"type": "Created", "status": "True", "reason": "PyTorchJobCreated"}
QUOTA = 'pods "bert-worker-1" is forbidden: exceeded quota: gpus, used: 8, limited: 8'
BAD = {"replicas": 1, "template": {"spec": {"containers": [{"name": "pytorch"}]}}}


def status_of(raw, *pods, group=None, events=(), kind="PyTorchJob", now_s=NOW_S):
    return report_of_controller(KINDS[kind], raw, NAME, JobChildren(pods, group, tuple(events)), now_s)


def ended(type_, message, run=None):
    condition = {"type": type_, "status": "True", "message": message, "lastTransitionTime": rfc3339(NOW_S - 300)}
    return job(worker=role(1), run=run, status={"conditions": [CREATED, condition]})


def begun(raw=None, roles=None, **status):
    raw = raw or job(worker=role(2))
    return {**raw, "status": {"conditions": [CREATED], "replicaStatuses": roles or {}, **status}}


def with_meta(raw, **meta):
    return {**raw, "metadata": {**raw["metadata"], **meta}}


def runs(count, role="worker"):
    return [JobPod(role, index, "Running") for index in range(count)]


@pytest.mark.parametrize(
    ("raw", "text", "remedy"),
    [
        pytest.param(
            with_meta(begun(), deletionTimestamp=rfc3339(NOW_S)),
            "it is being deleted",
            "finalizers",
            id="it goes",
        ),
        pytest.param(
            begun(job(worker=role(1), run={"managedBy": "kueue.x-k8s.io/multikueue"})),
            "it is left to kueue.x-k8s.io/multikueue",
            "ask that controller",
            id="one that another controller has",
        ),
        pytest.param(
            with_meta(job(worker=role(1)), creationTimestamp=rfc3339(NOW_S - 5)),
            "no controller has looked at it yet",
            "wait",
            id="a new one",
        ),
        pytest.param(
            with_meta(job(worker=role(1)), creationTimestamp=rfc3339(NOW_S - 60)),
            "no controller has written its status in 60 s",
            "--kinds PyTorchJob",
            id="one without a controller",
        ),
        pytest.param(
            with_meta(job(worker=BAD), creationTimestamp=rfc3339(NOW_S - 60)),
            "it will be refused: spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].image is missing",
            "--kinds PyTorchJob",
            id="a wrong one without a controller",
        ),
        pytest.param(
            with_meta(begun(observedGeneration=3), generation=4),
            "its controller has seen generation 3 of 4",
            "its log",
            id="one of which the last change is not seen",
        ),
        pytest.param(
            begun(job(worker=BAD)),
            "its change is not taken: spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].image is missing",
            "mend that field",
            id="one that was made wrong later",
        ),
        pytest.param(
            begun(job(worker=role(1), run={"suspend": True})),
            "it is suspended",
            f"turnout unsuspend {NAME}",
            id="asleep",
        ),
        pytest.param(
            with_meta(begun(job(worker=role(1), run={"suspend": True})), labels={labels.KUEUE_QUEUE: "team-a"}),
            "it is suspended",
            "Kueue lets it go on once its queue team-a has room",
            id="one that Kueue holds",
        ),
    ],
)
def test_without_a_pod_it_says_of(raw, text, remedy):
    found = status_of(raw)
    assert (text in found.text, remedy in found.next) == (True, True), found


@pytest.mark.parametrize(
    ("raw", "remedy"),
    [
        pytest.param(ended("Succeeded", "PyTorchJob bert is successfully completed."), "", id="well"),
        pytest.param(
            ended("Failed", "Job bert has failed because it was active longer than specified deadline"),
            "raise spec.runPolicy.activeDeadlineSeconds",
            id="by its deadline",
        ),
        pytest.param(
            ended("Failed", "Job bert has failed because it has reached the specified backoff limit"),
            "more tries are spec.runPolicy.backoffLimit",
            id="by its limit of tries",
        ),
        pytest.param(ended("Failed", "PyTorchJob bert is failed because 1 ..."), "its pods' logs", id="by its pods"),
        pytest.param(
            {**ended("Failed", "spec.x is wrong"), "spec": job(worker=BAD)["spec"]},
            "mend that field and make the job again",
            id="since it was refused",
        ),
    ],
)
def test_of_one_that_has_ended_it_says_why_and_what_helps(raw, remedy):
    found = status_of(raw)
    (last,) = raw["status"]["conditions"][1:]
    assert found.text == f"it has {last['type'].lower()}, 5 min ago: {last['message']}"
    assert (remedy in found.next, bool(found.next)) == (True, bool(remedy))


def refused(text=QUOTA, reason="CreationFailed", ago_s=10):
    return JobEvent(reason, text, NOW_S - ago_s)


@pytest.mark.parametrize(
    ("events", "text", "remedy"),
    [
        pytest.param([refused()], "last 10 s ago: pods", "kubectl describe quota -n ns", id="a quota"),
        pytest.param(
            [refused("denied by policy")], "denied by policy", "ask the administrator of the policy", id="a policy"
        ),
        pytest.param(
            [refused("Pod bert-worker-1 exists and belongs to somebody else", "NameTaken")],
            "Pod bert-worker-1 exists and belongs to somebody else (10 s ago)",
            "another name",
            id="a name that is taken",
        ),
        pytest.param([refused("old", ago_s=99), refused()], "exceeded quota", "describe quota", id="the newest of two"),
    ],
)
def test_of_one_that_lacks_pods_it_says_who_refuses_them(events, text, remedy):
    found = status_of(begun(), *runs(1), events=[*events, refused("something else", "Advice", 1)])
    assert (text in found.text, remedy in found.next) == (True, True), found


def test_who_refuses_a_new_jobs_pods_is_told_before_it_has_a_status():
    raw = with_meta(job(worker=role(2)), creationTimestamp=rfc3339(NOW_S - 60))
    assert status_of(raw, events=[refused()]).next.startswith("kubectl describe quota -n ns")


def test_a_refusal_that_is_over_is_not_told():
    assert status_of(begun(), *runs(2), events=[refused()]) == ControllerReport("2 of 2 pods run")


@pytest.mark.parametrize("group", ["", "Pending"])
def test_a_gang_that_is_not_admitted_is_told_with_its_queue(group):
    raw = begun(job(worker=role(2), run={"schedulingPolicy": {"queue": "q"}}))
    found = status_of(raw, group=group)
    assert found.text == f"its pods are made once its gang is admitted: PodGroup ns/bert is {group or 'new'}"
    assert found.next.startswith("queue q needs room for 2 pods")


@pytest.mark.parametrize(("group", "pods"), [("Inqueue", ()), ("Running", runs(2)), ("Pending", runs(2)), (None, ())])
def test_a_gang_that_is_admitted_holds_nothing_up(group, pods):
    assert status_of(begun(), *pods, group=group) == ControllerReport(f"{len(pods)} of 2 pods run")


def test_a_pause_after_failures_is_told_with_its_end():
    failures = {"Worker": {"quickFailures": {"1": 5}, "lastFailures": {"1": int(NOW_S) - 5}}}
    found = status_of(begun(roles=failures), *runs(1))
    assert found.text == "Worker 1 has failed 5 times in a row and is created again in 15 s"
    assert found.next.startswith(f"turnout logs {NAME} --rank 1")
    both = {"Worker": {"quickFailures": {"0": 6, "1": 5}, "lastFailures": {"0": int(NOW_S), "1": int(NOW_S)}}}
    assert status_of(begun(roles=both)).text.startswith(
        "Worker 0 has failed 6 times in a row and is created again in 40 s; 1 more"
    )


def test_a_deadline_is_told_while_it_runs():
    raw = begun(job(worker=role(2), run={"activeDeadlineSeconds": 600}), startTime=rfc3339(NOW_S - 540))
    assert status_of(raw, *runs(2)) == ControllerReport(
        "2 of 2 pods run; it fails in 60 s by its activeDeadlineSeconds"
    )


INITIALIZED = {"type": "Initialized", "status": "True"}


def test_a_launcher_waits_for_all_workers_then_for_their_ssh_servers():
    raw = test_colossalaijob.job(status={"conditions": [INITIALIZED]})
    status = status_of(raw, *runs(1), JobPod("worker", 1, "Pending", "0/4 nodes are available"), kind="ColossalAIJob")
    assert status == ControllerReport(
        "its launcher is made once all 2 workers run: 1 of them", "0/4 nodes are available"
    )
    asks = status_of(raw, *runs(2), JobPod("launcher", 0, "Running"), kind="ColossalAIJob")
    assert asks == ControllerReport(
        "3 of 3 pods run; its launcher begins once every sshd answers, after 600 s it gives up"
    )


def test_the_pods_of_an_ms_job_wait_for_the_address_of_its_scheduler():
    raw = begun(test_msjob.job())
    assert status_of(raw, kind="MSJob").text == "its pods wait for the address of its Scheduler's Service"
    assert status_of(raw, *runs(1, "scheduler"), kind="MSJob").text == "1 of 5 pods run"


def test_an_elastic_jobs_failures_are_its_own_words():
    raw = copy.deepcopy(elasticjobs.job(elasticjobs.worker(2, restartCount=9)))
    raw["status"] = {"phase": "Running", "conditions": [CREATED]}
    raw["status"]["replicaStatuses"] = {"worker": {"quickFailures": {"1": 4}, "lastFailures": {"1": int(NOW_S)}}}
    found = status_of(raw, *runs(1, "worker"), JobPod("dlrover-master", 0, "Running"), kind="ElasticJob")
    assert found.text == "worker 1 has failed 4 times in a row and is created again in 10 s"


def test_what_a_tenant_wrote_moves_no_cursor():
    found = status_of(begun(), events=[refused("a\x1b[2Jb")])
    assert "\x1b" not in found.text
