"""The page of the demo: its address is printed, and shows the demo's own cluster while it runs."""

import asyncio

import aiohttp
import pytest

from tests.cli.demo.test_demo import turnout
from tests.cli.page.served import asking, fill
from tests.cli.page.test_command import observed
from turnout.cli.demo.page import DemoPage, in_browser
from turnout.kube.client.api_client import Client
from turnout.simulator.api.server.serve import serve


@pytest.mark.asyncio
async def test_a_browser_stays_logged_in_when_the_next_part_begins(tmp_path):
    demo_page, addresses, statuses = DemoPage(), [], []
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser:
        for part in ("gangs", "lending"):
            kubeconfig = tmp_path / part
            async with serve(kubeconfig), await Client.open(str(kubeconfig)) as client:
                await fill(client)
                async with demo_page.serve(kubeconfig) as printed:
                    address, _, token = printed.partition("/#token=")
                    await observed(address, token)
                    if not addresses:
                        await browser.post(f"{address}/api/v1/session", json={"token": token})
                    addresses.append(printed)
                    async with browser.get(f"{address}/api/v1/summary") as answer:
                        statuses.append((answer.status, (await answer.json())["gpus"]))
    assert addresses[0] == addresses[1]
    assert addresses[0].startswith("http://127.0.0.1:")
    assert statuses == [(200, 32), (200, 32)]


@pytest.mark.parametrize(
    ("part", "gpus"), [pytest.param("gangs", 512, id="gangs"), pytest.param("lending", 16, id="lending")]
)
def test_the_demo_prints_an_address_that_shows_its_cluster(part, gpus):
    started = turnout("demo", "--part", part, "--fast", "--gangs", "4")
    try:
        begin, end = in_browser("").split("\n")
        assert end == ""
        assert any(line.strip() == begin for line in started.stdout)
        address, _, token = next(started.stdout).strip().partition("/#token=")
        assert asyncio.run(_gpus(address, token)) == gpus
    finally:
        started.terminate()
        started.communicate(timeout=60)


async def _gpus(address, token):
    await observed(address, token)
    async with asking(address, token) as ask:
        return (await ask("summary"))[1]["gpus"]
