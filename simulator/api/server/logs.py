"""Serve the output of pods for `kubectl logs`: all of it, its end, or as it comes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from aiohttp import web

from turnout.simulator.api.model import ApiRefusal, value_at

Object = dict[str, Any]
_CHUNK_BYTES = 1 << 16
_POLL_S = 0.1
_STATUSES = ("containerStatuses", "initContainerStatuses")
_NOT_DONE = ("sinceSeconds", "sinceTime", "timestamps")


class Log(Protocol):
    """The output of one run of a container."""

    @property
    def path(self) -> Path | None:
        """The file with the output; None when the container has written nothing."""

    def live(self) -> bool:
        """Return True if more output may come."""


class Logs(Protocol):
    """A store of the output of pods."""

    def find(self, pod: Object, container: str, previous: bool) -> Log | None:
        """Return the log of a container, None without one. previous: the log of the run before this one."""


async def answer(request: web.Request, pod: Object, logs: Logs | None, container: str = "") -> web.StreamResponse:
    """Answer a request for a container's log, with the options follow, previous, tailLines and limitBytes of its query.

    pod: with its status. logs: None for no output. container: "" for the container in the query. 204 for a pod without
    a node. Raises ApiRefusal: 400 for a container that does not exist or has not run, 501 for another option.
    """
    query = request.query
    for key in _NOT_DONE:
        if query.get(key) not in (None, "false"):
            raise ApiRefusal("NotImplemented", f"the embedded API does not support logs with {key}")
    container = _requested_container(pod, container or query.get("container", ""))
    if not pod["spec"].get("nodeName"):
        return web.Response(status=204)
    found = logs.find(pod, container, query.get("previous") == "true") if logs is not None else None
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    if found is not None:
        follow = query.get("follow") == "true"
        await _send(response, found, follow, _number(query, "tailLines"), _number(query, "limitBytes"))
    return response


async def _send(response: web.StreamResponse, log: Log, follow: bool, lines: int | None, left: int | None) -> None:
    """Send the output of one run of a container. Nothing is sent without a file.

    follow: wait for more output while the container runs. lines: only this many at its end, None for all. left: bytes
    at most, None for no limit. Raises OSError if the file was removed.
    """
    if log.path is None:
        return
    with log.path.open("rb") as file:  # held open: the last words are read even when the pod's files are removed
        await asyncio.to_thread(_skip, file, lines)
        while left is None or left > 0:
            live = log.live()  # before reading, so that nothing written meanwhile is missed
            chunk = await asyncio.to_thread(file.read, _CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
            if chunk:
                left = None if left is None else left - len(chunk)
                await response.write(chunk)
            elif follow and live:
                await asyncio.sleep(_POLL_S)
            else:
                return


def _skip(file: BinaryIO, lines: int | None) -> None:
    """Move to the beginning of the last `lines` lines of a file; None for its beginning, 0 for its end."""
    if lines is not None:
        text = file.read()
        file.seek(len(text) - len(b"".join(text.splitlines(keepends=True)[-lines:])) if lines else len(text))


def _requested_container(pod: Object, container_name: str) -> str:
    """Return the name of the container whose log is requested.

    container_name: "" for the only container. Raises ApiRefusal (400) in the API server's words: several containers and
    no name, no such container, or a container that has not run yet.
    """
    name, spec = pod["metadata"]["name"], pod["spec"]
    mains = [each["name"] for each in spec["containers"]]
    if not container_name and len(mains) > 1:
        raise ApiRefusal(
            "BadRequest", f"a container name must be specified for pod {name}, choose one of: [{' '.join(mains)}]"
        )
    container_name = container_name or mains[0]
    if container_name not in [*mains, *(each["name"] for each in spec.get("initContainers") or ())]:
        raise ApiRefusal("BadRequest", f"container {container_name} is not valid for pod {name}")
    if why := _waiting_reason(pod, container_name):
        raise ApiRefusal("BadRequest", f'container "{container_name}" in pod "{name}" is waiting to start: {why}')
    return container_name


def _waiting_reason(pod: Object, container_name: str) -> str:
    """Return the reason why a container has not run yet, such as ContainerCreating.

    "" if it has run, or if the pod's status does not name it.
    """
    statuses = [each for key in _STATUSES for each in value_at(pod, "status", key) or ()]
    status = {each["name"]: each for each in reversed(statuses)}.get(container_name)
    waiting = value_at(status, "state", "waiting")
    has_run = waiting is None or value_at(status, "lastState")
    return "" if has_run else str(waiting.get("reason", "ContainerCreating"))


def _number(query: Any, key: str) -> int | None:
    """Return a number of the query, None if it is missing or no number."""
    text = query.get(key, "")
    return int(text) if text.isdecimal() else None
