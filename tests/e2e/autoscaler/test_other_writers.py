"""Others have a say in a job's size, too: an admission webhook that refuses ours, and a person who scales by hand."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import urllib.request

import pytest
import pytest_asyncio

from hack.controlplane.tools import cache
from tests.e2e.autoscaler.lending import (
    AT_ONCE,
    JOBS,
    PODS,
    clear,
    elastic,
    job_of,
    log_lines,
    pods_bound,
    runs,
    sized,
    start_around,
    start_autoscaler,
    wait_for_decisions,
    written_resizes,
)
from tests.e2e.autoscaler.webhook import Webhook, admission
from tests.e2e.stage import Stage
from tests.kit import cluster
from turnout.kube import labels

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio]


def lends(name, minimum, maximum, **notes):
    return elastic(cluster.indexed_job(name, minimum, gpus=1), minimum, maximum, **notes)


@pytest.fixture(scope="module")
def module_stage(module_plane):
    """Eight GPUs and an autoscaler that acts, for all stories of this module."""
    stage = Stage(module_plane, random.Random(7))
    asyncio.run(stage.build(leaves=1, hosts_per_leaf=4, gpus=2))
    start_around(stage)
    start_autoscaler(stage, *AT_ONCE)
    return stage


@pytest_asyncio.fixture
async def stage(module_stage):
    """The stage of the module, and nothing left on it afterwards."""
    yield module_stage
    await clear(module_stage)


def refusals(stage):
    """How many refusals the autoscaler's metrics page counts, whatever for."""
    with urllib.request.urlopen(f"http://127.0.0.1:{stage.health['autoscaler']}/metrics", timeout=5) as answer:
        page = answer.read().decode().splitlines()
    mine = [line for line in page if line.startswith("turnout_autoscaler_changes_total{") and '"Refused"' in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in mine)


NOBODY = {
    "podAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"app": "nobody"}}, "topologyKey": "kubernetes.io/hostname"}
        ]
    }
}


async def test_room_for_a_pod_that_wants_to_be_near_nobody_returns_to_its_giver(stage):
    """kube-scheduler binds no such pod, and nothing that the pod itself shows tells so beforehand."""
    async with stage.plane.api() as api:
        await api.create(lends("giver", 2, 8))
        await runs(stage, giver=8)
        await api.create(cluster.make_pod("ghost", 1, affinity=NOBODY))
        try:
            await api.until(JOBS, sized("giver", 7), 30.0)
            (why,) = (await api.until(f"{PODS}?fieldSelector=metadata.name%3Dghost", cluster.unschedulable(1))).values()
            assert "nvidia.com/gpu" in why or "pod affinity rules" in why
            await api.until(JOBS, sized("giver", 8), 60.0)
            await api.until(PODS, pods_bound("giver", 8), 30.0)
        finally:
            await api.delete(f"{PODS}/ghost")


async def test_a_pod_whose_volume_is_missing_costs_nobody_a_worker(stage):
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "nobody-made-it"}}
    async with stage.plane.api() as api:
        await api.create(lends("whole", 2, 8))
        await runs(stage, whole=8)
        await api.create(cluster.make_pod("claims", 1, volumes=[volume]))
        try:
            (why,) = (
                await api.until(f"{PODS}?fieldSelector=metadata.name%3Dclaims", cluster.unschedulable(1))
            ).values()
            assert 'persistentvolumeclaim "nobody-made-it" not found' in why
            await api.create(cluster.make_pod("asks", 1))
            await api.until(f"{PODS}?fieldSelector=metadata.name%3Dasks", cluster.bound(1), 30.0)
            shrinks = [(was, size) for job, was, size in written_resizes(stage) if job == "whole" and size < was]
            assert shrinks == [(8, 7)], "room for who can be bound, and for nobody else"
        finally:
            await api.delete(f"{PODS}/claims")
            await api.delete(f"{PODS}/asks")


async def test_a_webhook_that_refuses_growth_is_asked_less_often_and_others_grow(stage):
    webhook = Webhook("firm")
    before = refusals(stage)
    async with admission(stage, webhook), stage.plane.api() as api:
        await api.create(lends("firm", 2, 4))
        await runs(stage, firm=2)
        await stage.eventually(lambda: webhook.asked_s)
        await api.create(lends("soft", 2, 4))
        await runs(stage, firm=2, soft=4)
        await stage.eventually(lambda: len(webhook.asked_s) >= 3, 30.0)
        first_s, _, third_s, *_ = webhook.asked_s
        assert third_s - first_s > 2.5, "1 s after the first refusal, 2 after the second, as the autoscaler sends them"
        await stage.eventually(lambda: refusals(stage) - before == len(webhook.asked_s))
        (event, *_) = await stage.events("AdapterRefused")
        assert event["involvedObject"]["name"] == "firm"
        assert "hands off" in event["message"]
        await api.create(lends("wide", 1, 2))
        await runs(stage, firm=2, soft=4, wide=2)  # no room is kept for who may not grow
        await api.delete(f"{JOBS}/soft?propagationPolicy=Background")
        await runs(stage, firm=2, wide=2)
    await runs(stage, firm=4, wide=2)


async def test_who_may_not_shrink_is_skipped_until_the_webhook_is_gone(stage):
    webhook = Webhook("firm")
    async with stage.plane.api() as api:
        await api.create(lends("soft", 2, 4, **{labels.PRIORITY: "50"}))
        await api.create(lends("firm", 2, 4))  # of less importance: it would give first
        await runs(stage, soft=4, firm=4)
        async with admission(stage, webhook):
            await api.create(cluster.indexed_job("one", 2, gpus=1))
            await runs(stage, soft=2, firm=4, one=2)
            assert webhook.asked_s
        await api.create(cluster.indexed_job("two", 2, gpus=1))
        await runs(stage, soft=2, firm=2, one=2, two=2)


async def scaled(api, name, size):
    """Scale by hand as kubectl would, in one patch that asks for no version, with a label on the way."""
    spec = {"parallelism": size, "completions": size}
    return await api.patch(f"{JOBS}/{name}", {"metadata": {"labels": {"scaled": "by-hand"}}, "spec": spec})


def apply(stage, file, *flags):
    """Run `kubectl apply` on a manifest; give its output and its exit status."""
    argv = [cache.binary("kubectl"), "apply", "-f", file, *flags]
    environment = {"KUBECONFIG": str(stage.plane.kubeconfig), "HOME": str(stage.plane.folder)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


FORCED = ("--server-side", "--force-conflicts")
APPLIED = {  # by job: how it is applied again
    "by-hand": (),
    "by-argo": (*FORCED, "--field-manager=argocd-controller"),
    "by-flux": (*FORCED, "--field-manager=kustomize-controller"),
}


async def test_an_unchanged_manifest_applied_again_leaves_a_job_growing_to_max(stage, tmp_path):
    """GitOps does so every few minutes; each time the job is put back to the size that it was submitted with."""
    for name in APPLIED:
        (tmp_path / name).write_text(json.dumps(lends(name, 1, 2)))
    async with stage.plane.api() as api:
        for time in range(20):
            for code, output in await asyncio.gather(
                *(asyncio.to_thread(apply, stage, tmp_path / name, *flags) for name, flags in APPLIED.items())
            ):
                assert code == 0, output
            if time % 5 == 0:
                for name in APPLIED:
                    await api.until(JOBS, sized(name, 2))
        await runs(stage, **dict.fromkeys(APPLIED, 2))
        for name in APPLIED:
            assert labels.WISH_WORKERS not in (await api.get(f"{JOBS}/{name}"))["metadata"]["annotations"]


async def test_server_side_apply_that_does_not_force_its_size_changes_nothing(stage, tmp_path):
    file = tmp_path / "bert.json"
    file.write_text(json.dumps(lends("bert", 2, 8)))
    async with stage.plane.api() as api:
        await asyncio.to_thread(apply, stage, file, "--server-side")
        await api.until(JOBS, sized("bert", 8))
        code, output = await asyncio.to_thread(apply, stage, file, "--server-side")
        assert code != 0
        assert 'conflicts with "turnout-autoscaler"' in output
        assert (await api.get(f"{JOBS}/bert"))["spec"]["parallelism"] == 8


async def first_growth(stage, api, bert):
    """Wait while the autoscaler grows the job for the first time."""
    await api.create(lends(bert, 2, 8))
    await stage.eventually(lambda: any(line["job"].endswith(f"/{bert}") for line in log_lines(stage, "decided")))
    await api.until(PODS, cluster.bound(2))


async def room(stage, api, bert):
    """Free capacity into which the autoscaler then grows the job."""
    await api.create(cluster.indexed_job("other", 5, gpus=1))
    await api.create(lends(bert, 2, 8))
    await runs(stage, **{bert: 3, "other": 5})
    await api.delete(f"{JOBS}/other?propagationPolicy=Background")
    await api.until(PODS, lambda pods: "other" not in map(job_of, pods))


async def growth(stage, api, bert):
    """Wait while the autoscaler writes the job's growth."""
    await api.create(lends(bert, 2, 8))
    await api.until(JOBS, sized(bert, 8))


@pytest.mark.parametrize(
    "moment",
    [pytest.param(first_growth, marks=pytest.mark.long), pytest.param(room, marks=pytest.mark.long), growth],
    ids=lambda moment: moment.__name__.replace("_", " "),
)
async def test_the_size_that_a_person_sets_by_hand_stands_as_the_most(stage, moment):
    bert = moment.__name__.replace("_", "-")
    async with stage.plane.api() as api:
        await moment(stage, api, bert)
        await scaled(api, bert, 5)
        await runs(stage, **{bert: 5})
        settled = await api.get(f"{JOBS}/{bert}")
        pods = await api.until(PODS, pods_bound(bert, 5))
        await wait_for_decisions(stage, api, 5)
        now = await api.get(f"{JOBS}/{bert}")
        assert now["metadata"]["generation"] == settled["metadata"]["generation"]
        assert await api.until(PODS, pods_bound(bert, 5)) == pods
        await api.create(cluster.indexed_job("another", 4, gpus=1))
        await runs(stage, **{bert: 4, "another": 4})
        meta = (await api.get(f"{JOBS}/{bert}"))["metadata"]
        assert meta["annotations"][labels.WISH_WORKERS] == "5"
        assert meta["labels"]["scaled"] == "by-hand"
        await api.delete(f"{JOBS}/another?propagationPolicy=Background")
        await runs(stage, **{bert: 5})
        await wait_for_decisions(stage, api, 5)
        assert (await api.get(f"{JOBS}/{bert}"))["spec"]["parallelism"] == 5
