"""The lender as a program: watches always, decides and acts while it holds its Lease."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import sys
import uuid
from collections.abc import Sequence

from autoscaler.settings import Settings, settings
from autoscaler.shell.act import Hands
from autoscaler.shell.loop import Lender
from autoscaler.shell.metrics import Metrics
from autoscaler.shell.probes import probes
from autoscaler.shell.sight import Sight
from autoscaler.shell.teller import Teller
from autoscaler.view import View
from jobs.kinds.all import KINDS
from kube.errors import BadKubeconfig
from kube.flags import address
from kube.shell import logs
from kube.shell.client import Client
from kube.shell.clock import RealClock
from kube.shell.events import EventRecorder
from kube.shell.lease import Elector
from kube.shell.program import lead, until_told

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
        view = View(KINDS)
        sight = Sight(view, client, KINDS, clock, random.Random())
        namespace, _, name = wanted.lease.partition("/")
        identity = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        elector = Elector(client, namespace, name, identity, clock=clock, rng=random.Random())
        recorder = EventRecorder(client, "turnout-autoscaler", socket.gethostname(), clock=clock)
        metrics = Metrics(wanted.gpu_resource)
        teller = Teller(recorder, view.raw, KINDS, metrics)
        hands = Hands(client, KINDS, lambda: elector.leading, teller.became, dry_run=not wanted.act)
        lender = Lender(view, sight, hands, wanted.policy(), clock, teller.decided, metrics)
        async with probes(*address(wanted.metrics_bind, "--metrics-bind"), metrics, lambda: sight.whole) as port:
            log.info("serving", extra={"metrics_port": port})
            await until_told(sight.run(), lead(elector, sight.synced, lender.run), recorder.run())


if __name__ == "__main__":
    sys.exit(main())
