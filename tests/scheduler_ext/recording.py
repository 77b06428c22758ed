"""Record what a real kube-scheduler posts to an extender: `python -m tests.scheduler_ext.recording`.

The bodies lie in tests/scheduler_ext/server/recorded, one a verb, and are posted again by its tests. A small gang on
eight nodes is asked about; nothing is changed in the bodies but line breaks.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from hack.controlplane import scheduler_config
from hack.controlplane.plane import ControlPlane
from tests.kit import cluster
from tests.kit.world import World

FOLDER = Path("tests/scheduler_ext/server/recorded")
GANG, GPUS = 4, 8
NODES = World(4, 4).names
NEUTRAL = {"filter": lambda arguments: {"NodeNames": arguments["NodeNames"]}, "prioritize": lambda arguments: []}
WITHIN_S = 60


def answer_to(recorded: dict[str, bytes], verb: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Make the handler of a verb, which keeps the first body and answers as an extender without an opinion."""

    async def answered(request: web.Request) -> web.Response:
        body = await request.read()
        recorded.setdefault(verb, body)
        return web.json_response(NEUTRAL[verb](json.loads(body)))

    return answered


async def record() -> dict[str, bytes]:
    """Let a real kube-scheduler place a gang, and give the first body that it posted for each verb."""
    recorded: dict[str, bytes] = {}
    app = web.Application()
    for verb in NEUTRAL:
        app.router.add_post(f"/{verb}", answer_to(recorded, verb))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    with ControlPlane() as plane:
        async with plane.api() as api:
            await api.create_all(cluster.make_node(name, f"10.0.0.{at}", GPUS) for at, name in enumerate(NODES))
            config = scheduler_config.with_extender_url(f"http://127.0.0.1:{port}")
            await asyncio.to_thread(plane.start_scheduler, config)
            await api.create_all(cluster.volcano_gang("bert", GANG))
            await api.until("/api/v1/namespaces/default/pods?labelSelector=gang%3Dbert", cluster.bound(GANG), WITHIN_S)
    await runner.cleanup()
    return recorded


def main() -> int:
    """Write one file a verb."""
    FOLDER.mkdir(exist_ok=True)
    for verb, body in asyncio.run(record()).items():
        (FOLDER / f"{verb}.json").write_text(json.dumps(json.loads(body), indent=1) + "\n")
        print(FOLDER / f"{verb}.json")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
