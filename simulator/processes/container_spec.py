"""Work out what a container gets: its command, its environment, its folder, its mounts and its readiness probe.

Sources: Kubernetes' documents of environment variables, the downward API and volumes; `$(NAME)` as
k8s.io/kubernetes/third_party/forked/golang/expansion has it.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnout.kube.errors import KubeError
from turnout.kube.pod_shape import milli

Object = dict[str, Any]
_REFERENCE = re.compile(r"\$(\$|\(([^()]*)\))")
_KEYED = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]$")
BAD_CONFIG = "CreateContainerConfigError"


class CannotStart(Exception):
    """A container that cannot be started now: an object that it refers to is missing or malformed, or a feature is not
    supported.
    """


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume, or a path in it, at a path of the container."""

    volume: str  # its name
    path: str  # in the container
    inside: str = ""  # subPath in the volume, "" for the whole volume
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """A container ready to be started."""

    argv: tuple[str, ...]  # empty when only the image knows the command
    env: Mapping[str, str]  # the whole environment
    working_dir: str = ""  # "" for the root
    mounts: tuple[Mount, ...] = ()
    termination_message_path: str = "/dev/termination-log"  # in the container


@dataclass(frozen=True, slots=True)
class Sources:
    """The objects that environment and files may come from, by name."""

    config_maps: Mapping[str, Object] = field(default_factory=dict)
    secrets: Mapping[str, Object] = field(default_factory=dict)
    claims: Mapping[str, Object] = field(default_factory=dict)  # to the PersistentVolume of each


def launch_of(pod: Object, container: Object, base: Mapping[str, str], sources: Sources) -> Launch:
    """Return how a container is started: command, environment, working directory and mounts.

    Variables are expanded in the command, in values and in subPathExpr. base: the environment that its image would
    bring. sources: the objects that it may refer to. Raises CannotStart if an object or key is missing and not
    optional, if a Secret is malformed, or if a feature is not supported.
    """
    env = _environment(pod, container, base, sources)
    argv = [*(container.get("command") or ()), *(container.get("args") or ())] if container.get("command") else []
    return Launch(
        tuple(expand_variables(word, env) for word in argv),
        env,
        container.get("workingDir") or "",
        tuple(_mount(each, env) for each in container.get("volumeMounts") or ()),
        container.get("terminationMessagePath") or "/dev/termination-log",
    )


def _environment(pod: Object, container: Object, base: Mapping[str, str], sources: Sources) -> dict[str, str]:
    """Return the environment of a container: `base`, then envFrom, then env, of which the later ones win.

    The arguments and errors are those of launch_of().
    """
    env = dict(base)
    for each in container.get("envFrom") or ():
        env.update(_all_of(each, sources))
    for each in container.get("env") or ():
        value = _value(pod, each, env, sources)
        if value is not None:
            env[each["name"]] = value
    return env


def expand_variables(text: str, env: Mapping[str, str]) -> str:
    """Return a text with `$(NAME)` replaced by the value of the variable NAME in `env`.

    `$$` becomes a dollar sign; an unknown name stays as written.
    """

    def value_of(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return env.get(match[2], match[0])

    return _REFERENCE.sub(value_of, text)


def from_field(pod: Object, path: str) -> str:
    """Return the text of a pod's field as the downward API gives it, "" for a field that is not set.

    path: such as metadata.name, or metadata.labels['app'] for one value. All labels or annotations are lines of
    key="value", without a newline at the end. Raises CannotStart for a field that the downward API does not have.
    """
    meta = pod["metadata"]
    if (keyed := _KEYED.match(path)) is not None:
        return str((meta.get(keyed[1]) or {}).get(keyed[2], ""))
    single_fields = _single_fields(pod)
    if path in single_fields:
        return str(single_fields[path] or "")
    if path in ("metadata.labels", "metadata.annotations"):
        metadata_map = meta.get(path.removeprefix("metadata.")) or {}
        return "\n".join(f"{key}={_quoted(metadata_map[key])}" for key in sorted(metadata_map))
    raise CannotStart(f"the downward API has no field {path!r}")


def _single_fields(pod: Object) -> dict[str, Any]:
    """Return the fields of a pod that the downward API gives as one value, by path; None or "" for one that is not
    set.
    """
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    return {
        "metadata.name": meta.get("name"),
        "metadata.namespace": meta.get("namespace"),
        "metadata.uid": meta.get("uid"),
        "spec.nodeName": spec.get("nodeName"),
        "spec.serviceAccountName": spec.get("serviceAccountName") or "default",
        "status.hostIP": status.get("hostIP"),
        "status.hostIPs": ",".join(each["ip"] for each in status.get("hostIPs") or ()),
        "status.podIP": status.get("podIP"),
        "status.podIPs": ",".join(each["ip"] for each in status.get("podIPs") or ()),
    }


def from_resource(pod: Object, container: Object, field_ref: Object) -> str:
    """Return a request or a limit of a container in units of the divisor, rounded up, as text. "0" if it is not set.

    container: the default if `field_ref`, a resourceFieldRef, names none. An unknown container counts as one without
    requests. Raises CannotStart for a malformed reference or quantity.
    """
    of = container
    if field_ref.get("containerName"):
        everyone = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
        of = next((each for each in everyone if each["name"] == field_ref["containerName"]), {})
    what, _, resource = str(field_ref.get("resource", "")).partition(".")
    if what not in ("limits", "requests"):
        raise CannotStart(f"a resource is limits.X or requests.X, not {field_ref.get('resource')!r}")
    given = ((of.get("resources") or {}).get(what) or {}).get(resource, "0")
    try:
        divisor = milli(field_ref.get("divisor") or "0") or 1000
        return str(math.ceil(milli(given) / divisor))
    except KubeError as error:
        raise CannotStart(str(error)) from error


def referenced_object(source: Mapping[str, Object], kind: str, name: str, optional: bool) -> Object | None:
    """Return an object that a pod refers to; None if it is missing and optional.

    Raises CannotStart if it is missing and not optional. source: the existing objects by name. kind: for the message.
    """
    found = source.get(name)
    if found is None and not optional:
        raise CannotStart(f'{kind} "{name}" not found')
    return found


def _value(pod: Object, each: Object, env: Mapping[str, str], sources: Sources) -> str | None:
    """Return the value of one variable; None if its optional source lacks it.

    each: the variable in the container's spec. env: the values of the variables before it, for $(NAME). Raises
    CannotStart if its object or key is missing and not optional, or if its source is not supported.
    """
    origin = each.get("valueFrom")
    if not origin:
        return expand_variables(str(each.get("value", "")), env)
    if (reference := origin.get("fieldRef")) is not None:
        return from_field(pod, reference.get("fieldPath", ""))
    if (reference := origin.get("resourceFieldRef")) is not None:
        return from_resource(pod, _owner_of(pod, each), reference)
    for key, kind, source in (
        ("configMapKeyRef", "configmap", sources.config_maps),
        ("secretKeyRef", "secret", sources.secrets),
    ):
        if (reference := origin.get(key)) is not None:
            optional = bool(reference.get("optional"))
            found = referenced_object(source, kind, reference.get("name", ""), optional)
            data = texts(found) if found else {}
            if reference["key"] not in data and not optional:
                raise CannotStart(f"couldn't find key {reference['key']} in {kind} {reference.get('name')}")
            return data.get(reference["key"])
    raise CannotStart(f"the value of {each['name']} comes from {', '.join(origin)}, which is not done here")


def _owner_of(pod: Object, variable: Object) -> Object:
    """Return the container of the pod in whose `env` this variable stands, compared by identity; {} if there is
    none.
    """
    everyone = [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]
    return next((each for each in everyone if any(v is variable for v in each.get("env") or ())), {})


def _all_of(each: Object, sources: Sources) -> dict[str, str]:
    """Return the variables of one envFrom entry, with its prefix; {} if its optional object is missing.

    {} also for an entry with another source. Raises CannotStart if its object is missing and not optional.
    """
    prefix = each.get("prefix") or ""
    for key, kind, source in (
        ("configMapRef", "configmap", sources.config_maps),
        ("secretRef", "secret", sources.secrets),
    ):
        if (reference := each.get(key)) is not None:
            found = referenced_object(source, kind, reference.get("name", ""), bool(reference.get("optional")))
            return {prefix + name: text for name, text in (texts(found) if found else {}).items()}
    return {}


def texts(source: Object) -> dict[str, str]:
    """Return the values of a ConfigMap or a Secret as text, by key. Bytes that are not UTF-8 become U+FFFD.

    Raises CannotStart for invalid base64.
    """
    return {name: raw.decode(errors="replace") for name, raw in contents(source).items()}


def contents(source: Object) -> dict[str, bytes]:
    """Return the values of a ConfigMap or a Secret as bytes, by key. Base64 is decoded.

    source: with the kind Secret for a Secret; any other object is read as a ConfigMap. Raises CannotStart for invalid
    base64.
    """
    coded = source.get("binaryData") if source.get("kind") != "Secret" else source.get("data")
    plain = source.get("data") if source.get("kind") != "Secret" else source.get("stringData")
    files = {name: str(text).encode() for name, text in (plain or {}).items()}
    for name, text in (coded or {}).items():
        try:
            files[name] = base64.b64decode(text)
        except (ValueError, TypeError) as error:
            raise CannotStart(f"the value of {name!r} is no base64: {error}") from error
    return files


def _mount(each: Object, env: Mapping[str, str]) -> Mount:
    """Return one volume mount. Variables are expanded in its subPathExpr only.

    each: of the container's spec. env: the values for $(NAME). Raises CannotStart if the subPath leads out of the
    volume.
    """
    inside = expand_variables(each.get("subPathExpr") or "", env) or each.get("subPath") or ""
    if ".." in inside.split("/") or inside.startswith("/"):
        raise CannotStart(f"the subPath {inside!r} leads out of its volume")
    return Mount(each["name"], each["mountPath"], inside, bool(each.get("readOnly")))


def _quoted(text: Any) -> str:
    """Return a text in double quotes. Backslashes, quotes, newlines and tabs are escaped as Go's %q does it; others
    are not.
    """
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


@dataclass(frozen=True, slots=True)
class ReadinessProbe:
    """An HTTP request, and how often it is made, in seconds. host: "" for the pod's own address."""

    scheme: str  # http or https
    host: str
    port: int
    path: str
    delay_s: float  # before the first request
    period_s: float  # from one answer to the next request
    timeout_s: float  # of one request
    successes: int  # in a row, after which it is ready
    failures: int  # in a row, after which it is no longer

    def url(self, pod_ip: str) -> str:
        """Return the URL to request. pod_ip: the host if the probe names none."""
        return f"{self.scheme}://{self.host or pod_ip}:{self.port}/{self.path.lstrip('/')}"


@dataclass(frozen=True, slots=True)
class Readiness:
    """The verdict of the answers so far. consecutive: how many last answers agreed."""

    ready: bool = False  # the verdict
    last: bool | None = None  # whether the last request succeeded, None before the first
    consecutive: int = 0


def probe_of(container: Mapping[str, Any]) -> ReadinessProbe | None:
    """Return the container's readiness probe.

    None if it has none, one that is no HTTP probe, or one whose port has a name that the container does not declare.
    """
    probe = container.get("readinessProbe") or {}
    http_get = probe.get("httpGet")
    if not isinstance(http_get, Mapping):
        return None
    port = http_get.get("port")
    named = {each.get("name"): each.get("containerPort") for each in container.get("ports") or ()}
    number = named.get(port, port)
    if not isinstance(number, int):
        return None
    return ReadinessProbe(
        str(http_get.get("scheme") or "HTTP").lower(),
        str(http_get.get("host") or ""),
        number,
        str(http_get.get("path") or "/"),
        float(probe.get("initialDelaySeconds") or 0),
        float(probe.get("periodSeconds") or 10),
        float(probe.get("timeoutSeconds") or 1),
        int(probe.get("successThreshold") or 1),
        int(probe.get("failureThreshold") or 3),
    )


def next_readiness(before: Readiness, good: bool, probe: ReadinessProbe) -> Readiness:
    """Return the readiness after one more probe.

    before: after the last probe. good: True if the probe succeeded. The readiness changes only after as many equal
    results in a row as the probe's threshold requires.
    """
    consecutive = before.consecutive + 1 if before.last is good else 1
    if consecutive < (probe.successes if good else probe.failures):
        return Readiness(before.ready, good, consecutive)
    return Readiness(good, good, consecutive)
