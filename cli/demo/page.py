"""The page in a browser while the demo runs: one address for the clusters of both parts."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from turnout.autoscaler.settings import Settings
from turnout.cli.page.access import LocalAccess, Sessions
from turnout.cli.page.serve import LOOPBACK, local_hosts, serving
from turnout.cli.page.viewers import PageSettings
from turnout.kube.client.api_client import Client

_DEFAULTS = Settings()


def in_browser(address: str) -> str:
    """Return the text that names the page's address."""
    return f"See it in a browser while this part runs:\n{address}"


class DemoPage:
    """The page of a demo. A browser stays logged in when the next part starts, at the same address."""

    def __init__(self) -> None:
        self._secret, self._sessions, self._port = secrets.token_urlsafe(24), Sessions(time.monotonic), 0

    @asynccontextmanager
    async def serve(self, kubeconfig: Path, settings: Settings = _DEFAULTS) -> AsyncIterator[str]:
        """Serve the page of a kubeconfig's cluster on loopback during the block; yields the address for a browser.

        The address contains the secret of this page, so it must not be logged. A later call has the same port and
        secret. Raises BadAddress if the port is taken, and the errors of `Client.open`. settings: of the autoscaler in
        that cluster, by which the page shows its decisions.
        """

        def on_loopback(port: int) -> PageSettings:
            return PageSettings("turnout demo", allowed_hosts=local_hosts(port))

        access, place = LocalAccess(self._secret), (LOOPBACK, self._port)
        async with (
            await Client.open(str(kubeconfig), minimal=True) as client,
            serving(client, settings, access, place, on_loopback, self._sessions) as page,
        ):
            self._port = page.port
            watching = asyncio.create_task(page.source.run())
            try:
                yield f"http://{LOOPBACK}:{page.port}/#token={self._secret}"
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
