"""The lender as a program: watches always, decides and acts while it holds its Lease."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import socket
import sys
import uuid
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from turnout.autoscaler.nodes.ward import Ward
from turnout.autoscaler.settings import Settings, settings
from turnout.autoscaler.shell.act import Hands
from turnout.autoscaler.shell.journal import Journal
from turnout.autoscaler.shell.loop import Lender
from turnout.autoscaler.shell.metrics import Metrics
from turnout.autoscaler.shell.pages import Pages
from turnout.autoscaler.shell.probes import probes
from turnout.autoscaler.shell.refs import Refs
from turnout.autoscaler.shell.sight import Sight
from turnout.autoscaler.shell.taints import Warden
from turnout.autoscaler.shell.teller import NodeTeller, Teller
from turnout.autoscaler.telling.marks import Mark, Marked
from turnout.autoscaler.telling.status import pages as queue_pages
from turnout.autoscaler.view import View
from turnout.jobs.kinds.all import KINDS
from turnout.kube.errors import BadKubeconfig
from turnout.kube.flags import address
from turnout.kube.shell import logs
from turnout.kube.shell.client import Client
from turnout.kube.shell.clock import RealClock
from turnout.kube.shell.events import EventRecorder
from turnout.kube.shell.lease import Elector, LeaseSettings
from turnout.kube.shell.program import lead, until_told

log = logging.getLogger("turnout.autoscaler")


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; 0 then, 1 when it cannot start."""
    wanted = settings(argv)
    logs.setup(wanted.log_level)
    try:
        asyncio.run(serve(wanted))
    except (BadKubeconfig, OSError) as error:
        print(f"turnout-autoscaler: {error}", file=sys.stderr)
        return 1
    return 0


async def serve(wanted: Settings) -> None:
    """Watch always, act while leading, until the process is told to end."""
    clock = RealClock()
    async with await Client.open(wanted.kubeconfig, wanted.context) as client:
        view = View(KINDS, (wanted.gpu_resource,))
        news = asyncio.Event()
        ward = Ward(wanted.taint_key, wanted.gpu_resource, news.set) if wanted.taint_nodes else None
        watched, hold_large = (wanted.configmap, wanted.orders), wanted.confirm_large_changes
        sight = Sight(view, client, KINDS, clock, random.Random(), watched, ward, hold_large)
        namespace, _, name = wanted.lease.partition("/")
        identity = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        terms = lease_settings(wanted.lease_seconds)
        elector = Elector(client, namespace, name, identity, clock=clock, rng=random.Random(), settings=terms)
        recorder = EventRecorder(client, "turnout-autoscaler", socket.gethostname(), clock=clock)
        metrics = Metrics(wanted.gpu_resource, restart_s=wanted.restart_s)
        refs = Refs(view)
        teller = Teller(recorder, refs.job, refs.leaving, metrics)

        def term() -> int | None:
            return elector.transitions if elector.leading else None

        hands = Hands(client, KINDS, term, teller.became, dry_run=not wanted.act)
        with journal_at(wanted.decision_log) as journal:
            works = []
            if ward is not None:
                tells, rules = NodeTeller(recorder, wanted.rules(), metrics), wanted.rules()
                dry_run = not wanted.act
                works.append(Warden(client, ward, rules, lambda: elector.leading, tells, clock, news, dry_run).run)
            lender = Lender(view, sight, hands, wanted.policy(), clock, teller.decided, metrics, journal)
            words = Words(lender, refs, wanted)
            pages = Pages(client, namespace, clock, words.pages, words.marks, lambda: elector.leading)
            async with probes(*address(wanted.metrics_bind, "--metrics-bind"), metrics, lambda: sight.whole) as port:
                log.info("serving", extra={"metrics_port": port})
                leading = lead(elector, lambda: settled(sight), lambda: together(lender.run, *works))
                await until_told(sight.run(), leading, recorder.run(), pages.run())


async def together(*works: Callable[[], Coroutine[None, None, None]]) -> None:
    """What a leader does, side by side; none goes on without the others."""
    async with asyncio.TaskGroup() as tasks:
        for work in works:
            tasks.create_task(work())


class Words:
    """What is written beside sizes, made of the last look. Pods are marked only by a lender that acts."""

    def __init__(self, lender: Lender, refs: Refs, wanted: Settings) -> None:
        self._lender, self._refs, self._wanted, self._marked = lender, refs, wanted, Marked()

    def pages(self) -> dict[str, dict[str, str]]:
        """Each queue's status, by queue."""
        lender, wanted = self._lender, self._wanted
        if lender.seen is None:
            return {}
        return queue_pages(lender.seen, lender.steps, wanted.gpu_resource, dry_run=not wanted.act)

    def marks(self) -> Iterable[Mark]:
        """What pods lack."""
        if self._lender.seen is None or not (self._wanted.act and self._wanted.mark_pods):
            return ()
        return self._marked.missing(self._lender.seen.jobs, self._refs.notes)


def journal_at(path: str | None) -> AbstractContextManager[Journal | None]:
    """The decision log, if one is wanted."""
    return nullcontext() if path is None else Journal(Path(path))


async def settled(sight: Sight) -> None:
    """Wait until everything is seen."""
    await sight.synced()
    settle()


def settle() -> None:
    """What is there by now stays, so the collector need not walk it; and a look makes much that soon goes by itself."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def lease_settings(lease_s: int) -> LeaseSettings:
    """client-go's proportions at any length: its 15 s are renewed within 10, tried every 2, and left 5 to stop in."""
    renew_s = lease_s * 2 / 3
    return LeaseSettings(lease_s, renew_s, lease_s * 2 / 15, call_s=lease_s / 3, grace_s=lease_s - renew_s)


if __name__ == "__main__":
    sys.exit(main())
