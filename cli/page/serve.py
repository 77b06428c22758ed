"""Runs the page: on a person's own machine, or for many viewers in the cluster."""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, TypedDict

import aiohttp
from aiohttp import web

from turnout.autoscaler.settings import Settings
from turnout.cli.exit_codes import ExitCode
from turnout.cli.job_names import JobName
from turnout.cli.page.access import Access, ClusterAccess, LocalAccess, Sessions
from turnout.cli.page.answers import BadQuery, job_time
from turnout.cli.page.job_routes import Goodput
from turnout.cli.page.messages import JobTime, LandingAnswer, LandingRow
from turnout.cli.page.metrics import PageMetrics
from turnout.cli.page.prometheus import Prometheus
from turnout.cli.page.server import Explain, PageServer
from turnout.cli.page.source import PageSource
from turnout.cli.page.usage_log import UsageLog
from turnout.cli.page.viewers import PageSettings
from turnout.cli.verb_support.find_jobs import found_job
from turnout.cli.verb_support.gang_landing import explain_gang
from turnout.cli.verb_support.job_goodput import totals_and_saves_of
from turnout.cli.verb_support.run_verb import NoSuch
from turnout.cli.views.explain import BadGang, gang_of, ranges
from turnout.controllers.kinds.registry import KINDS
from turnout.kube.cli_flags import check_url, parse_address
from turnout.kube.client.api_client import Client
from turnout.kube.client.clock import RealClock
from turnout.kube.client.run_until_signal import run_until_signal
from turnout.kube.server.probes import probe_pages, serve_pages

log = logging.getLogger("turnout.page")

EXPLAIN_S = 5.0  # for which one landing counts
GOODPUT_S, MAX_KNOWN = 60.0, 32  # for which the goodput of a job counts, and of how many jobs
LOOPBACK = "127.0.0.1"


class BadAddress(Exception):
    """The page cannot listen at the address. The message is printed for the user."""


def _page_settings(args: argparse.Namespace, allowed: frozenset[str]) -> PageSettings:
    """Return the page's settings by the flags. allowed: the host names that it answers to; empty for all.

    Raises BadSetting for an invalid URL.
    """
    check_url(args.docs_base_url, "--docs-base-url")
    check_url(args.grafana_url, "--grafana-url")
    check_url(args.prometheus_url, "--prometheus-url")
    return PageSettings(
        args.cluster or args.context or "",
        args.docs_base_url,
        args.grafana_url,
        allowed,
        args.user_header,
        args.group_header,
        args.secure_cookie,
    )


class _Sources(TypedDict):
    decision_log: Path | None
    prometheus_url: str
    prometheus_cluster: str


def _sources(args: argparse.Namespace) -> _Sources:
    """Return the sources of past data that the flags name."""
    return {
        "decision_log": args.decision_log,
        "prometheus_url": args.prometheus_url,
        "prometheus_cluster": args.prometheus_cluster,
    }


def local_hosts(port: int) -> frozenset[str]:
    """Return the Host headers that a page on this port of loopback accepts.

    A foreign site whose name resolves to this machine sends another one, and is refused.
    """
    return frozenset(f"{name}:{port}" for name in (LOOPBACK, "localhost"))


async def serve_locally(
    client: Client, settings: Settings, args: argparse.Namespace, print_now: Callable[[str], None]
) -> ExitCode:
    """Serve the page on loopback for the user of this machine, until cancelled, as by Ctrl-C.

    args: the command line of `turnout page`. print_now: prints the address. Raises BadAddress if the page cannot listen
    on the port, BadSetting for an invalid URL, and CallError if the API server does not answer at the start.
    """
    secret = secrets.token_urlsafe(24)

    def hosts(port: int) -> PageSettings:
        return _page_settings(args, local_hosts(port))

    await client.get("/version")  # fail at once if the API server does not answer
    place = LOOPBACK, args.port
    access, sources = LocalAccess(secret), _sources(args)
    async with serving(client, settings, access, place, hosts, reads_logs=True, **sources) as page:
        print_now(f"http://{LOOPBACK}:{page.port}/#token={secret}")
        print_now("Ctrl-C ends it.")
        await page.source.run()
    return ExitCode.DONE


async def serve(settings: Settings, args: argparse.Namespace, print_now: Callable[[str], None]) -> None:
    """Serve many viewers, each with the rights of their own token, until a signal.

    args: the command line of `turnout page`. print_now: prints the address. Raises BadAddress if the page cannot listen
    at its address, BadSetting for an invalid flag.
    """
    address, probes_at = parse_address(args.listen, "--listen"), parse_address(args.metrics_bind, "--metrics-bind")
    own = _page_settings(args, frozenset(each.lower() for each in args.allowed_host))
    opening = Client.open(args.kubeconfig, args.context, max_call_s=args.request_timeout or None, as_user=args.as_user)
    async with (
        await opening as client,
        serving(client, settings, ClusterAccess(client, RealClock()), address, lambda _: own, **_sources(args)) as page,
    ):
        source, server = page.source, page.server
        metrics = PageMetrics(source.data_age_s, lambda: server.stream.open_streams)
        metrics.show_client(lambda: client.requests.counts, source.watches.items, RealClock())
        probes = probe_pages(lambda: unready_reason(source), metrics.page)
        async with serve_pages(*probes_at, probes) as metrics_port:
            log.info("serving", extra={"port": page.port, "metrics_port": metrics_port})
            print_now(f"the page listens on {address[0]}:{page.port}")
            await run_until_signal(source.run())


def unready_reason(source: PageSource) -> str | None:
    """Return why the page shows nothing yet; None after the first observation, whatever happens then."""
    return (
        None if source.has_synced else "; ".join(source.watches.unsynced()) or "the first observation is not complete"
    )


class RunningPage(NamedTuple):
    """A page that is served."""

    source: PageSource
    server: PageServer
    port: int


@asynccontextmanager
async def serving(
    client: Client,
    settings: Settings,
    access: Access,
    address: tuple[str, int],
    page_settings: Callable[[int], PageSettings],
    sessions: Sessions | None = None,
    reads_logs: bool = False,
    decision_log: Path | None = None,
    prometheus_url: str = "",
    prometheus_cluster: str = "",
) -> AsyncIterator[RunningPage]:
    """Serve the page during the block; yields it. The caller runs its source.

    address: (host, port), with port 0 for a free one. page_settings: returns the settings for the port. sessions: of an
    earlier page, to be continued. reads_logs: job logs are read with the rights of `client`, whose user is the only
    viewer. decision_log: a file or a folder. prometheus_url: "" for none. prometheus_cluster: label of the cluster's
    series there, "" for none. Raises BadAddress if the page cannot listen at `address`, and what `page_settings`
    raises.
    """
    source = PageSource(client, settings, RealClock(), random.Random())
    listening = _listen(*address)
    port = int(listening.getsockname()[1])
    async with _prometheus(prometheus_url, prometheus_cluster) as prometheus:
        server = PageServer(
            source,
            access,
            sessions or Sessions(time.monotonic),
            _explain(client, settings, source),
            page_settings(port),
            _goodput(client, source) if reads_logs else None,
            None if decision_log is None else UsageLog(decision_log, RealClock()),
            prometheus,
        )
        runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.SockSite(runner, listening).start()
            yield RunningPage(source, server, port)
        finally:
            await runner.cleanup()


@asynccontextmanager
async def _prometheus(url: str, cluster: str) -> AsyncIterator[Prometheus | None]:
    """Yield the source of past data; None if `url` is "". cluster: label of its series."""
    if not url:
        yield None
        return
    async with aiohttp.ClientSession() as session:
        prometheus = Prometheus(session, url, cluster, RealClock())
        try:
            yield prometheus
        finally:
            await prometheus.close()


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on `host`, a name or an address of either family. port: 0 for any free one.

    Raises BadAddress if it cannot listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise BadAddress(f"cannot listen on {host}:{port}: {error}; name another port, or 0 for any") from error


def _explain(client: Client, settings: Settings, source: PageSource) -> Explain:
    """Return a function that plans a gang.

    One plan is made at a time, and the last answer is reused for EXPLAIN_S seconds if the same is asked.
    """
    turn, known = asyncio.Lock(), dict[tuple[str, str], tuple[float, LandingAnswer]]()

    async def explain(gang: str, namespace: str) -> LandingAnswer:
        """Return where a gang would be placed now, at most EXPLAIN_S seconds old. gang: PODSxGPUS. namespace: its own.

        Raises BadQuery if the text describes no gang, CannotSee if a required list may not be read, and KubeError if
        the API server fails.
        """
        try:
            asked_gang = gang_of(gang, namespace, settings.gpu_resource[0])
        except BadGang as error:
            raise BadQuery(str(error)) from error
        async with turn:
            made_s, answer = known.get((gang, namespace), (-EXPLAIN_S, None))
            if answer is not None and time.monotonic() - made_s < EXPLAIN_S:
                return answer
            explanation = await explain_gang(client, settings, asked_gang)
            landings = tuple(
                LandingRow(each.node, each.switch or "", ranges(each.ranks), each.gpus) for each in explanation.landings
            )
            state = source.state
            answer = LandingAnswer(
                observed_at_s=time.time(),
                version=state.version,
                fits=explanation.fits,
                landings=landings,
                sentences=explanation.why,
            )
            known.clear()
            known[gang, namespace] = time.monotonic(), answer
            return answer

    return explain


def _goodput(client: Client, source: PageSource) -> Goodput:
    """Return a function that reads the time of a job by kind.

    The function reads the logs of one job at a time, and reuses an answer for GOODPUT_S seconds. It raises errors of
    the API server, except for a missing job, which the answer reports.
    """
    turn, known = asyncio.Lock(), OrderedDict[str, tuple[float, JobTime]]()

    async def read(job: str) -> JobTime:
        """Read the logs of the job's pods. Without a job or totals, the answer says why. job: KIND/NAMESPACE/NAME."""
        kind, namespace, name = job.split("/", 2)
        kind, state = kind.partition(".")[0], source.state  # a kind of two groups is one kind here
        if kind not in KINDS:
            text = f"Goodput is known of jobs of the kinds {', '.join(KINDS)}, not of a {kind}."
            return JobTime(observed_at_s=state.observed_at_s, version=state.version, job=job, missing=text)
        try:
            found = await found_job(client, JobName(kind, namespace, name))
            return job_time(state, job, *await totals_and_saves_of(client, found))
        except NoSuch as error:
            text = f"{str(error)[:1].upper()}{str(error)[1:]}."
            return JobTime(observed_at_s=state.observed_at_s, version=state.version, job=job, missing=text)

    async def goodput(job: str) -> JobTime:
        """Return the time of the job, at most GOODPUT_S seconds old. job: KIND/NAMESPACE/NAME.

        Raises what `read` raises; an error is not stored.
        """
        async with turn:
            read_s, answer = known.get(job, (-GOODPUT_S, None))
            if answer is None or time.monotonic() - read_s >= GOODPUT_S:
                answer = await read(job)
                known[job] = time.monotonic(), answer
                while len(known) > MAX_KNOWN:
                    known.popitem(last=False)
            return answer

    return goodput
