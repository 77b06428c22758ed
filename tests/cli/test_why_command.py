"""`turnout why` and `turnout history`: on a local cluster, and where little or nothing can be seen."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from aiohttp import web

from tests.autoscaler.local_cluster import JOBS, local_cluster_with_jobs, manifest
from tests.autoscaler.world import GPU
from tests.controllers.jobs import job, role
from turnout.autoscaler import rbac_rules
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.informers import AutoscalerInformers
from turnout.autoscaler.settings import Settings
from turnout.cli.verb_support.listing import VIEWER
from turnout.jobs.kinds.registry import KINDS
from turnout.kube import labels
from turnout.kube.client.clock import RealClock

MANIFESTS = Path(__file__).parents[2] / "deploy/manifests"


async def turnout(*args):
    """The command as a process: exit code, what it printed, what it complained of."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "turnout.cli", *args),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            out, complaint = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return child.returncode, out.decode(), complaint.decode()


@pytest_asyncio.fixture
async def cluster(tmp_path):
    async with local_cluster_with_jobs(tmp_path) as local_cluster:
        yield local_cluster


@pytest.mark.asyncio
async def test_on_a_local_cluster_it_tells_why_a_job_waits_and_what_another_has(cluster):
    config = ("--kubeconfig", str(cluster.kubeconfig))
    await cluster.autoscaler("--act")
    await cluster.submit("lends", 2, 8)
    await cluster.until(lends=8)
    await cluster.submit("needs", 7)
    await cluster.says('"NeedsMore"')

    code, out, _ = await turnout("why", "needs", "--docs-base-url", "https://docs.example.com", *config)
    assert code == 0
    head, *lines = out.splitlines()
    assert head.startswith("VolcanoJob/default/needs has waited for ")
    assert head.endswith(": NeedsMore")
    text = {line[:11].strip(): line[11:] for line in lines}
    assert text["held by"] == "VolcanoJob/default/lends (2 + 6 elastic)"
    assert text["room"] == f"2 of 2 nodes let a worker in (1 {GPU}); no whole worker fits now"
    assert text["gang"] == "it needs 7 workers, 0 with a node: 7 lacking"
    assert text["start"].startswith("likely in ")
    assert text["docs"] == "https://docs.example.com/reference/reasons.html#needsmore"
    assert "\x1b" not in out

    code, out, _ = await turnout("why", "volcanojob/default/lends", "-o", "json", *config)
    assert code == 0
    now = json.loads(out)
    assert (now["state"], now["reason"], now["size"]["elastic"], now["start"]) == ("running", "AtMax", 6, None)

    says = "there is no job 'need' in namespace default; did you mean VolcanoJob/default/needs?"
    assert await turnout("why", "need", *config) == (1, "", f"turnout why: {says}\n")


@pytest.mark.slow
@pytest.mark.asyncio
async def test_pods_behind_our_gate_are_told_and_room_is_no_question_of_theirs(cluster):
    gated = manifest("held", 2)
    gated["spec"]["tasks"][0]["template"]["spec"]["schedulingGates"] = [{"name": labels.PLACEMENT_GATE}]
    await cluster.api.call("POST", JOBS, gated)
    await cluster.until_phases({("held", "Pending"): 2})
    code, out, _ = await turnout("why", "held", "--kubeconfig", str(cluster.kubeconfig))
    assert code == 0
    text = " ".join(line[11:] for line in out.splitlines()[1:])
    assert "2 pods behind the scheduling gate turnout.dev/placement" in text
    assert "No nominator is installed in this cluster, so nobody lifts it" in text  # a template from elsewhere
    assert "take the gate out of the pod template" in text
    assert "no whole worker fits" not in text
    _, out, _ = await turnout("why", "held", "-o", "json", "--kubeconfig", str(cluster.kubeconfig))
    assert json.loads(out)["gate"] == {"pods": 2, "placer": "absent", "reason": "", "detail": "", "said_s": None}


@pytest.mark.slow
@pytest.mark.asyncio
async def test_history_reads_the_decision_log_of_a_working_autoscaler(cluster, tmp_path):
    log = tmp_path / "decisions"
    autoscaler = await cluster.autoscaler("--act", "--decision-log", str(log))
    await cluster.submit("lends", 2, 8)
    await cluster.until(lends=8)
    await cluster.submit("gets", 3)
    await cluster.until(lends=5, gets=3)
    autoscaler.terminate()
    await autoscaler.wait()
    config = ("--kubeconfig", str(cluster.kubeconfig))
    code, out, complaint = await turnout("history", "lends", "--decision-log", str(log), "-o", "json", *config)
    assert (code, complaint) == (0, "")
    logged = [row for row in json.loads(out) if row["source"] == "decision-log"]
    assert {"IdleRoom", "MakesRoom"} <= {row["reason"] for row in logged}
    assert all(row["object"] == "VolcanoJob/default/lends" and row["at"] for row in logged)


@pytest.mark.slow
@pytest.mark.asyncio
async def test_usage_reads_the_decision_log_of_an_autoscaler_that_ended(cluster, tmp_path):
    log = tmp_path / "decisions"
    flags = ("--decision-log", str(log), "--owner-label", "owner", "--log-level", "debug")
    autoscaler = await cluster.autoscaler("--act", *flags)
    await cluster.submit("lends", 2, 8)
    await cluster.until(lends=8)
    await cluster.submit("gets", 3)
    await cluster.until(lends=5, gets=3)
    await cluster.says('"job": "VolcanoJob/default/gets", "workers_before": 3, "workers": 3, "reason": "Rigid"')
    autoscaler.terminate()
    await autoscaler.wait()
    code, out, complaint = await turnout("usage", "--decision-log", str(log), "-o", "json", "--by", "job")
    assert (code, complaint) == (0, "")
    jobs = {row["job"]: row for row in json.loads(out)}
    assert jobs.keys() == {"VolcanoJob/default/lends", "VolcanoJob/default/gets"}
    lends, gets = jobs["VolcanoJob/default/lends"], jobs["VolcanoJob/default/gets"]
    assert lends["gpu_hours"] > lends["elastic_gpu_hours"] > 0 == gets["elastic_gpu_hours"]
    _, out, _ = await turnout("usage", "--decision-log", str(log), "-o", "json")
    (queue,) = (row for row in json.loads(out) if row["queue"] == "default")
    assert queue["gpu_hours"] == pytest.approx(lends["gpu_hours"] + gets["gpu_hours"], abs=2e-6)
    assert queue["won_gpu_hours"] > 0


def kubeconfig(folder, server):
    """A file that leads to an API server."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    (folder / "config").write_text(json.dumps(config))
    return folder / "config"


@pytest_asyncio.fixture
async def served(tmp_path):
    """An API server of lists. forbidden: paths that may not be listed. items: what others hold, by path."""
    forbidden, items = set(), {}

    async def answer(request):
        if request.path in forbidden:
            return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden"}, status=403)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items.get(request.path, [])})

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield str(kubeconfig(tmp_path, f"http://127.0.0.1:{runner.addresses[0][1]}")), forbidden, items
    await runner.cleanup()


@pytest.fixture
def server(served):
    """Serve an empty cluster."""
    return served[:2]


@pytest.mark.asyncio
async def test_every_right_that_is_missing_is_named_as_kubectl_takes_it(server):
    config, forbidden = server
    forbidden |= {"/api/v1/nodes", JOBS.replace("/namespaces/default", "")}
    code, out, complaint = await turnout("why", "a", "--kubeconfig", config)
    assert (code, out) == (1, "")
    assert "you may not list nodes, jobs.batch.volcano.sh in the whole cluster" in complaint
    assert complaint.count("\n") == 1


def gang(name, member_count, minimum=4, node="", why=""):
    """The pods of a bare gang, as an API server lists them."""
    notes = {labels.KOORD_NAME: name, labels.KOORD_MIN: str(minimum)}
    asks = {GPU: "1"}
    refused = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}]
    return [
        {
            "metadata": {
                "name": f"{name}-{at}",
                "namespace": "team-a",
                "uid": f"{name}-{at}",
                "annotations": notes,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"nodeName": node, "containers": [{"name": "m", "resources": {"requests": asks, "limits": asks}}]},
            "status": {"phase": "Pending", "conditions": refused if why else []},
        }
        for at in range(member_count)
    ]


def the_whole_cluster():
    """Name what a user with all rights in one namespace alone may not list."""
    plain = ("nodes", "pods", "resourcequotas")
    return {f"/api/v1/{each}" for each in plain} | {
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        "/apis/scheduling.volcano.sh/v1beta1/queues",
        JOBS.replace("/namespaces/default", ""),
        "/api/v1/namespaces/turnout-system/configmaps",
    }


@pytest.mark.slow
@pytest.mark.asyncio
async def test_who_sees_one_namespace_is_told_what_it_shows_and_what_not(served):
    config, forbidden, items = served
    forbidden |= the_whole_cluster()
    items["/api/v1/namespaces/team-a/pods"] = gang("bert", 2, why="0/4 nodes are available: the gang is not whole.")
    code, out, complaint = await turnout("why", "Pod/team-a/bert", "--kubeconfig", config)
    assert (code, complaint) == (0, "")
    text = {line[:11].strip(): line[11:] for line in out.splitlines()[1:]}
    assert out.startswith("Pod/team-a/bert waits for its min, for ")
    assert text["gang"] == "it needs 4 workers; 2 pods exist, 0 with a node: it waits for 2 more members"
    assert text["scheduler"] == "0/4 nodes are available: the gang is not whole."
    assert "you may not list nodes, pods, resourcequotas, " in " ".join(out.split())
    assert f"the ClusterRole {VIEWER} has these rights" in " ".join(out.split())
    assert "decision" not in text

    code, out, _ = await turnout("why", "Pod/team-a/bert", "-o", "json", "--kubeconfig", config)
    document = json.loads(out)
    assert (code, document["pods"], document["placed_pods"], document["min_workers"]) == (0, 2, 0, 4)
    assert "nodes" in document["missing"]


@pytest.mark.asyncio
async def test_a_bare_gang_that_runs_does_not_vanish(served):
    config, _, items = served
    items["/api/v1/pods"] = gang("bert", 2, minimum=2, node="n1")
    code, out, _ = await turnout("why", "Pod/team-a/bert", "--kubeconfig", config)
    assert code == 0
    assert out.startswith("Pod/team-a/bert runs: 2 of its 2 pods have a node and hold 2 GPUs of queue ")


def torch_job(items, **more):
    """A PyTorchJob of two workers, in the lists of the server."""
    meta = {"name": "bert", "namespace": "team-a", "uid": "u", "resourceVersion": "3"}
    meta["creationTimestamp"] = "2026-01-01T00:00:00Z"
    raw = {"metadata": meta, "spec": job(worker=role(2))["spec"], **more}
    for place in ("", "namespaces/team-a/"):
        items[f"/apis/kubeflow.org/v1/{place}pytorchjobs"] = [raw]


def rows_of(out):
    """The rows by their labels, lines that go on joined."""
    found, label = {}, ""
    for line in out.splitlines()[1:]:
        label = line[:11].strip() or label
        found[label] = f"{found.get(label, '')} {line[11:] if line[:11].strip() else line.strip()}".strip()
    return found


@pytest.mark.slow
@pytest.mark.asyncio
async def test_how_a_job_stands_with_its_controller_is_told(served):
    config, _, items = served
    torch_job(items)
    code, out, _ = await turnout("why", "PyTorchJob/team-a/bert", "--plain", "--kubeconfig", config)
    text = rows_of(out)
    assert code == 0
    assert text["controller"].startswith("no controller has written its status in ")
    assert text["next"].startswith("see that turnout-controller runs with --kinds PyTorchJob")

    quota = {"type": "Created", "status": "True"}
    event = {"reason": "CreationFailed", "message": "exceeded quota", "metadata": {"name": "e"}}
    items["/api/v1/namespaces/team-a/events"] = [{**event, "involvedObject": {"uid": "u"}}]
    torch_job(items, status={"conditions": [quota]})
    code, out, _ = await turnout("why", "PyTorchJob/team-a/bert", "-o", "json", "--kubeconfig", config)
    controller = json.loads(out)["controller"]
    assert controller["text"].endswith("exceeded quota")
    assert controller["next"].startswith("kubectl describe quota -n team-a")

    failed = {"type": "Failed", "status": "True", "message": "spec.x is wrong", "reason": "PyTorchJobFailed"}
    torch_job(items, status={"conditions": [quota, failed]})
    code, out, _ = await turnout("why", "PyTorchJob/team-a/bert", "--plain", "--kubeconfig", config)
    assert out.startswith("PyTorchJob/team-a/bert has ended: nothing is decided on it any more\ncontroller it has fail")


def test_the_role_that_is_named_is_there_and_allows_every_list_and_watch():
    found = [each for file in MANIFESTS.rglob("*.yaml") for each in yaml.safe_load_all(file.read_text()) if each]
    role, *others = (each for each in found if each["kind"] == "ClusterRole" and each["metadata"]["name"] == VIEWER)
    assert all(other == role for other in others), "two files install it differently: the last one wins"
    named = [rule for rule in role["rules"] if "resourceNames" in rule]
    assert {verb for rule in role["rules"] if rule not in named for verb in rule["verbs"]} == {"list", "watch"}
    allowed = {
        (group, each)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for each in rule["resources"]
        if rule not in named
    }
    (own,) = named
    assert (own["resources"], own["resourceNames"]) == (["configmaps"], [*rbac_rules.CONFIGMAPS])
    assert {*own["verbs"]} <= {"get", "list", "watch"}
    informers = AutoscalerInformers(Cache(KINDS), None, KINDS, RealClock(), None, Settings().configmaps())
    lists = {each.path for each in informers.reflectors.values() if not each.path.endswith("/configmaps")}
    checked = {(rule.group, each) for rule in rbac_rules.CHECKED for each in rule.resources}
    assert allowed == checked | {("", "events")} | {
        ("" if base == "api" else rest[0], rest[-1]) for _, base, *rest in (path.split("/") for path in lists)
    }


@pytest.mark.asyncio
async def test_without_the_right_to_the_autoscalers_own_configmaps_it_goes_on(server):
    config, forbidden = server
    forbidden |= {"/api/v1/namespaces/turnout-system/configmaps"}
    code, _, complaint = await turnout("why", "a", "--kubeconfig", config)
    assert (code, complaint) == (
        1,
        "turnout why: there is no job 'a' in namespace default; there are 0 jobs in all\n",
    )


@pytest.mark.parametrize("verb", ["why", "history"])
@pytest.mark.asyncio
async def test_a_kind_that_nobody_knows_is_a_fault_of_usage(verb, server):
    code, _, complaint = await turnout(verb, "Foo/team-a/bert", "--kubeconfig", server[0])
    assert code == 2
    assert f"turnout {verb}: 'Foo' is no kind of job here" in complaint


@pytest.mark.slow
@pytest.mark.asyncio
async def test_what_it_cannot_do_is_said_in_a_line(tmp_path):
    missing = tmp_path / "none"
    code, _, complaint = await turnout("why", "a", "--kubeconfig", str(missing))
    assert code == 1
    assert str(missing) in complaint
    config = kubeconfig(tmp_path, "http://127.0.0.1:9")
    code, _, complaint = await turnout("why", "a", "--kubeconfig", str(config))
    assert code == 1
    assert "the API server cannot be reached" in complaint
    assert "127.0.0.1:9" in complaint
    assert complaint.count("\n") == 1
    code, _, complaint = await turnout("why", "a", "--cooldown-s", "-1")
    assert (code, complaint) == (2, "turnout why: --cooldown-s is -1.0: it must be a finite number of at least 0\n")
    assert (await turnout("why"))[0] == 2
