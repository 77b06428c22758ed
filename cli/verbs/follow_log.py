"""Follows the output of a worker of a job, across restarts of its container and new pods of its rank, to the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from turnout.cli.log_runs import Run
    from turnout.controllers.model import ControlledKind
    from turnout.kube.client.clock import Clock

LOOK_S = 1.0
HEAD_BYTES = 4096  # of the start of a log, by which a log that the kubelet has rotated is recognized


class LogCalls(Protocol):
    """The calls of the API client that are used."""

    async def get(self, path: str, params: Mapping[str, Any] | None = None) -> bytes:
        """Return an object as JSON. path: of the object. params: of the query."""

    def pages(self, path: str, params: Mapping[str, Any] | None = None) -> AsyncIterator[bytes]:
        """Yield each page of a list as JSON. path: of the collection. params: of the query."""

    def stream(self, path: str, params: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Yield an answer piece by piece, as it arrives. path: of the request. params: of the query."""


class LogFollower:
    """Follows the log of one rank."""

    def __init__(
        self,
        calls: LogCalls,
        clock: Clock,
        kind: ControlledKind,
        job: str,
        pods: str,
        rank: int,
        show: Callable[[bytes], None],
        tell: Callable[[str], None],
        *,
        container: str = "",
        first: Mapping[str, str] | None = None,
    ) -> None:
        """Begin without any output.

        kind: of the job. job: API path of its object. pods: API path of the pods of its namespace. rank: of the worker.
        show: gets the bytes of the log, in order. tell: gets messages for the user. container: "" for the training
        container. first: log parameters of the API server that limit the first run's output; None for all of it.
        """
        self._calls, self._clock, self._kind, self._job, self._pods, self._rank = calls, clock, kind, job, pods, rank
        self._show, self._tell = show, tell
        self._run: tuple[str, int] | None = None
        self._shown_bytes, self._head, self._done = 0, b"", False
        self._container, self._first = container, dict(first or {})

    async def run(self) -> None:
        """Show the log until the job has ended or was deleted, and what its last run has written is shown.

        A broken connection and a fault of the API server are reported to `tell`, and the call is repeated. Raises
        NoSuchContainer if the pod has no such container, and KubeError if the API server refuses a call.
        """
        from turnout.kube.errors import ServerFault, Unreachable

        while True:
            try:
                ended = await self._job_is_over()
                run = await self._newest()
                if run is not None and run.begun:
                    await self._follow(run, ended)
                elif ended:
                    return
                if ended and (run is None or self._done):
                    return
            except (Unreachable, ServerFault) as error:
                self._tell(f"{error}: retrying")
            await self._clock.sleep(LOOK_S)

    async def _job_is_over(self) -> bool:
        """Return True if the job has ended or was deleted."""
        from turnout.controllers import conditions
        from turnout.kube.errors import NotFound
        from turnout.kube.status import decode_json_object

        try:
            raw = decode_json_object(self._job, await self._calls.get(self._job))
        except NotFound:
            return True
        status = raw.get("status")
        return conditions.has_ended(
            conditions.valid_conditions(self._kind.status.translation.read(status if isinstance(status, dict) else {}))
        )

    async def _newest(self) -> Run | None:
        """Return the newest run of the rank; None if the rank has no worker.

        Raises NoSuchContainer if its pod does not have the container.
        """
        from turnout.cli.log_runs import newest, selector
        from turnout.kube.status import decode_json_object

        found: list[Any] = []
        chosen = selector(self._kind, self._job.rpartition("/")[2], self._rank)
        async for page in self._calls.pages(self._pods, {"labelSelector": chosen}):
            found += decode_json_object(self._pods, page).get("items") or []
        return newest(self._kind, found, self._container)

    async def _follow(self, run: Run, ended: bool) -> None:
        """Show the output of a run from the byte where the last call stopped, until the stream ends.

        ended: the job has ended, so the log is read without following. If the pod is gone or its container waits,
        nothing is shown. A log whose first bytes have changed was rotated; it is shown from its beginning.
        Raises Unreachable or ServerFault if the connection breaks or the API server fails.
        """
        from turnout.kube.errors import NotFound, Rejected

        if run.key != self._run:
            if self._run is not None:
                self._tell(f"worker {self._rank} was restarted: pod {run.pod}, run {run.number + 1} of {run.container}")
            self._shown_bytes = -1 if self._run is None and self._first else 0
            self._run, self._head, self._done = run.key, b"", False
        if self._done:
            return
        params = {"container": run.container, "follow": "false" if ended else "true"}
        try:
            if self._shown_bytes < 0:
                self._shown_bytes = await self._bytes_before_first(run)
            position = 0  # the offset of a piece in the log
            async for piece in self._calls.stream(f"{self._pods}/{run.pod}/log", params):
                self._show_unseen(piece, position)
                position += len(piece)
        except (NotFound, Rejected):
            return  # the pod has gone meanwhile, or its container waits to be started again
        self._done = run.over or ended

    def _show_unseen(self, piece: bytes, position: int) -> None:
        """Show the part of a piece of the log that was not shown. position: the offset of the piece in the log."""
        known = self._head[position : position + len(piece)]
        if not piece.startswith(known):
            self._tell(f"the log of worker {self._rank} was rotated: output between the two files may be missing")
            piece, position, self._head, self._shown_bytes = self._head[:position] + piece, 0, b"", 0
        if position <= len(self._head) < min(HEAD_BYTES, position + len(piece)):
            self._head = (self._head[:position] + piece)[:HEAD_BYTES]
        self._show(piece[max(0, self._shown_bytes - position) :])
        self._shown_bytes = max(self._shown_bytes, position + len(piece))

    async def _bytes_before_first(self, run: Run) -> int:
        """Return how many bytes of a run's log precede the part that `first` selects.

        0 if that part is not in the log, and the size of the log if the part is empty.
        """
        path, container = f"{self._pods}/{run.pod}/log", {"container": run.container}
        part = await self._calls.get(path, {**container, **self._first})
        full_log = await self._calls.get(path, container)
        return max(0, full_log.rfind(part))
