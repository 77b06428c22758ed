"""`turnout check`, typed: on an API server of a few answers."""

import json
import time

import pytest
import pytest_asyncio
from aiohttp import web

from tests.cli.check.test_verdicts import deployment, lease, node
from tests.cli.test_why_command import kubeconfig, turnout
from turnout.kube.times import rfc3339

PODS = "/api/v1/namespaces/gpu-team/pods"
MAP = "/api/v1/namespaces/gpu-team/configmaps/node-topology-config"
PAGE = f"{PODS}/turnout-extender-a:9090/proxy/metrics"
OURS = {"app.kubernetes.io/part-of": "turnout"}


def of_ours(found):
    found["metadata"].setdefault("labels", {}).update(OURS)
    return found


def answers():
    """Give what a healthy cluster answers, by path."""
    now = rfc3339(time.time())
    autoscaler_lease = lease("turnout-autoscaler")
    autoscaler_lease["spec"]["renewTime"] = now
    nominator_lease = lease("n1")
    nominator_lease["spec"]["renewTime"] = now
    pod = {
        "metadata": {"name": "turnout-extender-a", "namespace": "gpu-team"},
        "spec": {"containers": [{"name": "extender"}]},
    }
    other = {"metadata": {"name": "coredns", "namespace": "kube-system"}}
    leases = "/apis/coordination.k8s.io/v1/namespaces"
    return {
        "/version": {"gitVersion": "v1.35.4"},
        "/apis/apps/v1/deployments": [of_ours(deployment("extender")), other],
        "/api/v1/nodes": [node("n1")],
        PODS: [of_ours(pod)],
        f"{leases}/gpu-team/leases": [of_ours(autoscaler_lease)],
        f"{leases}/kube-node-lease/leases": [nominator_lease],
        MAP: {"data": {"topology_config": "leaf-1 s n1\n"}},
        PAGE: 'turnout_extender_requests_total{verb="filter",outcome="ok"} 12\n',
    }


@pytest_asyncio.fixture
async def served(tmp_path):
    """Serve what is in the dict that comes with it: an object, a list, a text, or a status to refuse with."""
    given = answers()

    async def answer(request):
        found = given.get(request.path, 404)
        if isinstance(found, int):
            return web.json_response({"kind": "Status", "code": found, "message": f"no {request.path}"}, status=found)
        if isinstance(found, str):
            return web.Response(text=found)
        if isinstance(found, list):
            key, _, value = request.query.get("labelSelector", "").partition("=")
            items = [each for each in found if not key or each["metadata"].get("labels", {}).get(key) == value]
            found = {"metadata": {"resourceVersion": "1"}, "items": items}
        return web.json_response(found)

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield str(kubeconfig(tmp_path, f"http://127.0.0.1:{runner.addresses[0][1]}")), given
    await runner.cleanup()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "status", [pytest.param(501, id="an API that lacks it"), pytest.param(500, id="a server in trouble")]
)
async def test_what_cannot_be_read_costs_one_line_and_no_more(served, status):
    config, given = served
    given["/apis/apps/v1/deployments"] = status
    _, out, complaint = await turnout("check", "--kubeconfig", config)
    lines = [line for line in out.splitlines() if "/apis/apps/v1/deployments cannot be read" in line]
    assert (len(lines), complaint) == (1, "")
    assert "Kubernetes 1.35.4" in out, "the rest is told"


@pytest.mark.asyncio
async def test_a_healthy_cluster_is_told_line_by_line(served):
    config, _ = served
    code, out, complaint = await turnout("check", "--kubeconfig", config)
    assert (code, complaint) == (0, "")
    assert out.splitlines() == [
        "✓ kubernetes   Kubernetes 1.35.4",
        "✓ installed    extender in gpu-team: 2 of 2 ready",
        "✓ leader       turnout-autoscaler: pod-1",
        "✓ map          the only GPU node is on the map",
        "✓ way          extender: used, kube-scheduler asks it",
        "✓ way          nominations: not used",
        "               → helm upgrade --set nominator.enabled=true",
        "✓ way          gates: not used; this API server serves no MutatingAdmissionPolicy: "
        "a webhook, or templates of pods, put them there",
        "               → helm upgrade --set nominator.gates=true",
        "✓ extender     kube-scheduler has asked it 12 times",
        "✓ clocks       the clock of 1 node agrees",
    ]


@pytest.mark.asyncio
async def test_what_is_wrong_has_its_remedy_beneath_and_exit_code_3(served):
    config, given = served
    given[PAGE] = "turnout_topology_hosts 1\n"
    given["/api/v1/nodes"].append(node("n2\x1b[31m"))
    code, out, _ = await turnout("check", "--kubeconfig", config)
    assert code == 3
    assert "✗ extender     it was never asked: no kube-scheduler has it registered\n               → put the" in out
    assert (
        "! map          1 of 2 GPU nodes is not on the map: n2?[31m\n               → kubectl -n gpu-team edit" in out
    )


@pytest.mark.asyncio
async def test_what_is_only_doubtful_is_no_failure(served):
    config, given = served
    given["/api/v1/nodes"].append(node("n2"))
    code, out, _ = await turnout("check", "--kubeconfig", config, "-o", "json")
    verdicts = [each for each in json.loads(out) if each["word"] != "fine"]
    assert (code, [each["word"] for each in verdicts], [each["about"] for each in verdicts]) == (
        0,
        ["doubtful"],
        ["map"],
    )


@pytest.mark.asyncio
async def test_a_kind_that_the_local_cluster_does_not_serve_ends_no_check(served):
    config, given = served
    for version in ("v1", "v1beta1"):
        given[f"/apis/admissionregistration.k8s.io/{version}/mutatingadmissionpolicies"] = 501
    code, out, complaint = await turnout("check", "--kubeconfig", config)
    assert (code, complaint) == (0, "")
    assert "this API server serves no MutatingAdmissionPolicy" in out


@pytest.mark.asyncio
async def test_who_may_see_little_is_told_what_he_lacks(served):
    config, given = served
    for path in given.keys() - {"/version"}:
        given[path] = 403
    code, out, complaint = await turnout("check", "--kubeconfig", config)
    assert (code, complaint) == (0, "")
    assert "? rights       /apis/apps/v1/deployments cannot be seen: no /apis/apps/v1/deployments\n" in out
    assert "→ bind the ClusterRole turnout-viewer" in out
    assert "installed" not in out


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "line"),
    [
        pytest.param(403, "rights", id="a map that the user may not read"),
        pytest.param(500, "cannot be read", id="a map that the server fails to read"),
    ],
)
async def test_a_map_that_cannot_be_read_is_not_called_empty(served, status, line):
    config, given = served
    given[MAP] = status
    code, out, complaint = await turnout("check", "--kubeconfig", config)
    assert (code, complaint) == (0, "")
    assert "✗" not in out
    assert [line in each for each in out.splitlines() if MAP in each] == [True]


@pytest.mark.asyncio
async def test_a_missing_map_is_told(served):
    config, given = served
    del given[MAP]
    code, out, _ = await turnout("check", "--kubeconfig", config)
    assert code == 3
    assert "✗ map          there is no map in gpu-team: no node is preferred to another" in out


@pytest.mark.asyncio
async def test_an_empty_cluster_is_told_the_next_step(served):
    config, given = served
    given["/apis/apps/v1/deployments"] = []
    code, out, _ = await turnout("check", "--kubeconfig", config)
    assert code == 3
    assert "✗ installed    no Deployment of Turnout is in the cluster\n               → helm upgrade --install" in out


@pytest.mark.asyncio
async def test_an_api_server_that_is_not_there_is_one_line(tmp_path):
    config = str(kubeconfig(tmp_path, "http://127.0.0.1:9"))
    code, out, complaint = await turnout("check", "--kubeconfig", config)
    assert (code, out) == (1, "")
    assert complaint.startswith("turnout check: ")
    assert complaint.count("\n") == 1
