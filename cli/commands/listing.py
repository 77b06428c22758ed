"""Lists what a command needs, once, as far as whoever asks may see: the whole cluster, else one namespace of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnout.kube.client.api_client import Client
    from turnout.kube.errors import CallError

VIEWER = "turnout-viewer"  # the ClusterRole of deploy/manifests that allows all of it
_EMPTY = b'{"metadata":{"resourceVersion":"1"},"items":[]}'
_OF_THE_CLUSTER = {"nodes", "priorityclasses", "queues", "clusterqueues", "cohorts"}  # of no namespace


class CannotSee(Exception):
    """Something that has to be listed cannot be. The message says what, and what would help."""


class Once:
    """Lists as a client does, and never watches. faults: what could not be listed for another reason than rights.

    unknown: paths of ConfigMaps that may not be listed. refused: all other paths that may not, in the whole cluster.
    namespace: what of them is in it is listed where that may be.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self.faults: dict[str, CallError] = {}
        self.unknown: list[str] = []
        self.refused: list[str] = []

    async def pages(
        self, path: str, params: Mapping[str, Any] | None = None, *, limit: int = 500
    ) -> AsyncIterator[bytes]:
        """Each page of a list; an empty one of what may not be listed."""
        from turnout.kube.errors import CallError, Forbidden, Gone, NotFound

        try:
            async for page in self._client.pages(path, params, limit=limit):
                yield page
        except (NotFound, Gone):
            raise  # an optional kind that is not served; a list that outlived its version is listed again
        except Forbidden:
            if path.endswith("/configmaps"):
                self.unknown.append(path)
            else:
                self.refused.append(path)
            async for page in self._narrower(path, params, limit):
                yield page
        except CallError as error:
            self.faults[path] = error
            raise

    async def watch(self, path: str, params: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Nothing, until cancelled."""
        import asyncio

        await asyncio.Event().wait()
        yield b""

    def check(self) -> None:
        """Raise CannotSee when a list failed for another reason than rights."""
        if not self.faults:
            return
        path, error = next(iter(sorted(self.faults.items())))
        if error.status:
            raise CannotSee(str(error))
        raise CannotSee(f"the API server cannot be reached: {error.__cause__ or error.message or path}")

    def missing(self) -> tuple[str, ...]:
        """Return what may not be listed in the whole cluster, as kubectl auth can-i takes it."""
        return tuple(resource(path) for path in sorted(self.refused))

    async def _narrower(self, path: str, params: Mapping[str, Any] | None, limit: int) -> AsyncIterator[bytes]:
        """List the same of the one namespace; nothing where that may not be either."""
        from turnout.kube.errors import Forbidden

        plural = path.rpartition("/")[2]
        if plural in _OF_THE_CLUSTER or "/namespaces/" in path:
            yield _EMPTY
            return
        own = f"{path.removesuffix(plural)}namespaces/{self._namespace}/{plural}"
        try:
            async for page in self._client.pages(own, params, limit=limit):
                yield page
        except Forbidden:
            yield _EMPTY


def may_not(missing: Iterable[str]) -> str:
    """Say what may not be listed, and what would help."""
    return (
        f"you may not list {', '.join(missing)} in the whole cluster, and the autoscaler decides on all of it; the "
        f"ClusterRole {VIEWER} has these rights"
    )


def resource(path: str) -> str:
    """Return nodes, or jobs.batch.volcano.sh, as kubectl auth can-i takes it."""
    _, base, *rest = path.split("/")
    return rest[-1] if base == "api" else f"{rest[-1]}.{rest[0]}"
