"""A call that changes something is sent only while the Lease is ours; reading is always allowed."""

from __future__ import annotations

import asyncio

import pytest

from turnout.kube.client.leased_calls import LeasedCalls
from turnout.kube.errors import NotLeading


class Server:
    """Notes the calls that reach it."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, method):
        async def call(path, *_, **__):
            self.calls.append((method, path))
            return b"{}"

        return call


WRITES = {
    "create": lambda calls: calls.create("/pods", {}),
    "patch": lambda calls: calls.patch("/pods/a", {}, "application/merge-patch+json", "turnout"),
    "delete": lambda calls: calls.delete("/pods/a", uid="u"),
}


@pytest.mark.parametrize("method", WRITES)
def test_a_write_is_sent_while_leading(method):
    server = Server()
    assert asyncio.run(WRITES[method](LeasedCalls(server, lambda: True))) == b"{}"
    assert [name for name, _ in server.calls] == [method]


@pytest.mark.parametrize("method", WRITES)
def test_no_write_is_sent_after_the_term(method):
    server = Server()
    with pytest.raises(NotLeading, match="/pods"):
        asyncio.run(WRITES[method](LeasedCalls(server, lambda: False)))
    assert server.calls == []


def test_reading_does_not_ask():
    server = Server()
    asyncio.run(LeasedCalls(server, lambda: False).get("/pods/a"))
    assert server.calls == [("get", "/pods/a")]
