"""The chart is upgraded and rolled back in mid-training, kind 20: by helm, on a real API server, programs as processes.

Each change is drawn: new values, a step back, or values under which a program cannot start, which helm gives up on and
which is rolled back. Two versions of a program run beside one another in each of them.
"""

from __future__ import annotations

import asyncio
import random
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hack.chaos.chart.world import CHART, POD_IP_FLAG, Object, World, cluster
from hack.chaos.fault_kinds import Kind
from hack.chaos.strike_table import Check, Strike
from hack.controlplane.plane import ControlPlane
from turnout.simulator.cluster.runtime.clients import ApiError

CHANGES, WORKERS = 5, 2
MAP = "leaf-1 spine-1 10.0.0.1\nleaf-1 spine-1 10.0.0.2\n"
RUNS = "pods of the job go on: none is made anew, moved or deleted"
SERVED = "an extender is ready at every moment"
KEPT = "the map is as the user wrote it"
WORKS = "a job that comes after a change runs to its end"
_READY_S, _GIVEN_UP_S, _JOB_S, _LOOK_S = 90, 12, 60.0, 0.1
_NAMESPACE = "/api/v1/namespaces/gpu-team"
_JOBS = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
_RELEASE = ("turnout", str(CHART), *POD_IP_FLAG, "--set", "controller.kinds={PyTorchJob}")
# What an upgrade may change; each makes new pods of a program.
_VALUES = (
    ("autoscaler.act", ("true", "false")),
    ("autoscaler.markPods", ("true", "false")),
    ("extender.podAnnotations.turn", ("a", "b", "c")),
    ("controller.podAnnotations.turn", ("a", "b", "c")),
    ("controller.replicas", ("1", "2")),
    ("controller.extraArgs", ("{--qps=50}", "{--lease-seconds=10}")),
)
_BROKEN = ("extender.extraArgs={--no-such-option}", "controller.extraArgs={--no-such-option}")


@dataclass(slots=True)
class _Violations:
    """The violations of each invariant."""

    runs: list[str] = field(default_factory=list)
    served: list[str] = field(default_factory=list)
    map_unchanged: list[str] = field(default_factory=list)
    works: list[str] = field(default_factory=list)

    def checks(self) -> tuple[Check, ...]:
        found = {RUNS: self.runs, SERVED: self.served, KEPT: self.map_unchanged, WORKS: self.works}
        return tuple(Check(invariant, tuple(texts)) for invariant, texts in found.items())


def play(seed: int, folder: Path) -> Strike:
    """Install the chart on a new control plane, run a job, and change the release again and again.

    Returns the strike. seed: of the changes. folder: for logs; it is created. Raises NoProgress if helm or the job does
    not do as expected.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ControlPlane() as plane:
        return asyncio.run(_play(seed, plane, folder))


async def _play(seed: int, plane: ControlPlane, folder: Path) -> Strike:
    """Install the chart, start a job, then change the release CHANGES times while the job runs.

    Returns the strike: whether the job's pods and the map survived each change, whether an extender was ready all the
    time, and whether a new job ended well after each change.
    """
    rng, violations, done = random.Random(f"upgrade/{seed}"), _Violations(), list[str]()
    async with cluster(plane, folder) as world:
        (folder / "map").write_text(MAP)
        given = ("--set-file", f"topoMapper.topology_config={folder / 'map'}")
        await world.helm("install", *_RELEASE, *given, "--create-namespace", "--wait", f"--timeout={_READY_S}s")
        await world.api.call("POST", _JOBS, _job("bert", WORKERS, "sleep 3600"))
        before = await world.until(lambda: _all_run(world))
        watching = asyncio.create_task(_look(world, violations))
        try:
            for number in range(CHANGES):
                what = await _change(world, rng, number)
                done.append(what)
                now, text, ended = (
                    await _running_pods(world),
                    await _map(world),
                    await _run_short_job(world, f"after-{number}"),
                )
                violations.runs += [f"{what}: {before} became {now}"] * (now != before)
                violations.map_unchanged += [f"{what}: {text!r}"] * (text != MAP)
                violations.works += [f"{what}: it is {ended or 'not ended'}"] * (ended != "Succeeded")
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
    return Strike(Kind.UPGRADE, seed, len(done), violations.checks(), ", ".join(done))


async def _change(world: World, rng: random.Random, number: int) -> str:
    """Change the Helm release once, at random, and return what was changed, as text.

    number: of the change; the second one is an upgrade that cannot succeed.
    """
    if number == 1:
        broken = rng.choice(_BROKEN)
        timeout = f"--timeout={_GIVEN_UP_S}s"
        await world.helm("upgrade", *_RELEASE, "--reuse-values", "--set", broken, "--wait", timeout, code=1)
        await world.helm("rollback", "turnout", "--wait", f"--timeout={_READY_S}s")
        return f"broken {broken.partition('.')[0]} rolled back"
    if number > 1 and rng.random() < 0.4:
        await world.helm("rollback", "turnout", "1", "--wait", f"--timeout={_READY_S}s")
        return "rolled back to the first"
    drawn = rng.sample(_VALUES, 2)
    values = [f"{name}={rng.choice(choices)}" for name, choices in drawn]
    arguments = (word for value in values for word in ("--set", value))
    await world.helm("upgrade", *_RELEASE, "--reuse-values", *arguments, "--wait", f"--timeout={_READY_S}s")
    return f"upgraded {' and '.join(values)}"


def _job(name: str, workers: int, command: str) -> Object:
    """Return a PyTorchJob. command: of its pods, for `sh -c`. workers: their number, with one GPU each."""
    container: Object = {"name": "pytorch", "image": "none", "command": ["sh", "-c", command]}
    container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    worker = {"replicas": workers, "restartPolicy": "OnFailure", "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"runPolicy": {"cleanPodPolicy": "All"}, "pytorchReplicaSpecs": {"Worker": worker}},
    }


async def _all_run(world: World) -> dict[str, tuple[str, str, int]]:
    """Return what `_running_pods` returns, once all WORKERS pods of the job run; {} before."""
    found = await _running_pods(world)
    return found if len(found) == WORKERS else {}


async def _running_pods(world: World) -> dict[str, tuple[str, str, int]]:
    """Return (UID, node, restarts of its containers) of each running pod of the job `bert`, by pod name.

    Pods that are being deleted are omitted.
    """
    items = (await world.get("/api/v1/namespaces/default/pods"))["items"]
    return {
        pod["metadata"]["name"]: (
            str(pod["metadata"]["uid"]),
            str(pod["spec"].get("nodeName")),
            sum(int(each["restartCount"]) for each in pod["status"].get("containerStatuses") or ()),
        )
        for pod in items
        if pod["metadata"]["name"].startswith("bert-")
        and pod["status"].get("phase") == "Running"
        and not pod["metadata"].get("deletionTimestamp")
    }


async def _map(world: World) -> str:
    found = await world.get(f"{_NAMESPACE}/configmaps/node-topology-config")
    return str((found.get("data") or {}).get("topology_config"))


async def _run_short_job(world: World, name: str) -> str:
    """Submit a job of one worker whose command ends at once. Return "Succeeded" or "Failed"; "" after _JOB_S."""
    await world.api.call("POST", _JOBS, _job(name, 1, "true"))
    end_s = asyncio.get_running_loop().time() + _JOB_S
    while asyncio.get_running_loop().time() < end_s:
        status = (await world.get(f"{_JOBS}/{name}")).get("status") or {}
        for each in status.get("conditions") or ():
            if each["type"] in ("Succeeded", "Failed") and each["status"] == "True":
                return str(each["type"])
        await asyncio.sleep(_LOOK_S)
    return ""


async def _look(world: World, violations: _Violations) -> None:
    """Ask each extender repeatedly whether it is ready, as the endpoints of its Service do, until cancelled.

    violations: gets a violation in `served` if none was ready at two successive looks. A look at which the API server
    fails does not count.
    """
    missed = 0
    while True:
        with suppress(ApiError):
            pods = await world.pods("extender")
            addresses = [str(pod["status"]["podIP"]) for pod in pods if pod["status"].get("podIP")]
            answers = await asyncio.gather(*(asyncio.to_thread(_is_ready, each) for each in addresses))
            missed = 0 if any(answers) else missed + 1
            if missed == 2:  # one look may fall between the list and the end of a pod
                violations.served.append(f"none of {len(addresses)} pods is ready")
        await asyncio.sleep(_LOOK_S)


def _is_ready(address: str) -> bool:
    """Return True if the extender at this address answers /readyz with 200."""
    try:
        with urllib.request.urlopen(f"http://{address}:9090/readyz", timeout=5) as answer:
            return int(answer.status) == 200
    except (urllib.error.URLError, OSError):
        return False
