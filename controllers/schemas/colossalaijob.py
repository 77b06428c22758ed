"""The CustomResourceDefinition of ColossalAIJobs. Source: CA-01 to CA-42, CA-49 to CA-59"""

from __future__ import annotations

from turnout.controllers.kinds.colossalaijob import MOST_PRIORITY
from turnout.controllers.kinds.colossalaijob_pods import WORKER
from turnout.controllers.kinds.fields import MOST_REPLICAS
from turnout.controllers.model import Kind, Object
from turnout.controllers.schemas.common import ANY, COUNT, TEXT, TIME, definition, job_status, role, rules

_TEXTS: Object = {"type": "array", "maxItems": 1024, "items": TEXT}
_FLAG: Object = {"type": "boolean"}


def colossalaijob(kind: Kind, group: str, version: str) -> Object:
    """Return the definition of ColossalAIJobs. They have no scale: a host list is fixed when training starts."""
    return definition(kind, group, version, _spec(), _status(), _COLUMNS, None)


_COLUMNS = (
    ("Phase", "string", ".status.phase"),
    ("Workers", "integer", ".spec.worker.replicas"),
    ("Age", "date", ".metadata.creationTimestamp"),
)


def _object(properties: Object, *required: str) -> dict[str, object]:
    schema: dict[str, object] = {"type": "object", "properties": properties}
    return {**schema, "required": list(required)} if required else schema


def _spec() -> Object:
    absolute = ("self.startsWith('/')", "spec.ssh.sshdPath: an absolute path is needed")
    turn = _object({"queue": TEXT, "priority": {**COUNT, "maximum": MOST_PRIORITY}})
    worker = {
        "replicas": {**COUNT, "minimum": 1, "maximum": MOST_REPLICAS, "default": 1},
        "procPerWorker": {**COUNT, "minimum": 1, "default": 1},
        "command": {**_TEXTS, "minItems": 1},
        "torchArgs": _TEXTS,
        "template": role(WORKER)["properties"]["template"],
    }
    properties = {
        "ssh": _object({"authMountPath": TEXT, "sshdPath": {**TEXT, "x-kubernetes-validations": rules([absolute])}}),
        "launcher": {
            **_object({"image": TEXT, "workingDir": TEXT}, "image"),
            "x-kubernetes-preserve-unknown-fields": True,
        },
        "worker": _object(worker, "command", "template"),
        "runPolicy": _object({"cleanUpWorkers": _FLAG}),
        "runMode": _run_mode(),
        "scheduler": _object({"t9kScheduler": turn}),
    }
    spec = _object(properties, "launcher", "worker")
    return {**spec, "x-kubernetes-validations": rules([_resumed_as_before()])}


def _run_mode() -> Object:
    one = _object({"type": TEXT, "skipInitContainer": _FLAG, "command": _TEXTS, "args": _TEXTS}, "type")
    several = {"type": "array", "maxItems": 8, "items": one}
    pause = _object({"enabled": _FLAG, "resumeSpecs": several})
    return _object({"debug": _object({"enabled": _FLAG, "replicaSpecs": several}), "pause": pause})


def _resumed_as_before() -> tuple[str, str]:
    """Return the rule of resumeSpecs, which holds for whoever takes the fields around them away, too."""
    path, steps = "", []
    for field in ("runMode", "pause", "resumeSpecs"):
        steps.append(f"has({{0}}{path}.{field})")
        path += f".{field}"
    had, has = (" && ".join(steps).format(each) for each in ("oldSelf", "self"))
    rule = f"!({had}) || ({has} && self{path} == oldSelf{path})"
    return rule, f"spec{path} never change once they are set"


def _status() -> Object:
    replica = _object(
        {"phase": TEXT, "name": TEXT, "uid": TEXT, "message": TEXT, "containers": {"type": "array", "items": ANY}}
    )
    several = {"type": "array", "items": replica}
    counts = ("creating", "pending", "running", "succeeded", "failed", "deleted", "unknown")
    task = _object({"type": TEXT, "restartCount": COUNT, "status": several, "replicas": several})
    return _object(
        {
            "phase": TEXT,
            "conditions": job_status()["properties"]["conditions"],
            "tasks": {"type": "array", "items": task},
            "aggregate": _object(dict.fromkeys(counts, COUNT)),
            **dict.fromkeys(("startTime", "completionTime"), TIME),
        }
    )
