"""Reads from the API server what `turnout check` judges, as far as the user's rights allow."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

from turnout.cli.check.verdicts import ClusterFacts, MethodFacts, MetricSample, Object
from turnout.kube.errors import CallError, Forbidden, NotFound, Rejected, ServerFault
from turnout.kube.labels import GATES, PLACEMENT_GATE
from turnout.kube.status import decode_json_object

if TYPE_CHECKING:
    from turnout.kube.client.api_client import Client

ADMISSION = "/apis/admissionregistration.k8s.io"
OURS = "app.kubernetes.io/part-of=turnout"
METRICS_PORT = 9090  # of the extender, as the chart sets it


async def read_facts(client: Client, version: str) -> ClusterFacts:
    """Read once from the API server the facts of which the verdicts are made.

    A fact that may not be read or whose request fails is None, or is left out of its list or mapping. `refused` and
    `failed` of the result say why, by path. A kind that the API server does not serve is None without an entry there,
    and so are an extender's metrics that cannot be read. If the Deployments are not known, leases, maps and metrics are
    empty, because their namespaces are not known. version: of this program. Raises CallError if the version of the API
    server cannot be read, and as `FactReader.all` does.
    """
    found = decode_json_object("/version", await client.get("/version"))
    reader = FactReader(client)
    deployments = await reader.all("/apis/apps/v1/deployments")
    ours = None if deployments is None else [each for each in deployments if _is_ours(each)]
    namespaces = sorted({each["metadata"]["namespace"] for each in ours or ()})
    return ClusterFacts(
        own_version=version,
        now_s=time.time(),
        server_version=str(found.get("gitVersion") or ""),
        server_clock_ahead_s=_ahead_s(client),
        nodes=await reader.all("/api/v1/nodes"),
        deployments=ours,
        other_deployments=[_key(each) for each in deployments or () if not _is_ours(each)],
        leases=await reader.all_of("/apis/coordination.k8s.io/v1", namespaces, "leases"),
        heartbeats=await reader.all("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"),
        map_configmaps=await _maps(reader, namespaces),
        extender_metrics={
            pod["metadata"]["name"]: await reader.metrics(pod)
            for pod in await reader.all_of("/api/v1", namespaces, "pods")
            if any(each["name"] == "extender" for each in pod["spec"]["containers"])
        },
        methods=await _method_facts(reader),
        refused=reader.refused,
        failed=reader.failed,
    )


async def _maps(reader: FactReader, namespaces: Sequence[str]) -> dict[str, Object | None]:
    """Return the ConfigMap of the topology map for each of `namespaces`; None where it does not exist.

    Namespaces whose map could not be read are left out; `reader` has recorded why.
    """
    found = dict[str, Object | None]()
    for namespace in namespaces:
        path = f"/api/v1/namespaces/{namespace}/configmaps/node-topology-config"
        configmap = await reader.one(path)
        if path not in reader.refused and path not in reader.failed:
            found[namespace] = configmap
    return found


async def _method_facts(reader: FactReader) -> MethodFacts:
    """Read which placement methods the cluster can use: mutating policies, webhooks, namespaces with gates and gated
    pods.
    """
    served: bool | None = False
    policies: list[Object] | None = None
    for version in ("v1", "v1beta1"):
        path = f"{ADMISSION}/{version}/mutatingadmissionpolicies"
        policies = await reader.all(path, OURS)
        served = None if path in reader.refused else policies is not None
        if served is not False:
            break
    namespaces = await reader.all("/api/v1/namespaces", f"{GATES}=true")
    waiting = await reader.all("/api/v1/pods", "", "spec.nodeName=,status.phase=Pending")
    gate = {"name": PLACEMENT_GATE}
    return MethodFacts(
        served=served,
        policies=policies,
        webhooks=await reader.all(f"{ADMISSION}/v1/mutatingwebhookconfigurations", OURS),
        namespaces=None if namespaces is None else sorted(each["metadata"]["name"] for each in namespaces),
        gated=None if waiting is None else sum(gate in (pod["spec"].get("schedulingGates") or ()) for pod in waiting),
    )


class FactReader:
    """Reads from the API server, and records what was refused (`refused`) or failed (`failed`).

    Both attributes are path -> message of the API server, filled by the reading methods.
    """

    def __init__(self, client: Client) -> None:
        """Begin without records. client: of the API server."""
        self._client = client
        self.refused: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    async def all(self, path: str, selector: str = "", fields: str = "") -> list[Object] | None:
        """Return all objects of a list.

        None if its kind is not served (not recorded), if it may not be read (recorded in `refused`), or for Rejected
        and ServerFault (recorded in `failed`). Raises any other CallError, such as Unreachable. path: of the list.
        selector: a label selector. fields: a field selector. "" for all objects.
        """
        query = {key: text for key, text in (("labelSelector", selector), ("fieldSelector", fields)) if text}

        async def read() -> list[Object]:
            """Return the items of all pages of the list."""
            items = list[Object]()
            async for page in self._client.pages(path, query or None):
                items += decode_json_object(path, page).get("items") or []
            return items

        found: list[Object] | None = await self._read_or_note(path, read)
        return found

    async def all_of(self, api: str, namespaces: Sequence[str], plural: str) -> list[Object]:
        """Return the objects of Turnout of one kind in these namespaces.

        Namespaces whose list may not be read or fails are left out; this is recorded. api: path of group and version.
        plural: name of the kind in paths.
        """
        paths = [f"{api}/namespaces/{namespace}/{plural}" for namespace in namespaces]
        return [each for path in paths for each in await self.all(path, OURS) or ()]

    async def one(self, path: str) -> Object | None:
        """Return the object at a path.

        None if it does not exist (not recorded), if it may not be read (recorded in `refused`), or for Rejected and
        ServerFault (recorded in `failed`). Raises any other CallError, such as Unreachable.
        """

        async def read() -> Object:
            return decode_json_object(path, await self._client.get(path))

        found: Object | None = await self._read_or_note(path, read)
        return found

    async def metrics(self, pod: Object) -> list[MetricSample] | None:
        """Return the metrics of an extender pod, read through the API server's proxy; [] if the page cannot be parsed.

        None if the read fails; this is recorded in neither `refused` nor `failed`.
        """
        namespace, name = _key(pod)

        path = f"/api/v1/namespaces/{namespace}/pods/{name}:{METRICS_PORT}/proxy/metrics"
        try:
            return samples((await self._client.get(path)).decode(errors="replace"))
        except CallError:
            return None

    async def _read_or_note(self, path: str, read: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of `read`; None if it raises NotFound, Forbidden, Rejected or ServerFault.

        path: under which Forbidden is recorded in `refused`, and the latter two in `failed`. Any other CallError, such
        as Unreachable, is raised.
        """
        try:
            return await read()
        except NotFound:
            return None
        except Forbidden as error:
            self.refused[path] = error.message
            return None
        except (ServerFault, Rejected) as error:  # such as 501 of an API that lacks it: the rest can still be seen
            self.failed[path] = f"{error.status} {error.message}"
            return None


def samples(page: str) -> list[MetricSample]:
    """Return the samples of a metrics page in Prometheus' text format; [] if it cannot be parsed."""
    try:
        families = list(text_string_to_metric_families(page))
    except ValueError:
        return []
    return [MetricSample(each.name, each.labels, each.value) for family in families for each in family.samples]


def _ahead_s(client: Client) -> float | None:
    """Return by how many seconds the API server's clock is ahead of this machine's, to the second.

    None before the first answer with a date.
    """
    found_s = client.requests.server_clock.ahead_s()
    return None if found_s is None else found_s + time.monotonic() - time.time()


def _is_ours(found: Object) -> bool:
    key, _, value = OURS.partition("=")
    return bool((found["metadata"].get("labels") or {}).get(key) == value)


def _key(found: Object) -> tuple[str, str]:
    return found["metadata"]["namespace"], found["metadata"]["name"]
