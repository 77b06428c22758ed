"""A newer Kubernetes than the one that the other tests run on: what is installed is taken there, too."""

from pathlib import Path

import pytest
import yaml

from hack.codegen import crds
from hack.controlplane.tools.parts import NEXT
from tests.deploy.test_crds import DEFINITIONS, _served
from tests.deploy.test_manifests import MANIFESTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real,
    pytest.mark.asyncio,
    pytest.mark.parametrize("control_plane", [{"release": NEXT}], indirect=True, ids=["1.37"]),
]

CRDS = Path(__file__).parents[2] / "deploy/crds"


async def test_every_definition_and_every_guides_job_is_taken(control_plane):
    async with control_plane.api() as api:
        for file in sorted(CRDS.rglob("*.yaml")):
            await api.create(yaml.safe_load(file.read_text()))
        await api.until(DEFINITIONS, lambda all_: sum(_served(each) for each in all_) >= len(crds.files()))
        kinds = set()
        for file in sorted((CRDS.parents[1] / "examples/jobs").glob("*.yaml")):
            for raw in yaml.safe_load_all(file.read_text()):
                kinds.add(raw["kind"])
                stored = await api.create(raw)
                assert stored.get("spec") == raw.get("spec"), file.name
        assert kinds >= {"PyTorchJob", "ElasticJob", "MSJob", "ColossalAIJob", "Job"}


async def test_every_manifest_is_taken(control_plane):
    """Policies with their CEL among them."""
    async with control_plane.api() as api:
        files = [each for each in MANIFESTS.rglob("*.yaml") if each.name != "kustomization.yaml"]
        objects = {}
        for raw in (each for file in sorted(files) for each in yaml.safe_load_all(file.read_text()) if each):
            place = raw["metadata"].get("namespace"), raw["metadata"]["name"]
            objects.setdefault((raw["kind"] != "Namespace", raw["apiVersion"], raw["kind"], *place), raw)
        for name in sorted(objects, key=str):  # False comes first: namespaces
            await api.create(objects[name])
        assert len(objects) > 40
