"""The job controllers as the manifests install them: their own account, roles and arguments, as a process."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import yaml

from hack.codegen import chart
from hack.controlplane.plane import free_ports

ROOT = Path(__file__).parents[3]
MANIFESTS = ROOT / "deploy/manifests/controllers"
SYSTEM, CONTROLLER = "turnout-system", "turnout-controller"


async def install(plane, api, *more, kinds=""):
    """Install the account and its roles and start the controller. more: arguments beside those of the Deployment.

    kinds: rendered by the chart for these alone, where they are not those of the manifest.
    """
    await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    deployment = None
    for each in await asyncio.to_thread(_objects, kinds):
        if each["kind"] == "Deployment":
            deployment = each
        elif each["kind"] not in ("PodDisruptionBudget", "NetworkPolicy"):
            await api.create(each)
    await asyncio.to_thread(start, plane, deployment, *more)


async def begin_again(plane, *more):
    """Start the controller of the manifest once more, in place of one that runs or was killed."""
    objects = await asyncio.to_thread(_objects, "")
    (deployment,) = (each for each in objects if each["kind"] == "Deployment")
    await asyncio.to_thread(start, plane, deployment, *more)


def _objects(kinds):
    if not kinds:
        return list(yaml.safe_load_all((MANIFESTS / "controller.yaml").read_text()))
    values = {**chart.CONTROLLER, "controller.crds": "false", "controller.kinds": f"{{{kinds}}}"}
    return chart.documents(chart.render({**chart.ALWAYS, **values}))


def start(plane, deployment, *more):
    """Start the program that the Deployment names, with its account's token."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (port,) = free_ports(1)
    probes = f"127.0.0.1:{port}"
    replacements = {"$(POD_NAMESPACE)": SYSTEM, "0.0.0.0:9094": probes}
    arguments = container["args"]
    for word, value in replacements.items():
        arguments = [each.replace(word, value) for each in arguments]
    assert container["command"] == [CONTROLLER]
    kubeconfig = plane.service_account_kubeconfig(SYSTEM, CONTROLLER)
    argv = [sys.executable, "-m", "turnout.controllers", *arguments, f"--kubeconfig={kubeconfig}", *more]
    plane.start_program(CONTROLLER, argv, f"http://{probes}/readyz")
