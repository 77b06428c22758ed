"""Volcano's plugins svc and env: their additions to the pods of a job, and the objects that svc creates.

Source: docs/facts/job-kinds.md 1.5; Volcano's pkg/controllers/job/plugins
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnout.controllers.children import meta_of
from turnout.controllers.model import ChildLabels, JobView, KnownChildren, Object, Replica, Role, replica_name
from turnout.jobs.model import BadJob
from turnout.jobs.typed_fields import Part

LABELS = ChildLabels("volcano.sh/job-name", "volcano.sh/task-spec", "volcano.sh/task-index")
NAMESPACE = "volcano.sh/job-namespace"
HOSTS = "/etc/volcano"
_LONG = 4_096  # bytes of a host list: every pod would hold a copy, so longer ones are read from the ConfigMap
_AROUND = 24  # bytes of JSON around a variable's name and value
_OPTIONS: Mapping[str, Mapping[str, str]] = {  # switches of each plugin, with their defaults
    "env": {},
    "svc": {"publish-not-ready-addresses": "false", "disable-network-policy": "false", "inject-hosts-env": "true"},
}

Plugins = Mapping[str, Mapping[str, str]]  # options by plugin


def read(spec: Part) -> Plugins:
    """Read the plugins of a job. Raises BadJob."""
    part, found = spec.part("plugins"), dict[str, Mapping[str, str]]()
    for name in part.value:
        if name not in _OPTIONS:
            raise BadJob(f"{part.at(str(name)[:40])} is not supported: {', '.join(sorted(_OPTIONS))} are")
        found[name] = _options(part, name)
    return found


def _options(part: Part, name: str) -> Mapping[str, str]:
    """Read switches as Go's flags are written: -x, --x or --x=false. Raises BadJob."""
    options = dict(_OPTIONS[name])
    for word in part.texts(name):
        option, is_, value = word.lstrip("-").partition("=")
        if option not in options or not word.startswith("-"):
            raise BadJob(f"{part.at(name)} has {word!r:.40}: {', '.join(options) or 'no option'} is known")
        options[option] = value if is_ else "true"
    return options


def _is_on(options: Mapping[str, str], name: str) -> bool:
    return options[name].lower() in ("1", "t", "true")


def hosts(job: str, role: Role) -> list[str]:
    """Return the names under which the pods of a task are reached. One that its template names is one alone."""
    spec = role.template["spec"]
    domain = spec.get("subdomain") or job
    if spec.get("hostname"):
        return [f"{spec['hostname']}.{domain}"]
    return [f"{job}-{role.label}-{index}.{domain}" for index in range(role.replicas)]


def host_file(job: str, roles: Sequence[Role]) -> dict[str, str]:
    """Return the content of the hosts ConfigMap."""
    found = {}
    for role in roles:
        word, listed = role.label.replace("-", "_"), hosts(job, role)
        found[f"{word}.host"] = "\n".join(listed)
        found[f"VC_{word.upper()}_HOSTS"] = ",".join(listed)
        found[f"VC_{word.upper()}_NUM"] = str(len(listed))
    return found


def with_added_bytes(words: Object, roles: Sequence[Role]) -> Iterator[Role]:
    """Give the tasks with what the plugins add to each of their pods that grows with the job: its host lists.

    words: what only this kind reads of the job. The bytes are of JSON, about.
    """
    found: Plugins = words["plugins"]
    added = 0
    if "svc" in found and _is_on(found["svc"], "inject-hosts-env"):
        lists = [(key, text) for key, text in words["hosts"].items() if key.startswith("VC_")]
        added = sum(len(key) + min(len(text), _LONG) + _AROUND for key, text in lists)
    for role in roles:
        spec = role.template["spec"]
        containers = len(spec.get("containers") or ()) + len(spec.get("initContainers") or ())
        yield replace(role, added_bytes=added * containers)


def _config(view: JobView) -> str:
    return f"{view.name}-svc"


def extras(view: JobView, _known: KnownChildren) -> list[Object]:
    """Return the Service and the host lists that the plugin svc makes."""
    plugins: Plugins = view.spec["plugins"]
    if "svc" not in plugins:
        return []
    chosen = {LABELS.job: view.name, NAMESPACE: view.namespace}
    early = _is_on(plugins["svc"], "publish-not-ready-addresses")
    spec = {"clusterIP": "None", "selector": chosen, "publishNotReadyAddresses": early}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": meta_of(view, view.name, chosen), "spec": spec}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta_of(view, _config(view), chosen)}
    return [service, {**config, "data": host_file(view.name, view.roles)}]


def in_pod(view: JobView, role: Role, replica: Replica, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod's spec with what the plugins add."""
    plugins: Plugins = view.spec["plugins"]
    changed = dict(spec)
    if "svc" in plugins:
        changed = _svc(view, role, replica, changed, plugins["svc"])
    if "env" in plugins:
        index = str(replica.index)
        changed = _with_env(changed, {"VK_TASK_INDEX": index, "VC_TASK_INDEX": index})
    return changed


def _svc(
    view: JobView, role: Role, replica: Replica, spec: dict[str, Any], options: Mapping[str, str]
) -> dict[str, Any]:
    changed = {"hostname": replica_name(view, role, replica), "subdomain": view.name, **spec}
    if _is_on(options, "inject-hosts-env"):
        data: Mapping[str, str] = view.spec["hosts"]
        env = {key: value for key, value in data.items() if key.startswith("VC_")}
        changed = _with_env(changed, {key: _value(view, key, value) for key, value in env.items()})
    return _with_mount(changed, _config(view), {"configMap": {"name": _config(view)}}, {"mountPath": HOSTS})


def _value(view: JobView, key: str, value: str) -> str | Object:
    return value if len(value) <= _LONG else {"configMapKeyRef": {"name": _config(view), "key": key}}


def _with_env(spec: dict[str, Any], env: Mapping[str, str | Object]) -> dict[str, Any]:
    """Return a pod's spec with variables added to every container that does not set them itself."""
    added = [{"name": k, **({"value": v} if isinstance(v, str) else {"valueFrom": v})} for k, v in env.items()]

    def changed(container: Object) -> Object:
        own = list(container.get("env") or ())
        named = {each.get("name") for each in own}
        return {**container, "env": [*own, *(each for each in added if each["name"] not in named)]}

    return _each(spec, changed)


def _with_mount(spec: dict[str, Any], name: str, volume: Object, mount: Object) -> dict[str, Any]:
    """Return a pod's spec with a volume that every container mounts."""

    def mounted(container: Object) -> Object:
        return {**container, "volumeMounts": [*(container.get("volumeMounts") or ()), {**mount, "name": name}]}

    own = list(spec.get("volumes") or ())
    has_volume = any(each.get("name") == name for each in own)
    return _each({**spec, "volumes": own if has_volume else [*own, {"name": name, **volume}]}, mounted)


def _each(spec: dict[str, Any], change: Callable[[Object], Object]) -> dict[str, Any]:
    keys = [key for key in ("initContainers", "containers") if spec.get(key)]
    return {**spec, **{key: [change(each) for each in spec[key]] for key in keys}}
