"""Runs the page: on a person's own machine, or for many viewers in the cluster."""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from turnout.autoscaler.settings import Settings
from turnout.cli.commands.gang_landing import explained
from turnout.cli.exit_codes import ExitCode
from turnout.cli.page.access import Access, ClusterAccess, LocalAccess, Sessions
from turnout.cli.page.answers import BadQuery
from turnout.cli.page.messages import LandingAnswer, LandingRow
from turnout.cli.page.server import Explain, PageServer, PageSettings
from turnout.cli.page.source import PageSource
from turnout.cli.views.explain import BadGang, gang_of, ranges
from turnout.kube.client.api_client import Client
from turnout.kube.client.clock import RealClock

EXPLAIN_S = 5.0  # for which one landing counts
LOOPBACK = "127.0.0.1"


class BadAddress(Exception):
    """The page cannot listen there. The message is for the person."""


def _page_settings(args: argparse.Namespace, allowed: frozenset[str]) -> PageSettings:
    return PageSettings(
        args.cluster or args.context or "",
        args.docs_base_url,
        args.grafana_url,
        allowed,
        args.user_header,
        args.group_header,
        args.secure_cookie,
    )


async def serve_locally(
    client: Client, settings: Settings, args: argparse.Namespace, say: Callable[[str], None]
) -> ExitCode:
    """Serve the person at this machine, on loopback. Return when interrupted. Raises BadAddress."""
    secret = secrets.token_urlsafe(24)

    def hosts(port: int) -> PageSettings:
        return _page_settings(args, frozenset(f"{name}:{port}" for name in (LOOPBACK, "localhost")))

    await client.get("/version")  # fail at once if the API server does not answer
    async with serving(client, settings, LocalAccess(secret), (LOOPBACK, args.port), hosts) as (source, port):
        say(f"http://{LOOPBACK}:{port}/#token={secret}")
        say("Ctrl-C ends it.")
        await source.run()
    return ExitCode.DONE


async def serve(client: Client, settings: Settings, args: argparse.Namespace, say: Callable[[str], None]) -> ExitCode:
    """Serve many viewers, each with the rights of their own token. Return when interrupted. Raises BadAddress."""
    host, _, port = args.listen.rpartition(":")
    if not host or not port.isdecimal():
        raise BadAddress(f"--listen is HOST:PORT, not {args.listen!r}")
    access = ClusterAccess(client, time.monotonic)
    allowed = frozenset(each.lower() for each in args.allowed_host)
    address = host.strip("[]"), int(port)
    async with serving(client, settings, access, address, lambda _: _page_settings(args, allowed)) as (source, bound):
        say(f"the page listens on {host}:{bound}")
        await source.run()
    return ExitCode.DONE


@asynccontextmanager
async def serving(
    client: Client,
    settings: Settings,
    access: Access,
    address: tuple[str, int],
    page_settings: Callable[[int], PageSettings],
) -> AsyncIterator[tuple[PageSource, int]]:
    """Serve the page while the block lasts; give the source, which does not run yet, and the port.

    page_settings: makes the settings, given the port. Raises BadAddress.
    """
    source = PageSource(client, settings, RealClock(), random.Random())
    listening = _listen(*address)
    port = int(listening.getsockname()[1])
    server = PageServer(
        source,
        access,
        Sessions(time.monotonic),
        _explain(client, settings, source),
        time.monotonic,
        page_settings(port),
    )
    runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        yield source, port
    finally:
        await runner.cleanup()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise BadAddress(f"cannot listen on {host}:{port}: {error}; name another port, or 0 for any") from error


def _explain(client: Client, settings: Settings, source: PageSource) -> Explain:
    """Return a function that plans a gang. One plan is made at a time, and counts for EXPLAIN_S seconds."""
    turn, known = asyncio.Lock(), dict[tuple[str, str], tuple[float, LandingAnswer]]()

    async def explain(gang: str, namespace: str) -> LandingAnswer:
        try:
            asked_gang = gang_of(gang, namespace, settings.gpu_resource[0])
        except BadGang as error:
            raise BadQuery(str(error)) from error
        async with turn:
            made_s, answer = known.get((gang, namespace), (-EXPLAIN_S, None))
            if answer is not None and time.monotonic() - made_s < EXPLAIN_S:
                return answer
            explanation = await explained(client, settings, asked_gang)
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
