"""Lists that are told once: one may be held back until the others are told, and is fetched meanwhile."""

import asyncio

import pytest

from turnout.cli.verb_support.listing import ListOnce


class Source:
    """Lists of one page each. pods_listed: set once the pods were asked for."""

    def __init__(self):
        self.pods_listed = asyncio.Event()

    async def pages(self, path, params=None, *, limit=500):
        if path == "/pods":
            self.pods_listed.set()
        yield path.encode()


async def lists_of(once, path):
    return [page async for page in once.pages(path)]


@pytest.mark.asyncio
async def test_the_last_list_is_fetched_at_once_and_told_after_the_others():
    source = Source()
    once = ListOnce(source, "ns", last="/pods")
    pods = asyncio.create_task(lists_of(once, "/pods"))
    assert await lists_of(once, "/jobs") == [b"/jobs"]
    await source.pods_listed.wait()
    assert not pods.done()
    once.others_listed.set()
    assert await pods == [b"/pods"]
