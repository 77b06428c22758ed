"""Training under our own controller: real agents, processes and torch in the pods of a real API server and scheduler.

The jobs are those of deploy/examples/launcher, as under training-operator (tests/e2e/launcher).
"""

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from tests.e2e.controllers.installed import ROOT, install
from tests.e2e.launcher.operated import FIRST, JOBS, PODS, bare, conditions, example, given, operated

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

TRAIN = Path(__file__).parents[1] / "launcher/train.py"
ONCE = "if [ -e {file} ]; then exit 0; fi; touch {file}; exit {code}"
RUNS = "turnout-run --no-fork --no-python "


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("stories")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(module_plane, folder, tmp_path_factory):
    jobs = [
        example("bert", f"{FIRST} turnout-run {TRAIN} {folder}", workers=3),
        example("alone", f"exec {RUNS} touch {folder}/alone", workers=1, standalone=True),
        bare("faulty", ONCE.format(file=folder / "faulty", code=138), "ExitCode"),
        bare("stays", ONCE.format(file=folder / "stays", code=1), "OnFailure"),
    ]
    async with module_plane.api() as api:
        for file in sorted((ROOT / "deploy/crds").glob("*.yaml")):
            await api.create(yaml.safe_load(await asyncio.to_thread(file.read_text)))
        async with operated(module_plane, tmp_path_factory.mktemp("pods"), install(module_plane, api)) as world:
            for job in ("bert", "alone"):
                await api.create_all(given(job))
            await api.create_all(jobs)
            yield world


@pytest.mark.slow
@pytest.mark.contract("PE-40", "PE-41", "PE-48")
async def test_an_elastic_job_is_resized_by_its_scale_and_trains_to_its_end(world, folder):
    names = ["bert-worker-0", "bert-worker-1", "bert-worker-2"]
    await world.wait_for_file(folder / "round-1-of-3", names, within_s=300.0)
    assert world.env["bert-worker-1"]["PET_RDZV_ENDPOINT"].startswith("bert-worker-0:")
    await scale(world, 2)
    await world.wait_for_file(folder / "round-2-of-2", names[:2], within_s=180.0)
    await scale(world, 3)
    await world.wait_for_file(folder / "round-3-of-3", names, within_s=180.0)
    assert [len(world.uids[name]) for name in names] == [1, 1, 2]  # the highest index left, and came again
    (folder / "enough").touch()
    job = await world.condition("bert", "Succeeded", within_s=180.0)
    assert "Running" not in conditions(job)


async def scale(world, replicas):
    """Give the job another size as an HPA or the autoscaler would."""
    path, kind = f"{JOBS}/bert/scale", "application/merge-patch+json"
    await world.api.call("PATCH", path, {"spec": {"replicas": replicas}}, kind)


async def test_one_worker_alone_comes_to_its_end(world, folder):
    await world.condition("alone", "Succeeded")
    assert (folder / "alone").exists()


@pytest.mark.parametrize(
    ("name", "pods", "codes"),
    [
        pytest.param("faulty", 2, [138, 0], id="a new pod for a code of 128 and above"),
        pytest.param("stays", 1, [1, 0], id="the same pod where its container is restarted"),
    ],
)
async def test_a_worker_that_fails_runs_again(world, name, pods, codes):
    await world.condition(name, "Succeeded")
    await world.until(lambda: len(world.codes[f"{name}-worker-0"]) == len(codes))
    assert (len(world.uids[f"{name}-worker-0"]), world.codes[f"{name}-worker-0"]) == (pods, codes)


async def test_a_job_that_is_deleted_takes_all_it_owned_with_it(world):
    await world.condition("alone", "Succeeded")
    await world.api.call("DELETE", f"{JOBS}/alone")
    async with asyncio.timeout(40):
        async for _ in world.api.changes(PODS):
            left = (await world.api.call("GET", PODS))["items"]
            if not any(pod["metadata"]["name"].startswith("alone-") for pod in left):
                return
