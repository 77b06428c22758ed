"""Objects of two controllers made comparable: without what the API server fills in, and with what we do differently.

`as_ours` turns an object of the Training Operator into what ours has to be, one named difference after another.
"""

from __future__ import annotations

import copy
import json
import re

SERVERS = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "namespace", "selfLink")
TIMES = ("lastUpdateTime", "lastTransitionTime")


def pod(raw):
    """Return what a controller says of a pod."""
    spec = {key: raw["spec"].get(key) for key in ("containers", "initContainers", "restartPolicy", "schedulerName")}
    spec["priorityClassName"] = raw["spec"].get("priorityClassName")
    return {"metadata": meta(raw), "spec": _without_defaults(spec)}


def service(raw):
    """Return what a controller says of a Service."""
    spec = {key: raw["spec"].get(key) for key in ("clusterIP", "selector")}
    ports = sorted((each.get("name", ""), each["port"]) for each in raw["spec"].get("ports") or ())
    return {"metadata": meta(raw), "spec": {**spec, "ports": ports}}


def other(raw):
    """Return what a controller says of an HPA or a PodGroup."""
    return {"metadata": meta(raw), "spec": raw["spec"]}


def meta(raw):
    """A child's metadata, its owner by name."""
    found = {key: each for key, each in raw["metadata"].items() if key not in SERVERS}
    found["ownerReferences"] = [
        {key: each for key, each in owner.items() if key != "uid"} for owner in found.get("ownerReferences", ())
    ]
    return {**found, "annotations": found.get("annotations") or {}}


def status(raw):
    """A job's status without its times; a job that has no status yet has none."""
    found = raw.get("status") or {}
    conditions = [
        {key: each for key, each in one.items() if key not in (*TIMES, "message")}
        for one in found.get("conditions") or ()
    ]
    replicas = {
        role: {
            key: each for key, each in counts.items() if key in ("active", "succeeded", "failed", "selector") and each
        }
        for role, counts in (found.get("replicaStatuses") or {}).items()
    }
    times = {key: key in found for key in ("startTime", "completionTime")}
    return {"conditions": conditions, "replicaStatuses": replicas, **times}


def conditions(raw):
    """Return a job's conditions without their times, in the order of their types."""
    found = (raw.get("status") or {}).get("conditions") or ()
    return tuple(sorted((each["type"], each["status"], each["reason"]) for each in found))


def _without_defaults(spec):
    """The API server's own defaults differ with nothing: both went through it. The token's volume has a random name."""
    spec = copy.deepcopy(spec)
    for container in (*spec["containers"], *(spec["initContainers"] or ())):
        container["volumeMounts"] = [
            each for each in container.get("volumeMounts") or () if not each["name"].startswith("kube-api-access-")
        ]
    return spec


def as_ours(raw_object, job):
    """A pod of the Training Operator with what ours does differently."""
    raw_object = copy.deepcopy(raw_object)
    elastic = job["spec"].get("elasticPolicy")
    for init in raw_object["spec"]["initContainers"] or ():
        if init["name"] == "init-pytorch":  # a name may stand in /etc/hosts, too
            init["command"][2] = _looked_up(init["command"][2])
    for container in raw_object["spec"]["containers"]:
        container["env"] = _env(container.get("env") or [], elastic)
        for port in container.get("ports") or ():  # SD-14: 29400 is the default of an elastic job
            if elastic is not None and port["name"] == "pytorchjob-port" and port["containerPort"] == 23456:
                port["containerPort"] = 29400 if "worker" in raw_object["metadata"]["name"] else 23456
    return raw_object


def _looked_up(command):
    (host,) = re.findall(r"nslookup (\S+);", command)
    both = command.replace(f"nslookup {host}", f"getent hosts {host} || nslookup {host}")
    return both.replace("waiting for master", f"waiting for {host}")


def _env(env, elastic):
    found, names = [], [each["name"] for each in env]
    if names.count("PYTHONUNBUFFERED") > 1:  # PE-43: the user's own wins; upstream's second one would
        env = (
            env[: len(env) - 1 - names[::-1].index("PYTHONUNBUFFERED")]
            + env[len(env) - names[::-1].index("PYTHONUNBUFFERED") :]
        )
    for each in env:
        if each["name"] == "PET_STANDALONE":  # SD-13: an empty value ends torchrun
            each = {**each, "value": "1"}
        if each["name"] == "PET_RDZV_ENDPOINT" and elastic is not None and each["value"].endswith(":23456"):
            each = {**each, "value": each["value"].replace(":23456", ":29400")}  # SD-14
        found.append(each)
        if each["name"] == "PET_NNODES" and elastic is not None:  # SD-12: the guide's name beside torchrun's
            found.append({"name": "PET_NODES", "value": each["value"]})
    if elastic is not None and "PET_NPROC_PER_NODE" in names:  # SD-12
        value = next(each["value"] for each in env if each["name"] == "PET_NPROC_PER_NODE")
        found.append({"name": "PET_N_PROC_PER_NODE", "value": value})
    return sorted(found, key=lambda each: each["name"])


def sorted_env(raw_container):
    """Our pod, its environment by name: only the user's own has an order that counts, and it comes first in both."""
    raw_container = copy.deepcopy(raw_container)
    for container in raw_container["spec"]["containers"]:
        container["env"] = sorted(container.get("env") or [], key=lambda each: each["name"])
    return raw_container


def waits_for_worker_0(raw_pod):
    """True for the init container that ours adds where there is no Master (VE-25)."""
    return any("-worker-0" in json.dumps(each["command"]) for each in raw_pod["spec"]["initContainers"] or ())
