"""A working day of twelve hours: what people and machines do in each minute, and what Prometheus scrapes after it."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack

import aiohttp

from tests.deploy.day.api import Server
from tests.deploy.day.cluster import Cluster
from tests.deploy.day.launchers import NAMES, Launchers
from tests.deploy.day.programs import (
    AutoscalerProgram,
    ControllerProgram,
    ExtenderProgram,
    NominatorProgram,
    PageProgram,
)
from tests.kit.certificates import DAY, Authority
from tests.kit.clock import ManualClock
from turnout.autoscaler.controller.decision_log_writer import DecisionLogWriter
from turnout.kube.node_health import utc_datetime
from turnout.scheduler_ext.server.ports import TlsFiles

MINUTES = 720
LIVE_S = 0.5  # of each minute in which writers work; the rest passes at once, as for a process that slept
_SAMPLE = re.compile(r"^(turnout_\w+)(?:\{(.*)\})? (\S+)$", re.M)
_RUN = re.compile(r',?run="[^"]*"')


class Day:
    """The programs and the cluster of the day. start_s: its begin, in seconds since 1970. minute: since then."""

    def __init__(self, folder, start_s):
        self.folder, self.minute, self.start_s = folder, 0, start_s
        self.clock = ManualClock(1000.0, start_s)
        self.server = Server(self.clock)
        self.launchers, self.programs, self.text = {}, {}, {}
        self._authority = Authority()
        self.certify(90)
        self._stack = AsyncExitStack()

    async def __aenter__(self):
        session = await self._stack.enter_async_context(aiohttp.ClientSession())
        self.cluster = Cluster(self.server, session)
        self.journal = self._stack.enter_context(DecisionLogWriter(self.folder / "decisions"))
        self.programs = {
            "nominator": NominatorProgram(self.server),
            "autoscaler": AutoscalerProgram(self.server, self.journal),
            "controller": ControllerProgram(self.server),
            "page": PageProgram(self.server),
        }
        await self.start_extender()
        await self._until(lambda: all(each.has_synced() for each in self.programs.values()))
        for name in ("nominator", "autoscaler", "controller"):
            self.programs[name].lead()
        await self.clock.advance(-self.clock.wall() % 60)
        self.start_s = round(self.clock.wall())
        return self

    async def __aexit__(self, *_):
        for each in self.programs.values():
            await each.end()
        await self._stack.aclose()

    async def _until(self, holds):
        """Let programs work until something holds. Threads read the map."""
        async with asyncio.timeout(30):
            while not holds():
                await self.clock.advance(0.1)

    async def start_extender(self):
        """Start the extender in a new process."""
        tls = TlsFiles(self.folder / "tls.crt", self.folder / "tls.key")
        self.programs["extender"] = self.cluster.extender = ExtenderProgram(self.server, tls)
        await self.cluster.extender.listen()

    def certify(self, days):
        """Renew the certificate of the extender; it ends in so many days."""
        ends = utc_datetime(self.clock.wall()).replace(microsecond=0) + days * DAY
        pair = self._authority.sign("extender", ends)
        (self.folder / "tls.crt").write_bytes(pair.cert)
        (self.folder / "tls.key").write_bytes(pair.key)

    async def stop_extender(self):
        """End the extender's process."""
        self.cluster.extender = None
        await self.programs.pop("extender").end()

    async def run(self, happens):
        """Live through the day. happens: what is done at a minute, by minute; async or not."""
        for self.minute in range(MINUTES):
            for do in happens.get(self.minute, ()):
                if (doing := do(self)) is not None:
                    await doing
            await self._pass_minute()
            self.scrape()

    async def _pass_minute(self):
        self.server.bookmark()
        self.clock.jump(60.0 - 2 * LIVE_S)
        for each in list(self.programs.values()):
            each.check()
            await each.minute()
        await self.clock.advance(LIVE_S)
        await self.cluster.minute()
        self._follow_pods()
        for each in self.launchers.values():
            each.minute()
        await self.clock.advance(LIVE_S)

    def launch(self, namespace, name, minimum, maximum):
        """Let the pods of a job run launchers, once `minimum` of them run."""
        self.launchers[namespace, name] = Launchers(self.clock, namespace, name, minimum, maximum)

    def _follow_pods(self):
        """Let workers join and leave their jobs as their pods come and go."""
        bound = {
            (pod["metadata"]["namespace"], pod["metadata"]["name"])
            for pod in self.cluster.pods()
            if pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")
        }
        for (namespace, name), job in self.launchers.items():
            bound_ranks = [each for at, each in enumerate(NAMES) if (namespace, f"{name}-worker-{at}") in bound]
            if bound_ranks[:1] == ["a"]:
                job.follow(bound_ranks)

    # What Prometheus sees.

    def scrape(self):
        """Add the pages of all programs as a Prometheus stores them: at this moment, with the labels of their targets.

        The chart's relabelings drop `run` of a launcher (test_hostile_exporter.py shows them at work).
        """
        at_s = self.start_s + 60 * (self.minute + 1)
        assert abs(at_s - self.clock.wall()) < 1
        for name, each in self.programs.items():
            self._add(each.page().decode(), {"cluster": "local", "pod": f"{name}-0"}, at_s)
        for (namespace, name), job in self.launchers.items():
            labels = {"cluster": "local", "job_namespace": namespace, "job_kind": "PyTorchJob", "job_name": name}
            for pod, agent in job.agents.items():
                self._add(_RUN.sub("", agent.page().decode()), {**labels, "pod": pod}, at_s)

    def _add(self, page, labels, at_s):
        text = ",".join(f'{label}="{value}"' for label, value in labels.items())
        lines = self.text.setdefault(at_s, [])
        for name, own, value in _SAMPLE.findall(page):
            own = own.removeprefix(",")
            lines.append(f"{name}{{{own}{',' if own else ''}{text}}} {value} {at_s}")

    def late_counters(self):
        """Return the counters whose first sample is above 0 although the page of their target was there before."""
        series, found, begun = set(), set(), set()
        for lines in self.text.values():
            targets = set()
            for line in lines:
                name, _, rest = line.partition("{")
                labels, _, value = rest.partition("} ")
                target = re.findall(r'(?:cluster|job_name|pod)="[^"]*"', labels)[-3:]
                targets.add(tuple(target))
                if name.endswith("_total") and (name, labels) not in series:
                    series.add((name, labels))
                    if tuple(target) in begun and float(value.split()[0]) > 0:
                        found.add(name)
            begun |= targets
        return found

    def expositions(self, block_s):
        """Return the samples in the text format of OpenMetrics, one text for each block of so many seconds."""
        blocks = {}
        for at_s, lines in self.text.items():
            blocks.setdefault(at_s // block_s, []).extend(lines)
        return ["\n".join([*lines, "# EOF", ""]) for lines in blocks.values()]
