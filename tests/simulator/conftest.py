"""A fresh embedded API for a test, and a plain HTTP client to it."""

import json

import aiohttp
import pytest_asyncio

from turnout.simulator.api.server.serve import serve


class ApiClient:
    """Asks the API over real HTTP. Every call gives (code, body). A body that is a text is sent as it is."""

    def __init__(self, session, served):
        self.session, self.served, self.url = session, served, served.url

    async def ask(self, method, path, body=None, content_type="application/json", **query):
        sent = body if body is None or isinstance(body, str) else json.dumps(body)
        headers = {"Content-Type": content_type} if sent is not None else {}
        async with self.session.request(method, self.url + path, data=sent, headers=headers, params=query) as response:
            return response.status, json.loads(await response.read())

    async def watch(self, path, lines, **query):
        """The first `lines` lines of a watch."""
        read = []
        async with self.session.get(self.url + path, params={"watch": "1", **query}) as response:
            if response.status != 200:
                return [await response.json()]
            async for text in response.content:
                read.append(json.loads(text))
                if len(read) == lines:
                    break
        return read


@pytest_asyncio.fixture
async def api_server(tmp_path):
    async with serve(tmp_path / "kubeconfig", kept_changes=50) as served, aiohttp.ClientSession() as session:
        yield ApiClient(session, served)
