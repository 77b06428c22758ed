"""An API server refuses or forgets: a quota in mid-creation, a stranger's object, a restart; on a real one."""

import asyncio
import json
import random
import ssl

import pytest
import pytest_asyncio
import yaml

from hack.chaos.scenarios.fault_proxy import PASS, fault_proxy, kubeconfig_with_token, refusal
from tests.cli.test_why_command import turnout
from tests.controllers.jobs import role
from tests.e2e.controllers.installed import CONTROLLER, ROOT, SYSTEM, begin_again, install

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

DEFINITION = ROOT / "deploy/crds/pytorchjobs.kubeflow.org.yaml"


def job(name, namespace, workers):
    head = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": name, "namespace": namespace}}
    return {**head, "spec": {"pytorchReplicaSpecs": {"Worker": role(workers)}}}


def count(number):
    return lambda pods: pods if len(pods) == number else None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(module_plane):
    async with module_plane.api() as api:
        await api.create(yaml.safe_load(await asyncio.to_thread(DEFINITION.read_text)))
        await install(module_plane, api)
        await asyncio.to_thread(module_plane.start_controller_manager, ["resourcequota"])
        yield api


async def namespace(api, name):
    await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return f"/api/v1/namespaces/{name}"


async def why(plane, name):
    """Return what `turnout why` says of a job's controller, and of what to do next."""
    code, out, complaint = await turnout("why", name, "-o", "json", "--kubeconfig", str(plane.kubeconfig))
    assert code == 0, complaint
    found = json.loads(out)["controller"]
    return found["text"], found["next"]


async def events_of(api, path, reason):
    """Wait for an Event with this reason; its message."""

    def found(events):
        return [each["message"] for each in events if each["reason"] == reason]

    return (await api.until(f"{path}/events", found, 40))[0]


@pytest.mark.contract("MS-38")
async def test_pods_beyond_a_quota_are_told_and_made_once_there_is_room(api, module_plane):
    path = await namespace(api, "quota")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "quota"}}
    await api.create({**quota, "spec": {"hard": {"pods": "2"}}})
    await api.until(f"{path}/resourcequotas", lambda all_: [each for each in all_ if each["status"].get("used")], 40)
    await api.create(job("bert", "quota", 4))
    assert "exceeded quota" in await events_of(api, path, "CreationFailed")
    await api.until(f"{path}/pods", count(2), 20)
    text, then = await why(module_plane, "PyTorchJob/quota/bert")
    assert text.startswith("the API server refuses what it needs, last ")
    assert "exceeded quota" in text
    assert then.startswith("kubectl describe quota -n quota")
    log = [json.loads(line) for line in module_plane.logs("turnout-controller").splitlines() if line.startswith("{")]
    assert any(each.get("reason") == "CreationFailed" and each["job"] == "quota/bert" for each in log)
    await api.patch(f"{path}/resourcequotas/q", {"spec": {"hard": {"pods": "9"}}})
    pods = await api.until(f"{path}/pods", count(4), 90)
    assert {each["metadata"]["name"] for each in pods} == {f"bert-worker-{index}" for index in range(4)}


async def test_a_strangers_object_with_a_childs_name_is_told_and_stays(api, module_plane):
    path = await namespace(api, "taken")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bert-worker-1", "namespace": "taken"}}
    mine = await api.create({**pod, "spec": {"containers": [{"name": "c", "image": "i"}]}})
    await api.create(job("bert", "taken", 3))
    told_of = "Pod bert-worker-1 exists and belongs to somebody else (turnout explain NameTaken)"
    assert await events_of(api, path, "NameTaken") == told_of
    await api.until(f"{path}/pods", count(3), 20)
    text, _ = await why(module_plane, "PyTorchJob/taken/bert")
    assert text.startswith("Pod bert-worker-1 exists and belongs to somebody else (")
    stored = await api.get(f"{path}/pods/bert-worker-1")
    assert stored["metadata"]["uid"] == mine["metadata"]["uid"]
    assert "ownerReferences" not in stored["metadata"]


@pytest.fixture(autouse=True)
def its_log(module_plane):
    """The end of the controller's log, beside a test that fails."""
    yield
    print(module_plane.logs(CONTROLLER)[-20_000:])


async def made_across_a_restart(plane, name):
    """Create six jobs and start the API server again while their pods are made.

    Gives the namespace's path, and the pods.
    """
    async with plane.api() as api:
        path = await namespace(api, name)
        for index in range(6):
            await api.create(job(f"job-{index}", name, 4))
    await asyncio.to_thread(plane.restart_apiserver)
    async with plane.api() as api:
        pods = await api.until(f"{path}/pods", count(24), 90)
    names = {each["metadata"]["name"] for each in pods}
    assert names == {f"job-{job}-worker-{index}" for job in range(6) for index in range(4)}
    return path, pods


@pytest.mark.usefixtures("api")
async def test_an_api_server_that_goes_away_costs_no_pod_and_makes_none_twice(module_plane):
    path, pods = await made_across_a_restart(module_plane, "away")
    async with module_plane.api() as api:
        await api.delete(f"{path}/pods/job-0-worker-2")
        old = {each["metadata"]["uid"] for each in pods}
        await api.until(
            f"{path}/pods", lambda all_: count(24)(all_) and {each["metadata"]["uid"] for each in all_} != old, 40
        )


@pytest.mark.long
@pytest.mark.usefixtures("api")
async def test_nor_does_one_that_goes_away_again_and_again(module_plane):
    """Now and then the Lease is lost meanwhile: a controller that went on to write ended with it, in 1 of 60."""
    for time in range(25):
        path, _ = await made_across_a_restart(module_plane, f"again-{time}")
        async with module_plane.api() as api:
            await api.delete(f"/apis/kubeflow.org/v1/namespaces/again-{time}/pytorchjobs")
            for each in ("pods", "services"):
                await api.delete(f"{path}/{each}")


class Storm:
    """Refuses a third of the calls, by a seed: conflicts and faults for writes, and an end of history for watches."""

    def __init__(self, seed):
        self._dice, self.refused = random.Random(seed), 0

    def judge(self, request):
        """Settle one request."""
        if "/leases/" in request.path or self._dice.random() > 1 / 3:
            return PASS
        self.refused += 1
        if request.method == "GET":
            return refusal(410, "Expired", "too old resource version") if "watch" in request.query else PASS
        return self._dice.choice([refusal(409, "Conflict", "changed meanwhile"), refusal(500, "InternalError", "etcd")])


def controllers_behind(proxy):
    """The numbers of pods and of Services that were made through the proxy."""
    posts = [each.path.rpartition("/")[2] for each in proxy.requests if (each.method, each.code) == ("POST", 201)]
    return posts.count("pods"), posts.count("services")


async def passed_on(proxy, pods):
    """Wait until the proxy has passed on the answers to so many pods that were made."""
    async with asyncio.timeout(60):
        while True:
            if controllers_behind(proxy)[0] >= pods:
                break
            await asyncio.sleep(0.002)


@pytest.mark.contract("XD-10")
async def test_a_controller_killed_in_a_storm_of_refusals_makes_no_pod_twice(api, module_plane, tmp_path):
    path, token, config = await namespace(api, "storm"), tmp_path / "token", tmp_path / "kubeconfig"
    token.write_text(module_plane.service_account_token(SYSTEM, CONTROLLER))
    trust, storm = ssl.create_default_context(cafile=str(module_plane.ca)), Storm(7)
    async with fault_proxy(module_plane.url, trust) as proxy:
        config.write_text(kubeconfig_with_token(proxy.url, str(token)))
        flags = (f"--kubeconfig={config}", "--lease-seconds=4")
        await begin_again(module_plane, *flags)
        proxy.decide = storm.judge
        for index in range(4):
            await api.create(job(f"job-{index}", "storm", 4))
        for minimum in (4, 10):  # it is killed in the middle, twice
            await passed_on(proxy, minimum)
            module_plane.kill_program(CONTROLLER)
            proxy.pass_all()
            await begin_again(module_plane, *flags)
            proxy.decide = storm.judge
        pods = await api.until(f"{path}/pods", count(16), 60)
        services = await api.until(f"{path}/services", count(16), 60)
        await api.delete(f"{path}/pods/job-0-worker-2")
        await api.until(f"{path}/pods", lambda all_: _replaced(pods, all_), 60)
        await passed_on(proxy, 17)  # a watch may show a pod before the answer to its maker is here
        assert storm.refused > 20
        assert controllers_behind(proxy) == (17, 16)
    names = {f"job-{number}-worker-{index}" for number in range(4) for index in range(4)}
    assert {each["metadata"]["name"] for each in pods} == {each["metadata"]["name"] for each in services} == names


def _replaced(before, now):
    """True once all are there again, and one of them is another."""
    old, new = ({each["metadata"]["uid"] for each in pods} for pods in (before, now))
    return len(new) == len(old) and len(new - old) == 1
