"""Name the port at which a pod's launcher serves its metrics, so that a PodMonitor finds it.

A container is left as it is unless its command or its environment gives turnout-run a fixed port.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnout.controllers.model import Object

PORT_NAME = "turnout-metrics"  # the default of the chart's monitoring.launchers.port
VARIABLE = "TURNOUT_METRICS_PORT"  # of the environment; the option comes first
_PROGRAMS = ("turnout-run", "dlrover-run", "turnout.launcher")
_OPTION = re.compile(r"--metrics[-_]port(?:=(.*))?")


def with_metrics_port(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of a pod with a named port for the first container whose launcher serves metrics at a fixed port.

    Unchanged if no launcher has a fixed port, or if a container has a port of that name already.
    """
    containers = [each for each in spec.get("containers") or () if isinstance(each, Mapping)]
    if any(port.get("name") == PORT_NAME for each in containers for port in _ports(each)):
        return spec
    for index, each in enumerate(containers):
        if (port_number := metrics_port(each)) is not None:
            port = {"name": PORT_NAME, "containerPort": port_number, "protocol": "TCP"}
            containers[index] = {**each, "ports": [*_ports(each), port]}
            return {**spec, "containers": containers}
    return spec


def metrics_port(container: Object) -> int | None:
    """Return the port in --metrics-port of the container's launcher, else in TURNOUT_METRICS_PORT; None if it is
    missing, no number, or outside 1..65535.

    An invalid option hides the variable. Options after the training script, or after --, are ignored. The variable
    counts also if the command names no launcher, because the image may start it.
    """
    text = next(_option_values(container), None)
    if text is None:
        env = container.get("env")
        variables = [each for each in env if isinstance(each, Mapping)] if isinstance(env, list) else []
        text = next((each.get("value") for each in variables if each.get("name") == VARIABLE), None)
    if not isinstance(text, str) or not text.isascii() or not text.isdigit() or len(text) > 5:
        return None
    return int(text) if 1 <= int(text) <= 65_535 else None


def _option_values(container: Object) -> Iterator[str]:
    """Yield the values of --metrics-port among the options of the launcher; "" for an option without a value.

    Nothing if the container does not run a launcher.
    """
    words = [word for part in (container.get("command"), container.get("args")) for word in _words(part)]
    program_indices = [index for index, word in enumerate(words) if word.rpartition("/")[2] in _PROGRAMS]
    for index in range(program_indices[0] + 1 if program_indices else len(words), len(words)):
        if words[index] == "--" or words[index].endswith(".py"):
            return
        if (option := _OPTION.fullmatch(words[index])) is not None:
            yield option[1] if option[1] is not None else words[index + 1] if index + 1 < len(words) else ""


def _words(part: object) -> list[str]:
    """Return the words of a command; a text for a shell is split at spaces."""
    texts: Sequence[object] = part if isinstance(part, list) else ()
    return [word.strip("'\"") for text in texts if isinstance(text, str) for word in text.split()]


def _ports(container: Object) -> list[Mapping[str, Any]]:
    """Return the ports of a container; entries that are no objects are left out."""
    ports = container.get("ports")
    return [each for each in ports if isinstance(each, Mapping)] if isinstance(ports, list) else []
