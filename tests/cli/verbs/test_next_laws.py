"""A law of `turnout why`: whoever does what it advises, again and again, gets the job started."""

import copy

import pytest

from tests.autoscaler.world import GPU
from tests.cli.verbs.why_world import JOBS, MAPS, QUEUES, Drawn, Served
from turnout.autoscaler.reporting.why import Chain
from turnout.autoscaler.settings import Settings
from turnout.cli.verb_support.autoscaler_view import look
from turnout.cli.verbs.why import explanation_of
from turnout.kube import labels

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
TOGETHER = 6  # clusters of one test
QUICK, SEEDS = 24, 60  # clusters of `make test`, and of `make test-slow` beside them
FIRSTS = [
    *range(0, QUICK, TOGETHER),
    *(pytest.param(at, marks=pytest.mark.slow) for at in range(QUICK, SEEDS, TOGETHER)),
]


def mine(drawn, name):
    """The pods of a job or gang."""
    return [pod for pod in drawn.items[PODS] if pod["metadata"]["name"].rpartition("-")[0] in (name, f"{name}-w")]


def only_job(drawn, name):
    """All others end."""
    drawn.items[JOBS] = [job for job in drawn.items[JOBS] if job["metadata"]["name"] == name]
    drawn.items[PODS] = mine(drawn, name)


def opened(drawn, name):
    """The queues' admin opens them."""
    for queue in drawn.items[QUEUES]:
        queue["status"] = {"state": "Open"}


def allowed_more(drawn, name):
    """The queue's admin raises its limit, and leaves no share to others."""
    (mine_,) = {job["spec"]["queue"] for job in drawn.items[JOBS] if job["metadata"]["name"] == name} or {""}
    drawn.items[QUEUES] = [each for each in drawn.items[QUEUES] if each["metadata"]["name"] == mine_]
    for queue in drawn.items[QUEUES]:
        queue["spec"].pop("capability", None)


def tended(drawn, name):
    """The nodes' admin gets them ready."""
    for node in drawn.items[NODES]:
        node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]


def mapped(drawn, name):
    """The admin writes the map."""
    lines = [f"asw-{at // 2} psw-0 10.0.0.{at + 1}" for at in range(len(drawn.items[NODES]))]
    meta = {"name": "node-topology-config", "namespace": "turnout-system", "uid": "m", "resourceVersion": "1"}
    drawn.items[MAPS].append({"metadata": meta, "data": {"topology_config": "\n".join(lines)}})


def widened(drawn, name):
    """Its owner lets it span any switches."""
    of_job = [job["spec"]["tasks"][0]["template"] for job in drawn.items[JOBS] if job["metadata"]["name"] == name]
    for each in (*drawn.items[JOBS], *of_job, *mine(drawn, name)):
        for key in (labels.TOPOLOGY, labels.TOPOLOGY_TIER):
            (each["metadata"].get("annotations") or {}).pop(key, None)


def lowered(drawn, name):
    """Its owner states a min of 1, and the pods above it go."""
    for job in drawn.items[JOBS]:
        if job["metadata"]["name"] == name:
            job["spec"]["minAvailable"] = job["spec"]["tasks"][0]["minAvailable"] = 1
            for key in (labels.MIN_WORKERS, labels.MAX_WORKERS):
                (job["metadata"].get("annotations") or {}).pop(key, None)
            job["spec"]["tasks"][0]["replicas"] = 1
    for pod in mine(drawn, name):
        notes = pod["metadata"].get("annotations") or {}
        if labels.KOORD_MIN in notes:
            notes[labels.KOORD_MIN] = "1"
        if not pod["metadata"]["name"].endswith("-0"):
            drawn.items[PODS].remove(pod)


def completed(drawn, name):
    """Whoever creates its pods creates all of them."""
    pods = mine(drawn, name)
    for index in range(12 if pods else 0):
        pod = copy.deepcopy(pods[0])
        meta = pod["metadata"]
        meta["name"] = meta["uid"] = f"{meta['name'].rpartition('-')[0]}-{index}"
        if labels.VOLCANO_TASK_INDEX in meta.get("labels", {}):
            meta["labels"][labels.VOLCANO_TASK_INDEX] = str(index)
        minimum = int((meta.get("annotations") or {}).get(labels.KOORD_MIN) or _least(drawn, name))
        if index < minimum and meta["name"] not in {each["metadata"]["name"] for each in pods}:
            drawn.items[PODS].append(pod)


def completed_from(drawn, job):
    """The job's controller creates its pods."""
    name, task = job["metadata"]["name"], job["spec"]["tasks"][0]
    asks = task["template"]["spec"]["containers"][0]["resources"]
    gpus = (asks.get("requests") or asks["limits"])[GPU]
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": name, "uid": name, "controller": True}
    for index in range(job["spec"]["minAvailable"]):
        marks = {labels.VOLCANO_JOB: name, labels.VOLCANO_TASK_SPEC: "w", labels.VOLCANO_TASK_INDEX: str(index)}
        notes = task["template"]["metadata"].get("annotations") or {}
        drawn.put_pod(f"{name}-w-{index}", int(gpus), labels=marks, annotations=notes, ownerReferences=[owner])


def _least(drawn, name):
    return next(job["spec"]["minAvailable"] for job in drawn.items[JOBS] if job["metadata"]["name"] == name)


def bound(drawn, name):
    """The scheduler finds nodes for its pods."""
    if not mine(drawn, name):  # its controller goes first
        job = next(job for job in drawn.items[JOBS] if job["metadata"]["name"] == name)
        completed_from(drawn, job)
    free = {node["metadata"]["name"]: int(node["status"]["allocatable"][GPU]) for node in drawn.items[NODES]}
    asks = {pod["metadata"]["name"]: int(_asks(pod)) for pod in drawn.items[PODS]}
    for pod in drawn.items[PODS]:
        if node := pod["spec"].get("nodeName"):
            free[node] -= asks[pod["metadata"]["name"]]
    for pod in mine(drawn, name):
        fit = [node for node, left in free.items() if left >= asks[pod["metadata"]["name"]]]
        if not pod["spec"].get("nodeName") and fit:
            pod["spec"]["nodeName"], pod["status"]["phase"] = fit[0], "Running"
            free[fit[0]] -= asks[pod["metadata"]["name"]]


def _asks(pod):
    return pod["spec"]["containers"][0]["resources"]["requests"][GPU]


# The beginning of the advice, and what it makes people do, one thing after another.
DONE = {
    "Wait until running jobs end, lower its min": (only_job, lowered),
    "Nothing is to be done: it starts once they are gone": (only_job,),
    "Wait a few seconds; if it lasts": (bound,),
    "Lower its min, or ask the queue's admin for a higher limit": (allowed_more, lowered),
    "Lower its min, make its workers smaller, or add nodes": (lowered,),
    "Ask the queue's admin to open it": (opened,),
    "Look at who creates its pods": (completed,),
    "The admin has to look after the nodes": (tended,),
    "The admin writes the map": (mapped,),
    "Raise turnout.dev/topology-tier": (widened,),
}


async def told_of(drawn, key_wanted):
    """Tell of one waiting job, or of all where none is named."""
    settings = Settings()
    view = await look(Served(drawn.items), settings, "default")
    keys = {each.job.key for each in view.observation.jobs} | set(view.gangs)
    explanations = {key: explanation_of(settings, view, key) for key in sorted(keys) if key_wanted in (None, key)}
    return {key: each for key, each in explanations.items() if isinstance(each, Chain) and each.state == "waiting"}


@pytest.mark.asyncio
@pytest.mark.parametrize("first", FIRSTS)
async def test_who_does_what_is_advised_gets_the_job_started(first):
    for seed in range(first, first + TOGETHER):
        for key, chain in (await told_of(Drawn(seed), None)).items():
            drawn, steps = Drawn(seed), []
            while chain is not None:
                (things,) = (things for words, things in DONE.items() if chain.advice.startswith(words))
                repetitions = steps.count(chain.advice)
                assert repetitions < len(things), f"seed {seed}, {key}: the same advice again: {steps}"
                steps.append(chain.advice)
                things[repetitions](drawn, key.name)
                chain = (await told_of(drawn, key)).get(key)
