"""Volcano's plugins svc, env, ssh, pytorch and mpi: what they add to a job's pods, and what they make beside them.

Source: docs/facts/job-kinds.md 1.5; Volcano's pkg/controllers/job/plugins
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turnout.controllers.children import meta_of
from turnout.controllers.model import ChildKey, ChildLabels, JobView, Object, Replica, Role, Seen, replica_name
from turnout.jobs.model import BadJob
from turnout.jobs.typed_fields import Part

LABELS = ChildLabels("volcano.sh/job-name", "volcano.sh/task-spec", "volcano.sh/task-index")
NAMESPACE = "volcano.sh/job-namespace"
HOSTS = "/etc/volcano"
_LONG = 4_096  # bytes of a host list: every pod would hold a copy, so longer ones are read from the ConfigMap
_AROUND = 24  # bytes of JSON around a variable's name and value
_HOST_BYTES = 128  # of a host's name at most: that of a pod, and of its job
_OPTIONS: Mapping[str, Mapping[str, str]] = {  # of each plugin, with their defaults
    "env": {},
    "svc": {"publish-not-ready-addresses": "false", "disable-network-policy": "false", "inject-hosts-env": "true"},
    "ssh": {"ssh-key-file-path": "/root/.ssh", "ssh-private-key": "", "ssh-public-key": "", "ssh-port": "22"},
    "pytorch": {"master": "master", "worker": "worker", "port": "23456"},
    "mpi": {"master": "master", "worker": "worker", "port": "22"},
}
_NEEDS = {"pytorch": ("svc",), "mpi": ("svc", "ssh")}
_KEY = "id_rsa"

Plugins = Mapping[str, Mapping[str, str]]  # options by plugin


def read(spec: Part) -> Plugins:
    """Read the plugins of a job, with those that they need. Raises BadJob."""
    part, found = spec.part("plugins"), dict[str, Mapping[str, str]]()
    for name in part.value:
        if name not in _OPTIONS:
            raise BadJob(f"{part.at(str(name)[:40])} is not known: {', '.join(sorted(_OPTIONS))} are")
        found[name] = _options(part, name)
    for name in [needed for each in found for needed in _NEEDS.get(each, ())]:
        found.setdefault(name, _OPTIONS[name])
    return found


def _options(part: Part, name: str) -> Mapping[str, str]:
    """Read arguments as Go's flags are written: -x=1, --x=1, --x 1, or --x for a switch. Raises BadJob."""
    known, found, words = _OPTIONS[name], dict(_OPTIONS[name]), list(part.texts(name))
    while words:
        word = words.pop(0)
        option, is_, value = word.lstrip("-").partition("=")
        if option not in known or not word.startswith("-"):
            raise BadJob(f"{part.at(name)} has {word!r:.40}: {', '.join(known) or 'no option'} is known")
        if not is_:
            switch = known[option] in ("true", "false")
            value = "true" if switch else words.pop(0) if words else ""
        found[option] = value
    for option in ("port", "ssh-port"):
        if option in found and not (found[option].isascii() and found[option].isdigit() and len(found[option]) < 6):
            raise BadJob(f"{part.at(name)}: {option} is {found[option]!r:.40}, a number is needed")
    return found


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
    everywhere = of_master = 0
    if "svc" in found and _is_on(found["svc"], "inject-hosts-env"):
        lists = [(key, text) for key, text in words["hosts"].items() if key.startswith("VC_")]
        everywhere = sum(len(key) + min(len(text), _LONG) + _AROUND for key, text in lists)
    if "mpi" in found:
        of_master = sum(each.replicas for each in roles if each.name == found["mpi"]["worker"]) * _HOST_BYTES
    for role in roles:
        spec = role.template["spec"]
        containers = len(spec.get("containers") or ()) + len(spec.get("initContainers") or ())
        own = of_master if "mpi" in found and role.name == found["mpi"]["master"] else 0
        yield replace(role, added_bytes=(everywhere + own) * containers)


def _config(view: JobView) -> str:
    return f"{view.name}-svc"


def _secret(view: JobView) -> str:
    return f"{view.name}-ssh-{view.uid[:8].lower()}"


def extras(view: JobView, seen: Seen) -> list[Object]:
    """Return the hosts and the Service, and the keys until the hosts are there: they are made before them."""
    plugins: Plugins = view.spec["plugins"]
    if not plugins.keys() & {"svc", "ssh"}:
        return []
    chosen = {LABELS.job: view.name, NAMESPACE: view.namespace}
    data = host_file(view.name, view.roles)
    found: list[Object] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta_of(view, _config(view), chosen), "data": data}
    ]
    if "svc" in plugins:
        early = _is_on(plugins["svc"], "publish-not-ready-addresses")
        spec = {"clusterIP": "None", "selector": chosen, "publishNotReadyAddresses": early}
        service = {"apiVersion": "v1", "kind": "Service", "metadata": meta_of(view, view.name, chosen), "spec": spec}
        found.insert(0, service)
    if "ssh" in plugins and ChildKey("ConfigMap", _config(view)) not in seen.others:
        keys = {"apiVersion": "v1", "kind": "Secret", "metadata": meta_of(view, _secret(view), chosen)}
        found.insert(0, {**keys, "type": "Opaque", "stringData": _ssh_files(view, plugins["ssh"])})
    return found


def _ssh_files(view: JobView, options: Mapping[str, str]) -> dict[str, str]:
    """Return what stands beside the keys in ~/.ssh; and the keys, where the job brings its own."""
    port = options["ssh-port"]
    names = [host for role in view.roles for host in hosts(view.name, role)]
    each = "".join(f"Host {host.partition('.')[0]}\n  HostName {host}\n  Port {port}\n" for host in names)
    found = {"config": f"StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\n{each}"}
    if private := options["ssh-private-key"]:
        public = options["ssh-public-key"]
        found |= {_KEY: private, f"{_KEY}.pub": public, "authorized_keys": public}
    return found


def in_pod(view: JobView, role: Role, replica: Replica, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod's spec with what the plugins add."""
    plugins: Plugins = view.spec["plugins"]
    made = dict(spec)
    if "svc" in plugins:
        made = _svc(view, role, replica, made, plugins["svc"])
    if "env" in plugins:
        index = str(replica.index)
        made = _with_env(made, {"VK_TASK_INDEX": index, "VC_TASK_INDEX": index})
    if "pytorch" in plugins:
        made = _pytorch(view, role, replica, made, plugins["pytorch"])
    if "mpi" in plugins:
        made = _mpi(view, role, made, plugins["mpi"])
    if "ssh" in plugins:
        items = [{"key": key, "path": f".ssh/{key}"} for key in (_KEY, f"{_KEY}.pub", "authorized_keys", "config")]
        path = plugins["ssh"]["ssh-key-file-path"]
        mode = 0o600 if path == _OPTIONS["ssh"]["ssh-key-file-path"] else 0o644
        volume = {"secret": {"secretName": _secret(view), "items": items, "defaultMode": mode}}
        made = with_mount(made, f"{view.name}-ssh", volume, {"mountPath": path, "subPath": ".ssh"})
    return made


def _svc(
    view: JobView, role: Role, replica: Replica, spec: dict[str, Any], options: Mapping[str, str]
) -> dict[str, Any]:
    made = {"hostname": replica_name(view, role, replica), "subdomain": view.name, **spec}
    if _is_on(options, "inject-hosts-env"):
        data: Mapping[str, str] = view.spec["hosts"]
        env = {key: value for key, value in data.items() if key.startswith("VC_")}
        made = _with_env(made, {key: _value(view, key, value) for key, value in env.items()})
    return with_mount(made, _config(view), {"configMap": {"name": _config(view)}}, {"mountPath": HOSTS})


def _value(view: JobView, key: str, value: str) -> str | Object:
    return value if len(value) <= _LONG else {"configMapKeyRef": {"name": _config(view), "key": key}}


def _pytorch(
    view: JobView, role: Role, replica: Replica, spec: dict[str, Any], options: Mapping[str, str]
) -> dict[str, Any]:
    """Add torch's variables. Rank 0 is the master task's pod; of a job without one, the first worker."""
    by_name = {each.name: each for each in view.roles}
    named = [by_name[name] for name in (options["master"], options["worker"]) if name in by_name]
    members = named or [view.roles[0]]
    first = hosts(view.name, replace(members[0], replicas=min(1, members[0].replicas)))
    env = {"MASTER_ADDR": (first or [""])[0], "MASTER_PORT": options["port"]}
    env["WORLD_SIZE"] = str(sum(each.replicas for each in members))
    if role in members:
        env["RANK"] = str(sum(each.replicas for each in members[: members.index(role)]) + replica.index)
    return _with_port(_with_env(spec, env, inits=False), "pytorchjob-port", int(options["port"]))


def _mpi(view: JobView, role: Role, spec: dict[str, Any], options: Mapping[str, str]) -> dict[str, Any]:
    worker = next((each for each in view.roles if each.name == options["worker"]), None)
    if role.name == options["master"] and worker is not None:
        spec = _with_env(spec, {"MPI_HOST": ",".join(hosts(view.name, worker))})
    return _with_port(spec, "mpijob-port", int(options["port"]))


def _with_env(spec: dict[str, Any], env: Mapping[str, str | Object], *, inits: bool = True) -> dict[str, Any]:
    """Return a pod's spec with variables added to every container that does not set them itself."""
    added = [{"name": k, **({"value": v} if isinstance(v, str) else {"valueFrom": v})} for k, v in env.items()]

    def told(container: Object) -> Object:
        own = list(container.get("env") or ())
        named = {each.get("name") for each in own}
        return {**container, "env": [*own, *(each for each in added if each["name"] not in named)]}

    return _each(spec, told, inits=inits)


def _with_port(spec: dict[str, Any], name: str, port: int) -> dict[str, Any]:
    def served(container: Object) -> Object:
        own = list(container.get("ports") or ())
        if any(each.get("containerPort") == port or each.get("name") == name for each in own):
            return container
        return {**container, "ports": [*own, {"name": name, "containerPort": port}]}

    return _each(spec, served, inits=False)


def with_mount(spec: dict[str, Any], name: str, volume: Object, mount: Object) -> dict[str, Any]:
    """Return a pod's spec with a volume that every container mounts."""

    def mounted(container: Object) -> Object:
        return {**container, "volumeMounts": [*(container.get("volumeMounts") or ()), {**mount, "name": name}]}

    own = list(spec.get("volumes") or ())
    there = any(each.get("name") == name for each in own)
    return _each({**spec, "volumes": own if there else [*own, {"name": name, **volume}]}, mounted)


def _each(spec: dict[str, Any], change: Callable[[Object], Object], *, inits: bool = True) -> dict[str, Any]:
    keys = [key for key in (("initContainers", "containers") if inits else ("containers",)) if spec.get(key)]
    return {**spec, **{key: [change(each) for each in spec[key]] for key in keys}}
