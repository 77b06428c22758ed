"""Every change meets a real API server, with the CRDs that projects publish where tests/crds has them.

The other kinds are served by a definition that takes any object: there the server shows only that the patch is one.
"""

from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from hack.controlplane.api import MERGE
from hack.controlplane.errors import ApiError
from tests.deploy.test_autoscaler_installed import CRDS, loose_crd, serve
from tests.jobs.kinds.manifests import SAMPLES
from tests.jobs.kinds.test_every_kind import RESIZED
from tests.kit.published_crds import find
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import Bounds

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

STRICT = "?fieldValidation=Strict"
OURS = Path(__file__).parents[3] / "deploy/crds"
PLAN_SPEC = {  # as DLRover published it until March 2025
    "ownerJob": {"type": "string"},
    "replicaResourceSpecs": {
        "type": "object",
        "additionalProperties": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
    },
}


def definition(kind):
    """A kind's CRD as its project publishes it, else ours, if either is here; None for the API server's own kinds."""
    group, version, plural = KINDS[kind].path.split("/")[2:]
    if group == "batch":
        return None
    if (published := find(group, plural)) is not None:
        return published
    if kind in ("MSJob", "PyTorchJob.ctyun.cn"):
        return yaml.safe_load((OURS / f"{plural}.{group}.yaml").read_text())
    return loose_crd(f"{group}/{version}", object_kind(kind))


def object_kind(kind):
    return KINDS[kind].object_kind or kind


def plan_definition():
    definition = loose_crd("elastic.iml.github.io/v1alpha1", "ScalePlan")
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": PLAN_SPEC}}}
    definition["spec"]["versions"][0]["schema"] = {"openAPIV3Schema": schema}
    return definition


@pytest_asyncio.fixture
async def api(module_plane):
    async with module_plane.api() as api:
        if not (await api.get(CRDS))["items"]:
            found = [crd for kind in RESIZED if (crd := definition(kind)) is not None]
            for crd in found:
                crd["spec"].pop("conversion", None)  # whose webhooks are not running
            await serve(api, *found, plan_definition())
        yield api


def submitted(kind):
    """The sample as kubectl would send it."""
    raw = SAMPLES[kind]
    group, version = KINDS[kind].path.split("/")[2:4]
    meta = {"name": kind.lower(), "namespace": "default", "annotations": raw["metadata"]["annotations"]}
    spec = dict(raw["spec"])
    if kind == "Job":
        spec["template"] = {"spec": {**spec["template"]["spec"], "restartPolicy": "Never"}}
    if kind == "LeaderWorkerSet":
        spec["startupPolicy"] = "LeaderCreated"
    return {"apiVersion": f"{group}/{version}", "kind": object_kind(kind), "metadata": meta, "spec": spec}


@pytest.mark.parametrize("kind", RESIZED)
async def test_the_server_takes_each_change_once_and_shows_the_new_size(api, kind):
    of_kind, _, plural = KINDS[kind].path.rpartition("/")
    raw = await api.call("POST", f"{of_kind}/namespaces/default/{plural}{STRICT}", submitted(kind))
    assert (KINDS[kind].read(raw).replicas, KINDS[kind].read(raw).refused) == (4, "")
    change = KINDS[kind].change(raw, 2, ("w-c", "w-d"))
    after = await api.call("PATCH", change.path + STRICT, change.body, MERGE)
    job = KINDS[kind].read(after)
    assert (job.replicas, job.bounds, job.wanted_workers, job.refused) == (2, Bounds(2, 8), None, "")
    with pytest.raises(ApiError, match="the object has been modified"):
        await api.call("PATCH", change.path, change.body, MERGE)


async def test_the_server_takes_a_plan_once(api):
    body = {**submitted("ElasticJob"), "metadata": {**submitted("ElasticJob")["metadata"], "name": "planned"}}
    plans_path = f"{KINDS['ElasticJob'].path.rpartition('/')[0]}/namespaces/default/elasticjobs"
    raw = await api.call("POST", plans_path, body)
    change = KINDS["ElasticJob"].change(raw, 6).then
    stored = await api.call("POST", change.path + STRICT, change.body)
    assert stored["spec"] == {"ownerJob": "planned", "replicaResourceSpecs": {"worker": {"replicas": 6}}}
    assert stored["metadata"]["ownerReferences"][0]["uid"] == raw["metadata"]["uid"]
    with pytest.raises(ApiError, match="AlreadyExists"):
        await api.call("POST", change.path, change.body)
