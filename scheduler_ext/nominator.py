"""Run the nominator: plan ahead and write status.nominatedNodeName while this process holds its Lease.

The nominator has a Deployment, an account and a Lease of its own, so the extender needs no right to write. The
extender's filter and prioritize still answer for every pod. With --annotate-switch-path the nominator also writes on
bound pods which switches are above them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import socket
import sys
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turnout.kube.cli_flags import BadSetting, check_name, parse_address, parse_settings
from turnout.kube.client import logs
from turnout.kube.client.api_client import Client
from turnout.kube.client.clock import Clock, RealClock
from turnout.kube.client.events import EventRecorder
from turnout.kube.client.lease import Elector, lease_settings
from turnout.kube.client.leased_calls import LeasedCalls
from turnout.kube.client.run_until_signal import (
    CANNOT_START,
    lead,
    run_program,
    run_together,
    run_until_signal,
)
from turnout.kube.errors import Unreachable
from turnout.kube.labels import PLACEMENT_GATE, REPAIR, SWITCH_PATH
from turnout.kube.server.sockets import bind
from turnout.kube.version import add_version
from turnout.scheduler_ext.model import BadCertificate, Notice
from turnout.scheduler_ext.planner.nominations import NominationChoices
from turnout.scheduler_ext.planner.plans import plans_by
from turnout.scheduler_ext.server.events import DecisionEvents
from turnout.scheduler_ext.server.extender import Extender
from turnout.scheduler_ext.server.http import HealthPages
from turnout.scheduler_ext.server.metrics import Metrics, NominatorMetrics
from turnout.scheduler_ext.server.ports import TlsFiles, WebhookPort
from turnout.scheduler_ext.server.watches import Watches
from turnout.scheduler_ext.settings import SharedSettings, add_common
from turnout.scheduler_ext.writers.eviction_writer import Evictor, Repairer
from turnout.scheduler_ext.writers.gate_writer import GateWriter
from turnout.scheduler_ext.writers.nomination_writer import NominationWriter
from turnout.scheduler_ext.writers.reservation_writer import ReservationWriter
from turnout.scheduler_ext.writers.switch_path_writer import SwitchPathWriter

log = logging.getLogger("turnout.nominator")

PODS = "/api/v1/pods"
CLEAR_S = 60.0  # the first lists must be complete within this time when a person takes nominations back


@dataclass(frozen=True, slots=True)
class NominatorSettings(SharedSettings):
    """The settings of the nominator."""

    metrics_bind: str = "127.0.0.1:9091"
    lease: str = "turnout-system/turnout-nominator"  # namespace/name
    lease_seconds: int = 15  # seconds after the last renewal until another process may take the Lease, 4 to 3600
    scheduler_name: tuple[str, ...] = ("default-scheduler",)  # the schedulers whose pods are nominated
    expire_s: float = 60.0  # seconds that a nomination may stay unused, at least 1
    gates: bool = False  # lift our gate from the pods of a gang once they are nominated
    preempt: bool = False  # evict pods of a lower priority for a gang behind our gate that finds no room
    repair: bool = False  # move or give up gangs below their min without room if their owners ask for it
    annotate_switch_path: bool = False  # write the path of the switches above bound pods of gangs as an annotation
    webhook_bind: str = ""  # host:port of the webhook for API servers, which adds our gate to pods; "" for no webhook

    def __post_init__(self) -> None:
        if self.webhook_bind:
            parse_address(self.webhook_bind, "--webhook-bind")
        if (self.tls_cert is not None) != (self.tls_key is not None) or bool(self.webhook_bind) != bool(self.tls_cert):
            raise BadSetting("--webhook-bind, --tls-cert and --tls-key go together: an API server calls by TLS only")
        if self.client_ca is not None and not self.webhook_bind:
            raise BadSetting("--client-ca needs --webhook-bind")
        if self.preempt and not self.gates:
            raise BadSetting("--preempt needs --gates: for other pods the scheduler preempts itself")
        self.check()
        check_name(self.lease, "--lease")
        if not 4 <= self.lease_seconds <= 3600:
            raise BadSetting(f"--lease-seconds is {self.lease_seconds}: it must be 4 to 3600")
        if self.expire_s < 1:
            raise BadSetting(f"--expire-s is {self.expire_s}: it must be at least 1")

    def choices(self) -> NominationChoices:
        """Return the settings that decide on nominations."""
        schedulers = frozenset(self.scheduler_name)
        return NominationChoices(replace(self.rules(), gated_schedulers=schedulers), schedulers, self.expire_s)

    def tls(self) -> TlsFiles | None:
        """Return the files of the webhook's certificate; None without a webhook."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_cert, self.tls_key, self.client_ca)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the nominator until SIGTERM or SIGINT. Returns 0 then, and 1 if the program cannot start or fails.

    argv: None for the process's own arguments. A bad command line ends the program with code 2.
    """
    settings = parse_settings(parser(), NominatorSettings, argv)
    logs.setup(settings.log_level)
    return run_program("turnout-nominator", lambda: serve(settings), (*CANNOT_START, BadCertificate))


async def serve(settings: NominatorSettings) -> None:
    """Watch always and write while leading, until a signal to end.

    Raises the errors of `Client.open`, OSError if a port cannot be opened, and BadCertificate if the webhook's
    certificate cannot be used.
    """
    clock, metrics = RealClock(), Metrics("nominator")
    series = NominatorMetrics(metrics.registry)
    async with await Client.open(settings.kubeconfig, settings.context) as client:
        choices = settings.choices()
        watches = Watches(
            plans_by(choices.rules),
            client,
            settings.configmap,
            clock,
            random.Random(),
            metrics,
            _log_notice,
            settings.confirm_large_changes,
            settings.read_queues,
            settings.reservations,
        )
        extender = Extender(choices.rules, clock, metrics, _log_notice, watches)
        metrics.show_client(lambda: client.requests.counts, watches.reflectors.items, clock)
        namespace, _, name = settings.lease.partition("/")
        lease = lease_settings(settings.lease_seconds)
        elector = Elector(client, namespace, name, _identity(), clock=clock, rng=random.Random(), settings=lease)
        events = EventRecorder(client, "turnout-nominator", _instance(), clock=clock, docs=settings.docs_base_url)
        notices = DecisionEvents(events, settings.configmap, clock)
        calls = LeasedCalls(client, lambda: elector.is_leading)
        writers = _writers(settings, watches, calls, clock, series, notices)

        async def term() -> None:
            series.leading.set(1)
            try:
                await run_together(*writers)
            finally:
                series.leading.set(0)

        leading = lead(elector, watches.wait_for_sync, term)
        reporting = [events.run(), notices.run()] if settings.gates or settings.repair else []
        work = [watches.run(), extender.run(), leading, *reporting]
        await _answer(settings, extender, metrics, clock, work)


def _writers(
    settings: NominatorSettings,
    watches: Watches,
    calls: LeasedCalls,
    clock: Clock,
    metrics: NominatorMetrics,
    notices: DecisionEvents,
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Return the loops that run while this process leads, as the settings choose them. Each ends only when cancelled.

    calls: refused without the Lease.
    """
    choices = settings.choices()
    writers = [NominationWriter(watches, calls, choices, clock, metrics).run]
    reservations = ReservationWriter(watches, calls, clock, metrics, notices.notify, settings.reservations)
    if settings.preempt or settings.repair:
        writers.append(reservations.run)
    if settings.gates:
        evicts = settings.preempt
        evictor = Evictor(watches, calls, clock, metrics, notices.notify, reservations) if evicts else None
        writers.append(GateWriter(watches, calls, choices, clock, metrics, notices.notify, evictor).run)
    if settings.repair:
        writers.append(Repairer(watches, calls, clock, metrics, notices.notify, reservations).run)
    if settings.annotate_switch_path:
        writers.append(SwitchPathWriter(watches, calls, clock, metrics).run)
    return writers


async def _answer(
    settings: NominatorSettings,
    extender: Extender,
    metrics: Metrics,
    clock: Clock,
    works: list[Coroutine[Any, Any, None]],
) -> None:
    """Serve probes and metrics, and the webhook if its TLS files are set, while `works` run.

    Returns after a signal to end, or if one of the works returns. If one fails, its exception is raised. works: the
    loop of the webhook is appended. Raises OSError if an address cannot be bound, and BadCertificate.
    """
    server = HealthPages(extender, metrics).server()
    async with AsyncExitStack() as stack:
        listening = stack.enter_context(bind(*parse_address(settings.metrics_bind, "--metrics-bind")))
        if (tls := settings.tls()) is not None:
            host, port = parse_address(settings.webhook_bind, "--webhook-bind")
            webhook = await stack.enter_async_context(WebhookPort(extender, metrics, host, port, tls))
            works.append(webhook.follow(clock))
        await server.listen(listening)
        stack.push_async_callback(server.close)
        await run_until_signal(*works)


async def clear(client: Client) -> int:
    """Clear every nomination of ours in the cluster, and return how many there were, even while another process leads.

    Raises CallError if the pods cannot be listed at once, and Unreachable if the lists are not complete within CLEAR_S:
    a person waits for the result, and watches would retry for ever.
    """
    clock, metrics = RealClock(), Metrics("nominator")
    async for _ in client.pages(PODS, limit=1):
        break
    settings = NominatorSettings()
    plans = plans_by(settings.choices().rules)
    watches = Watches(plans, client, settings.configmap, clock, random.Random(), metrics, _log_notice)
    nominator = NominationWriter(watches, client, settings.choices(), clock, NominatorMetrics(metrics.registry))
    watching = asyncio.create_task(watches.run())
    try:
        try:
            async with asyncio.timeout(CLEAR_S):
                await watches.wait_for_sync()
        except TimeoutError:
            late = f"not listed within {CLEAR_S:.0f} s: {', '.join(watches.unsynced_watches())}"
            raise Unreachable("GET", PODS, 0, late) from None
        return await nominator.clear()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the nominator's command line."""
    default = NominatorSettings()
    parser = argparse.ArgumentParser(
        prog="turnout-nominator", description="Write the plan ahead: status.nominatedNodeName of waiting pods."
    )
    add_version(parser)
    add_common(parser, default.configmap, default.metrics_bind)
    parser.add_argument("--lease", default=default.lease, help="namespace/name of the Lease (%(default)s)")
    parser.add_argument(
        "--lease-seconds",
        type=int,
        default=default.lease_seconds,
        help="seconds after which another may take a Lease that is not renewed, at least 4 (%(default)s)",
    )
    parser.add_argument(
        "--scheduler-name", action="append", help="whose pods are nominated; repeatable (default-scheduler)"
    )
    parser.add_argument(
        "--expire-s", type=float, default=default.expire_s, help="seconds a nomination may stay unused (%(default)s)"
    )
    _add_gates(parser, default)
    parser.add_argument(
        "--repair",
        action="store_true",
        help=f"evict what is left of gangs that cannot get their min again, where their pods say so by {REPAIR}; needs "
        "the right to evict",
    )
    parser.add_argument(
        "--annotate-switch-path",
        action="store_true",
        help=f"write {SWITCH_PATH} on the bound pods of gangs, for turnout-run; needs the right to patch pods",
    )
    return parser


def _add_gates(parser: argparse.ArgumentParser, default: NominatorSettings) -> None:
    """Add the flags of scheduling gates and of the webhook. default: their defaults."""
    parser.add_argument(
        "--gates",
        action="store_true",
        help=f"lift the scheduling gate {PLACEMENT_GATE}, gang by gang, once a plan stands and is written; needs the "
        "right to patch pods",
    )
    parser.add_argument(
        "--preempt",
        action="store_true",
        help="evict pods of a lower priority for a gang behind that gate that finds no room; needs the right to evict",
    )
    parser.add_argument(
        "--webhook-bind",
        default=default.webhook_bind,
        help="host:port at which an API server asks, by a MutatingWebhookConfiguration, which pods get the gate",
    )
    parser.add_argument("--tls-cert", type=Path, help="PEM certificate chain of the webhook; followed")
    parser.add_argument("--tls-key", type=Path, help="PEM key of --tls-cert")
    parser.add_argument("--client-ca", type=Path, help="callers of the webhook must be certified by this CA (mTLS)")


def _log_notice(notice: Notice) -> None:
    """Write a notice to the debug log only. The extender writes the Events; the nominator would repeat them."""
    log.debug("told", extra={"reason": notice.reason.value, "detail": notice.detail})


def _identity() -> str:
    return f"{_instance()}_{uuid.uuid4().hex[:8]}"


def _instance() -> str:
    """Return the name of this process's pod, else of its host."""
    return os.environ.get("POD_NAME") or socket.gethostname()


if __name__ == "__main__":
    sys.exit(main())
