"""Work out the contents of a pod's volumes: files made from objects or a service account, or a folder of the host."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from turnout.simulator.api.model import value_at
from turnout.simulator.processes.container_spec import (
    CannotStart,
    Sources,
    contents,
    from_field,
    from_resource,
    referenced_object,
)

Object = dict[str, Any]
_MODE = 0o644


@dataclass(frozen=True, slots=True)
class File:
    """One file of a volume."""

    data: bytes
    mode: int = _MODE  # permission bits


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file with a service account's token, which only the API server can give."""

    expires_s: int  # lifetime of the token, in seconds
    audience: str = ""  # "" for the API server


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume."""

    name: str
    # path in it -> file, written before each start of a container
    files: Mapping[str, File] = field(default_factory=dict)
    tokens: Mapping[str, TokenFile] = field(default_factory=dict)  # path in it -> token to request
    in_memory: bool = False  # True: an emptyDir on tmpfs
    host_path: str = ""  # a folder or file of this machine, used as it is
    make: bool = False  # True: `host_path` is created when it is missing


def wanted_objects(pod: Object) -> tuple[set[str], set[str], set[str]]:
    """Return the names of (ConfigMaps, Secrets, claims) that a pod refers to, in volumes and environments.

    Optional references are included. Claims are PersistentVolumeClaims.
    """
    volumes = pod["spec"].get("volumes") or []
    sources = [*volumes, *(source for each in volumes for source in value_at(each, "projected", "sources") or ())]
    containers = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    all_of = [each for container in containers for each in container.get("envFrom") or ()]
    variables = [each for container in containers for each in container.get("env") or ()]
    maps = _names(sources, "configMap", "name") | _names(all_of, "configMapRef", "name")
    secrets = _names(sources, "secret", "secretName") | _names(sources, "secret", "name")
    return (
        maps | _names(variables, "valueFrom", "configMapKeyRef", "name"),
        secrets | _names(all_of, "secretRef", "name") | _names(variables, "valueFrom", "secretKeyRef", "name"),
        _names(volumes, "persistentVolumeClaim", "claimName"),
    )


def _names(objects: Sequence[Object], *path: str) -> set[str]:
    """Return the names under a path in these objects; missing ones are left out."""
    return {name for each in objects if (name := value_at(each, *path))}


def volume_of(pod: Object, volume: Object, sources: Sources) -> Volume:
    """Return a volume of a pod with the files that it shows.

    volume: of the pod's spec. sources: the ConfigMaps, Secrets and claims that the pod refers to. Of two files at one
    path the later source wins. Raises CannotStart if an object or key is missing and not optional, if a path leads out
    of the volume, or if the type of the volume is not supported.
    """
    name = volume["name"]
    if (empty := volume.get("emptyDir")) is not None:
        return Volume(name, in_memory=empty.get("medium") == "Memory")
    if (host := volume.get("hostPath")) is not None:
        return Volume(name, host_path=host["path"], make=host.get("type") in ("DirectoryOrCreate", "FileOrCreate"))
    if (claim := volume.get("persistentVolumeClaim")) is not None:
        return Volume(name, host_path=_folder_of(sources.claims.get(claim["claimName"]), claim["claimName"]))
    files: dict[str, File] = {}
    tokens: dict[str, TokenFile] = {}
    projected = volume.get("projected")
    mode = (projected or {}).get("defaultMode") or _MODE
    for source in (projected or {}).get("sources") or () if projected is not None else (volume,):
        if (token := source.get("serviceAccountToken")) is not None:
            tokens[_inner_path(token["path"])] = TokenFile(
                token.get("expirationSeconds") or 3600, token.get("audience") or ""
            )
        else:
            files.update(_files(pod, source, sources, mode))
    return Volume(name, files, tokens)


def _folder_of(persistent: Object | None, claim: str) -> str:
    """Return the folder of the PersistentVolume to which a claim is bound.

    persistent: the PersistentVolume; None for a claim that is not bound. claim: its name. Raises CannotStart if it is
    not bound, or if the volume is neither hostPath nor local.
    """
    if persistent is None:
        raise CannotStart(f'persistentvolumeclaim "{claim}" is not bound to a volume')
    for source in ("hostPath", "local"):
        if path := (persistent["spec"].get(source) or {}).get("path"):
            return str(path)
    raise CannotStart(f"the volume of claim {claim} is neither hostPath nor local, which alone are done here")


def _files(pod: Object, source: Object, sources: Sources, mode: int) -> Iterator[tuple[str, File]]:
    """Yield (path in the volume, file) of a configMap, secret or downwardAPI source.

    sources: the existing objects. mode: default file mode. Raises CannotStart for another source, for a missing object
    or key that is not optional, and for a path that leads out of the volume.
    """
    if (reference := source.get("configMap")) is not None:
        yield from _referenced_files(sources.config_maps, reference, "configmap", mode)
    elif (reference := source.get("secret")) is not None:
        yield from _referenced_files(sources.secrets, reference, "secret", mode)
    elif (reference := source.get("downwardAPI")) is not None:
        yield from _downward_files(pod, reference, mode)
    else:
        kinds = ", ".join(key for key in source if key != "name") or "nothing"
        raise CannotStart(f"a volume of {kinds} is not done here")


def _referenced_files(
    objects: Mapping[str, dict[str, Any]], reference: Object, kind: str, mode: int
) -> Iterator[tuple[str, File]]:
    """Yield (path, file) of all keys of a referenced object, or of the listed keys at their own paths.

    objects: the existing ones by name. reference: a configMap, secret or projected source of the pod's spec. kind: for
    messages. mode: default file mode. Raises CannotStart for a missing object or key that is not optional, and for a
    path that leads out of the volume.
    """
    name = reference.get("secretName") or reference.get("name", "")
    found = referenced_object(objects, kind, name, bool(reference.get("optional")))
    data, mode = contents(found) if found else {}, reference.get("defaultMode") or mode
    if not reference.get("items"):
        for key, raw in data.items():
            yield _inner_path(key), File(raw, mode)
        return
    for item in reference["items"]:
        if item["key"] not in data:
            if reference.get("optional"):
                continue
            raise CannotStart(f"{kind} {name} has no key {item['key']!r}")
        yield _inner_path(item["path"]), File(data[item["key"]], item.get("mode") or mode)


def _downward_files(pod: Object, reference: Object, mode: int) -> Iterator[tuple[str, File]]:
    """Yield (path, file) of each field of a pod that a downwardAPI volume lists.

    reference: the downwardAPI source. mode: default file mode. Raises CannotStart for an unknown field, and for a path
    that leads out of the volume.
    """
    for item in reference.get("items") or ():
        if (field_ := item.get("fieldRef")) is not None:
            text = from_field(pod, field_.get("fieldPath", ""))
        else:
            text = from_resource(pod, {}, item.get("resourceFieldRef") or {})
        yield _inner_path(item["path"]), File(text.encode(), item.get("mode") or reference.get("defaultMode") or mode)


def _inner_path(path: str) -> str:
    """Return the path unchanged. Raises CannotStart if it is empty, absolute, or has a step ".."."""
    if path.startswith("/") or ".." in path.split("/") or not path:
        raise CannotStart(f"the path {path!r} leads out of its volume")
    return path


SERVICE_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True, slots=True)
class InCluster:
    """What a container gets from its service account: environment variables, and files in SERVICE_ACCOUNT_FOLDER."""

    env: Mapping[str, str]  # name -> value
    files: Mapping[str, bytes]  # name -> content


def in_cluster(config: Mapping[str, Any], read: Callable[[Path], bytes] = Path.read_bytes) -> InCluster | None:
    """Return the variables and files by which a pod reaches the API server, from a kubeconfig.

    None if the kubeconfig has no token, or its server no TLS. config: the kubeconfig, as decoded JSON; its first
    cluster, user and context count. read: reads the CA's file, if the kubeconfig only names it; its errors are raised.
    Without any CA, ca.crt is empty.
    """
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    where = urlsplit(cluster["server"])
    if where.scheme != "https" or not user.get("token"):
        return None
    coded, path = cluster.get("certificate-authority-data"), cluster.get("certificate-authority")
    ca = base64.b64decode(coded) if coded else read(Path(path)) if path else b""
    env = {"KUBERNETES_SERVICE_HOST": where.hostname or "", "KUBERNETES_SERVICE_PORT": str(where.port or 443)}
    namespace = str(config["contexts"][0]["context"].get("namespace") or "default")
    return InCluster(env, {"token": user["token"].encode(), "ca.crt": ca, "namespace": namespace.encode()})
