"""What a viewer of the page waits for with 5,000 nodes and 40,000 GPUs, and what 50 viewers cost the server.

The cluster is synthetic and changes once a second; server, bundle and browser are the real ones. Chromium runs without
a GPU, on the same two cores.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from statistics import median
from typing import Any

import aiohttp
import msgspec

from hack.bench.page.synthetic import LOGIN, NEWCOMER
from hack.bench.support.outcome import Outcome, Scale, Table, Target

LISTS = tuple(f"{name}?limit=200" for name in ("queues", "jobs", "nodes"))
PATHS = ("summary", "fabric/tree", "fabric/gpus", "fabric/largest", *LISTS)
ASKED = ("summary", "fabric/gpus", "queues?limit=200", "fabric/largest")  # again at each change by the view Fabric
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--enable-precise-memory-info")  # fmt: skip
# Moves the picture for a number of frames, and returns the frames per second.
PAN = """async frames => {
  const picture = document.querySelector(".canvases"), box = picture.getBoundingClientRect();
  const at = (type, x, y, buttons) => picture.dispatchEvent(new PointerEvent(
    type, {clientX: box.left + x, clientY: box.top + y, buttons, bubbles: true}));
  at("pointerdown", 300, 300, 1);
  const begin = performance.now();
  for (let frame = 0; frame < frames; frame++) {
    at("pointermove", 300 + 150 * Math.sin(frame / 15), 300 + 100 * Math.cos(frame / 20), 1);
    await new Promise(requestAnimationFrame);
  }
  const took = performance.now() - begin;
  at("pointerup", 300, 300, 0);
  return 1000 * frames / took;
}"""
# Collects how old each newcomer is when the list of jobs shows it, in milliseconds.
WATCH = """async ([prefix, count]) => {
  const ages = [], known = new Set();
  for (;;) {
    for (const link of document.querySelectorAll(`a[title^="${prefix}"]`)) {
      if (known.has(link.title)) continue;
      if (known.size) ages.push(Date.now() - Number(link.title.slice(prefix.length)));
      known.add(link.title);
    }
    if (ages.length >= count) return ages;
    await new Promise(requestAnimationFrame);
  }
}"""


def run(scale: Scale) -> Outcome:
    """Measure the answers of the page's server, the page in a browser, and the load of viewers."""
    nodes, jobs = scale.pick((5_000, 1_000), (5_000, 1_000), (64, 8))
    changes, viewers, seconds = scale.pick((100, 50, 30.0), (20, 50, 10.0), (2, 2, 1.0))
    return asyncio.run(_measure(nodes, jobs, changes, viewers, seconds))


async def _measure(nodes: int, jobs: int, changes: int, viewers: int, seconds: float) -> Outcome:
    """Start the page's server with a synthetic cluster, and measure it with viewers and in Chromium.

    nodes, jobs: of the cluster. changes: number of new jobs that the browser waits for. viewers: their number. seconds:
    for which the load of the viewers is measured.
    """
    async with _server(nodes, jobs) as (address, pid):
        sizes = await _sizes(address)
        load = await _viewers(address, pid, viewers, seconds)
        measurements = await _browser(address, changes)
    tables = [
        Table(f"answers with {nodes:,} nodes and {jobs:,} jobs", {"path": "", "kB": ".1f", "kB, gzip": ".1f"}, sizes),
        Table(f"{viewers} viewers, one change a second", {"server": "", "": ".3g"}, load),
        Table("Chromium without a GPU", {"view": "", "": ".4g"}, measurements),
    ]
    figures: dict[str, float] = {str(label): float(value) for label, value in (*load, *measurements)}
    targets = [Target("largest answer, kB with gzip", max(float(row[2]) for row in sizes), "<=", 200)]
    targets += [
        Target(name, figures[name], op, limit)
        for name, op, limit in (
            ("CPU, share of one core", "<=", 0.10), ("memory, MiB", "<=", 250), ("first paint, s", "<=", 1.0),
            ("JS heap, MB", "<=", 60), ("frames per second, panning", ">=", 50),
            ("a change on screen, s, p99", "<=", 1.0),
        ) if name in figures
    ]  # fmt: skip
    notes = ["The server watches no cluster here: the cost of its watches is not in its CPU time and memory."]
    if not measurements:
        notes.append("Chromium is not installed (apt-get install chromium): nothing of the browser was measured.")
    return Outcome("page: a cluster in a browser", tables, targets, notes)


@asynccontextmanager
async def _server(nodes: int, jobs: int) -> AsyncIterator[tuple[str, int]]:
    """Run the page's server in a process of its own, so that its CPU time and memory are its own. Yield (address,
    pid).
    """
    argv = (sys.executable, "-m", "hack.bench.page.synthetic", str(nodes), str(jobs))
    child = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    try:
        yield msgspec.json.decode(await child.stdout.readline(), type=str), child.pid
    finally:
        child.terminate()
        await child.wait()


def _session() -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {LOGIN}", "Accept-Encoding": "gzip"}
    return aiohttp.ClientSession(headers=headers, auto_decompress=False, connector=aiohttp.TCPConnector(limit=0))


async def _sizes(address: str) -> list[tuple[str, float, float]]:
    """Return (path, kB, kB with gzip) of each answer of the server at `address`."""
    found = []
    async with _session() as session:
        for path in PATHS:
            async with session.get(f"{address}/api/v1/{path}") as packed:
                small = len(await packed.read())
            async with session.get(f"{address}/api/v1/{path}", headers={"Accept-Encoding": ""}) as plain:
                found.append((path, len(await plain.read()) / 1_000, small / 1_000))
    return found


async def _viewers(address: str, pid: int, viewers: int, seconds: float) -> list[tuple[str, float]]:
    """Let `viewers` viewers follow the stream, and measure for `seconds` seconds. Return (name, value) for the server's
    CPU share and memory.

    pid: process ID of the server. Raises AssertionError if a viewer's stream ends.
    """
    async with _session() as session:
        tasks = [asyncio.create_task(_view(session, address)) for _ in range(viewers)]
        await asyncio.sleep(min(3.0, seconds))
        used_s, began_s = _cpu_s(pid), time.monotonic()
        await asyncio.sleep(seconds)
        share = (_cpu_s(pid) - used_s) / (time.monotonic() - began_s)
        for task in tasks:
            assert not task.done(), task.exception()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [("CPU, share of one core", share), ("memory, MiB", _resident_mib(pid))]


async def _view(session: aiohttp.ClientSession, address: str) -> None:
    """Follow the stream as a viewer, and fetch the answers of ASKED at each new version, until cancelled."""
    tags: dict[str, str] = {}
    async with session.get(f"{address}/api/v1/stream") as stream:
        assert stream.status == 200
        async for line in stream.content:
            if line.startswith(b"event: version"):
                for path in ASKED:
                    headers = {"If-None-Match": tags.get(path, "")}
                    async with session.get(f"{address}/api/v1/{path}", headers=headers) as answer:
                        await answer.read()
                        tags[path] = answer.headers["ETag"]


def _cpu_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1_024


async def _browser(address: str, changes: int) -> list[tuple[str, float]]:
    """Open the page in Chromium and return (name, value) of each figure; [] if Chromium is not installed.

    address: of the page. changes: number of new jobs to wait for.
    """
    if (chromium := shutil.which("chromium")) is None:
        return []
    from playwright.async_api import async_playwright

    async with async_playwright() as started:
        browser = await started.chromium.launch(executable_path=chromium, args=list(FLAGS))
        try:
            tab = await browser.new_page(viewport={"width": 1_440, "height": 900})
            tab.set_default_timeout(60_000)
            return await _views(tab, address, changes)
        finally:
            await browser.close()


async def _views(tab: Any, address: str, changes: int) -> list[tuple[str, float]]:
    """Measure the page in a browser's tab. Return (name, value) of each figure.

    tab: connection to the tab. changes: number of new jobs to wait for. Raises TimeoutError of playwright if the page
    does not appear.
    """
    await tab.goto(f"{address}/#token={LOGIN}")
    await tab.get_by_text("Largest free gang").wait_for()
    paints, pictures = list[float](), list[float]()
    for _ in range(3):
        await tab.reload()
        await tab.wait_for_selector(".canvases canvas")
        pictures.append(await tab.evaluate("performance.now() / 1000"))
        await tab.get_by_text("Largest free gang").wait_for()
        first = "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
        paints.append(await tab.evaluate(first))
    speeds = [await tab.evaluate(PAN, 180) for _ in range(3)]
    heap = await tab.evaluate("performance.memory.usedJSHeapSize / 1e6")
    await tab.evaluate("location.hash = '#/jobs?state=waiting'")
    ages = sorted(await tab.evaluate(WATCH, [NEWCOMER, changes]))
    return [
        ("first paint, s", median(paints)),
        ("fabric on screen, s", median(pictures)),
        ("JS heap, MB", heap),
        ("frames per second, panning", median(speeds)),
        ("a change on screen, s, p50", median(ages) / 1_000),
        ("a change on screen, s, p99", ages[min(len(ages) - 1, int(0.99 * len(ages)))] / 1_000),
    ]
