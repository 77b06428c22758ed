"""Volcano's job plugins `svc`, `env` and `pytorch`, as far as pods see them. Source: docs/facts/job-kinds.md 1.5."""

from __future__ import annotations

from turnout.simulator.cluster.controllers.model import Create, Object, Write, owned

_PORT = 23456  # of the pytorch plugin


def extras(job: Object) -> list[Write]:
    """Return what plugins create besides pods: for svc a headless Service, which also leads to unready pods."""
    if "svc" not in (job["spec"].get("plugins") or {}):
        return []
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    selector = {"volcano.sh/job-name": name, "volcano.sh/job-namespace": namespace}
    meta = {"name": name, "namespace": namespace, "ownerReferences": owned(job, "batch.volcano.sh/v1alpha1", "Job")}
    spec = {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": True}
    return [Create("services", {"metadata": meta, "spec": spec})]


def in_pod(job: Object, task: Object, index: int) -> tuple[Object, list[Object]]:
    """Return what plugins add to a pod: fields of its spec, and variables."""
    plugins = job["spec"].get("plugins") or {}
    fields: Object = {}
    env: dict[str, str] = {}
    if "svc" in plugins:
        name = job["metadata"]["name"]
        fields = {"hostname": f"{name}-{task['name']}-{index}", "subdomain": name}
        for each in job["spec"]["tasks"]:
            word = each["name"].replace("-", "_").upper()
            env[f"VC_{word}_HOSTS"] = ",".join(_host(job, each, number) for number in range(each["replicas"]))
            env[f"VC_{word}_NUM"] = str(each["replicas"])
    if "env" in plugins:
        env |= {"VC_TASK_INDEX": str(index), "VK_TASK_INDEX": str(index)}
    if "pytorch" in plugins:
        env |= _pytorch(job, task, index)
    return fields, [{"name": key, "value": value} for key, value in env.items()]


def _host(job: Object, task: Object, index: int) -> str:
    name = job["metadata"]["name"]
    return f"{name}-{task['name']}-{index}.{name}"


def _pytorch(job: Object, task: Object, index: int) -> dict[str, str]:
    """Return the variables of torch's launcher. Rank 0 is the master task's pod, else the first worker."""
    tasks = sorted(job["spec"]["tasks"], key=lambda each: bool(each["name"] != "master"))
    ranks = [(each["name"], number) for each in tasks for number in range(each["replicas"])]
    return {
        "MASTER_ADDR": _host(job, tasks[0], 0),
        "MASTER_PORT": str(_PORT),
        "WORLD_SIZE": str(len(ranks)),
        "RANK": str(ranks.index((task["name"], index))),
    }
