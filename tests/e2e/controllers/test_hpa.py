"""A PyTorchJob's own HPA, run by the real kube-controller-manager: the metrics come from the test, as an APIService."""

import asyncio
import ssl
import time
from contextlib import asynccontextmanager

import pytest
import yaml
from aiohttp import web

from hack.controlplane.plane import free_ports
from tests.controllers.jobs import role
from tests.e2e.controllers.installed import ROOT, install
from turnout.kube.times import rfc3339

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

METRICS = "metrics.k8s.io/v1beta1"
QUICK = [
    "--horizontal-pod-autoscaler-sync-period=1s",
    "--horizontal-pod-autoscaler-cpu-initialization-period=1s",
    "--horizontal-pod-autoscaler-initial-readiness-delay=1s",
    "--horizontal-pod-autoscaler-downscale-stabilization=1s",
]
TARGET = {"type": "Utilization", "averageUtilization": 50}
POLICY = {
    "minReplicas": 2,
    "maxReplicas": 5,
    "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": TARGET}}],
}


class Meter:
    """Serves what pods use, as metrics-server does. milli: the CPU of each pod, of 1,000 asked for."""

    def __init__(self, api):
        self._api, self.milli = api, 500

    async def resources(self, _request):
        """Answer which resources there are."""
        one = {"name": "pods", "namespaced": True, "kind": "PodMetrics", "verbs": ["get", "list"]}
        return web.json_response({"kind": "APIResourceList", "groupVersion": METRICS, "resources": [one]})

    async def pods(self, request):
        """Answer what the pods of a selector use."""
        namespace, selector = request.match_info["namespace"], request.query["labelSelector"]
        pods = (await self._api.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}"))["items"]
        return web.json_response({"kind": "PodMetricsList", "apiVersion": METRICS, "items": list(map(self._of, pods))})

    def _of(self, pod):
        used = [{"name": "pytorch", "usage": {"cpu": f"{self.milli}m"}}]
        meta = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
        return {"metadata": meta, "timestamp": rfc3339(time.time()), "window": "1s", "containers": used}


@asynccontextmanager
async def metered(plane, api):
    """Serve a Meter at the address of a Service, as an APIService of the API server, until the block ends."""
    (port,) = free_ports(1)
    meta = {"name": "metrics", "namespace": "kube-system"}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": {"ports": [{"port": port}]}}
    address = (await api.create(service))["spec"]["clusterIP"]
    slice_ = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
    labels = {"kubernetes.io/service-name": "metrics"}  # looked for, and passed over: it dials the Service's address
    endpoint = {"addresses": ["10.0.0.1"], "conditions": {"ready": True}}
    await api.create(
        {
            **slice_,
            "metadata": {**meta, "labels": labels},
            "endpoints": [endpoint],
            "ports": [{"name": "", "port": port}],
        }
    )
    pair = await asyncio.to_thread(plane.authority.server, "metrics", (address,))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    meter, app = Meter(api), web.Application()
    app.router.add_get(f"/apis/{METRICS}", meter.resources)
    app.router.add_get(f"/apis/{METRICS}/namespaces/{{namespace}}/pods", meter.pods)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, address, port, ssl_context=context).start()
    group, version = METRICS.split("/")
    spec = {"group": group, "version": version, "groupPriorityMinimum": 100, "versionPriority": 100}
    spec |= {"insecureSkipTLSVerify": True, "service": {**meta, "port": port}}
    head = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService"}
    body = {**head, "metadata": {"name": f"{version}.{group}"}, "spec": spec}
    await api.call("POST", "/apis/apiregistration.k8s.io/v1/apiservices", body)
    try:
        yield meter
    finally:
        await runner.cleanup()


def job():
    container = {"name": "pytorch", "image": "train:1", "resources": {"requests": {"cpu": "1"}}}
    worker = role(2, containers=[container])
    worker["template"]["spec"]["nodeName"] = "host"
    head = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "bert", "namespace": "default"}}
    return {**head, "spec": {"elasticPolicy": POLICY, "pytorchReplicaSpecs": {"Worker": worker}}}


@pytest.mark.contract("PE-48")
async def test_the_real_hpa_grows_and_shrinks_a_job_by_its_scale(control_plane):
    plane = control_plane
    async with plane.api() as api:
        file = ROOT / "deploy/crds/pytorchjobs.kubeflow.org.yaml"
        await api.create(yaml.safe_load(await asyncio.to_thread(file.read_text)))
        await install(plane, api)
        await asyncio.to_thread(plane.start_kwok)
        host = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "host"}}
        await api.create({**host, "status": {"allocatable": {"cpu": "64", "pods": "100"}}})
        async with metered(plane, api) as meter:
            await asyncio.to_thread(plane.start_controller_manager, ["horizontal-pod-autoscaler-controller"], QUICK)
            await api.create(job())
            await sized(api, 2)
            meter.milli = 1_000  # twice what the policy wants
            await sized(api, 4)
            meter.milli = 100
            await sized(api, 2)
            names = [each["metadata"]["name"] for each in (await api.get("/api/v1/namespaces/default/pods"))["items"]]
            assert sorted(names) == ["bert-worker-0", "bert-worker-1"]


async def sized(api, workers):
    """Wait until the job has so many workers, all running."""

    def running(pods):
        return len(pods) == workers and all(each["status"].get("phase") == "Running" for each in pods)

    await api.until("/api/v1/namespaces/default/pods", running, 30)
