"""Callers that TLS admits, and certificates that change without a restart. Fault 22."""

import asyncio
import json
import logging
import ssl
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.kit.certificates import DAY, NOW, Authority, caller
from tests.kit.wait import until_async
from tests.scheduler_ext.server_support import Scripted, body, head, one_answer
from turnout.kube.client.clock import RealClock
from turnout.scheduler_ext.model import BadCertificate
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.ports import (
    CERTIFICATE_CHECK_S,
    Certificates,
    Listen,
    Listeners,
    TlsFiles,
    WebhookPort,
    expiry,
)

pytestmark = pytest.mark.timeout(60)
NOW_S = NOW.timestamp()
EXPIRY = "turnout_tls_certificate_expiry_timestamp_seconds"


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture(scope="module")
def stranger():
    return Authority("stranger")


def files(folder, pair, ca=None):
    """Write a pair, and a CA if callers must show that they know it."""
    (folder / "tls.crt").write_bytes(pair.cert)
    (folder / "tls.key").write_bytes(pair.key)
    if ca is not None:
        (folder / "ca.crt").write_bytes(ca.pem)
    return TlsFiles(folder / "tls.crt", folder / "tls.key", folder / "ca.crt" if ca else None)


class Hand(RealClock):
    """A clock that lets a sleeper go on when told."""

    def __init__(self):
        self._asleep, self._go_on = asyncio.Event(), asyncio.Event()
        self.asked_s = None

    async def sleep(self, seconds):
        self.asked_s = seconds
        self._asleep.set()
        await self._go_on.wait()
        self._go_on.clear()

    def wall(self):
        return NOW_S

    async def tick(self):
        """One look at the files, to its end."""
        self._asleep.clear()
        self._go_on.set()
        await self._asleep.wait()


@asynccontextmanager
async def opened(tls, extender=None):
    """An extender with TLS, and the clock by which it looks at its files."""
    metrics, clock = Metrics(), Hand()
    async with Listeners(extender or Scripted(), metrics, Listen(port=0, health_port=0, tls=tls)) as listeners:
        following = asyncio.create_task(listeners.follow(clock))
        await until_async(lambda: clock.asked_s)
        try:
            yield listeners, clock, metrics
        finally:
            following.cancel()


@asynccontextmanager
async def call_listener(listeners, context):
    """A connection to the verbs; ssl.SSLError or ConnectionError when it is refused."""
    reader, writer = await asyncio.wait_for(
        asyncio.open_connection(
            "127.0.0.1", listeners.port, ssl=context, server_hostname="127.0.0.1" if context else None
        ),
        10,
    )
    try:
        yield reader, writer
    finally:
        writer.close()


async def ask(reader, writer):
    """One filter call."""
    writer.write(head(len(body())) + body())
    return json.loads((await one_answer(reader))[1])["NodeNames"]


async def served(listeners, context):
    """True if a new caller is served."""
    try:
        async with call_listener(listeners, context) as (reader, writer):
            return await ask(reader, writer) == ["a", "b"]
    except (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError):
        return False


@pytest.mark.asyncio
async def test_without_a_client_ca_anybody_may_call_over_tls(authority, tmp_path):
    async with opened(files(tmp_path, authority.sign("server"))) as (listeners, _, metrics):
        assert await served(listeners, caller(authority, tmp_path))
        assert metrics.registry.get_sample_value(EXPIRY) == (NOW + 30 * DAY).timestamp()


@pytest.mark.asyncio
@pytest.mark.parametrize(("who", "let_in"), [
    pytest.param(lambda ours, _: ours.client(), True, id="our own certificate"),
    pytest.param(lambda *_: None, False, id="no certificate"),
    pytest.param(lambda _, theirs: theirs.client(), False, id="another authority's"),
    pytest.param(lambda ours, _: ours.client(ends=NOW - DAY), False, id="an expired one"),
    pytest.param(lambda ours, _: ours.sign("server"), False, id="one that is for servers"),
])  # fmt: skip
async def test_with_a_client_ca_only_its_own_are_let_in(who, let_in, authority, stranger, tmp_path):
    extender = Scripted()
    async with opened(files(tmp_path, authority.sign("server"), authority), extender) as (listeners, *_):
        assert await served(listeners, caller(authority, tmp_path, who(authority, stranger))) is let_in
        assert bool(extender.asked) is let_in
        assert await served(listeners, caller(authority, tmp_path, authority.client()))


@pytest.mark.asyncio
async def test_plain_http_on_the_tls_port_gets_nothing(authority, tmp_path):
    async with opened(files(tmp_path, authority.sign("server"))) as (listeners, *_):
        assert not await served(listeners, None)


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_old_tls_is_refused(authority, tmp_path):
    old = caller(authority, tmp_path)
    old.set_ciphers("ALL:@SECLEVEL=0")
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    async with opened(files(tmp_path, authority.sign("server"))) as (listeners, *_):
        assert not await served(listeners, old)


@pytest.mark.asyncio
async def test_new_connections_see_a_new_certificate_and_old_ones_go_on(authority, tmp_path):
    tls = files(tmp_path, authority.sign("first"))
    async with (
        opened(tls) as (listeners, clock, metrics),
        call_listener(listeners, caller(authority, tmp_path)) as before,
    ):
        assert await ask(*before) == ["a", "b"]
        assert clock.asked_s == CERTIFICATE_CHECK_S
        files(tmp_path, authority.sign("second", ends=NOW + 60 * DAY))
        await clock.tick()
        async with call_listener(listeners, caller(authority, tmp_path)) as after:
            assert _subject(after) == "second"
            assert await ask(*after) == ["a", "b"]
        assert _subject(before) == "first"
        assert await ask(*before) == ["a", "b"]
        assert metrics.registry.get_sample_value(EXPIRY) == (NOW + 60 * DAY).timestamp()
        assert metrics.registry.get_sample_value("turnout_tls_reloads_total", {"outcome": "taken"}) == 1


def _subject(connection):
    return dict(item[0] for item in connection[1].get_extra_info("peercert")["subject"])["commonName"]


@pytest.mark.asyncio
async def test_an_authority_that_was_taken_away_is_trusted_no_longer(authority, stranger, tmp_path):
    tls = files(tmp_path, authority.sign("server"), authority)
    async with opened(tls) as (listeners, clock, _):
        ours, theirs = (caller(authority, tmp_path, who.client()) for who in (authority, stranger))
        assert (await served(listeners, ours), await served(listeners, theirs)) == (True, False)
        (tmp_path / "ca.crt").write_bytes(stranger.pem)
        await clock.tick()
        assert (await served(listeners, ours), await served(listeners, theirs)) == (False, True)


BROKEN = [
    pytest.param("tls.crt", b"", "does not load", id="an empty certificate"),
    pytest.param(
        "tls.crt", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "does not load", id="no DER"
    ),
    pytest.param("tls.key", b"garbage", "does not load", id="a key that is none"),
    pytest.param("tls.key", None, "does not load", id="another's key"),
    pytest.param("ca.crt", b"garbage", "does not load", id="a CA that is none"),
]


@pytest.mark.asyncio
@pytest.mark.parametrize(("name", "content", "why"), BROKEN)
async def test_a_broken_new_pair_keeps_the_old_and_says_so_once(name, content, why, authority, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    tls = files(tmp_path, authority.sign("server"), authority)
    async with opened(tls) as (listeners, clock, metrics):
        (tmp_path / name).write_bytes(authority.sign("other").key if content is None else content)
        for _ in range(3):
            await clock.tick()
        assert await served(listeners, caller(authority, tmp_path, authority.client()))
        refused = [record.why for record in caplog.records if record.msg == "certificate_refused"]
        assert len(refused) == 1
        assert why in refused[0]
        assert metrics.registry.get_sample_value("turnout_tls_reloads_total", {"outcome": "refused"}) == 1
        files(tmp_path, authority.sign("repaired"), authority)
        await clock.tick()
        async with call_listener(listeners, caller(authority, tmp_path, authority.client())) as repaired:
            assert _subject(repaired) == "repaired"


@pytest.mark.parametrize(("name", "content", "why"), BROKEN)
def test_nothing_opens_with_a_broken_first_pair(name, content, why, authority, tmp_path):
    tls = files(tmp_path, authority.sign("server"), authority)
    (tmp_path / name).write_bytes(authority.sign("other").key if content is None else content)
    with pytest.raises(BadCertificate, match=why):
        Certificates(tls, Metrics())


def test_a_missing_file_is_named_and_the_old_pair_serves_on(authority, tmp_path):
    certificates = Certificates(files(tmp_path, authority.sign("server")), Metrics())
    (tmp_path / "tls.key").unlink()
    before = certificates.context
    assert certificates.refresh(NOW_S) is False
    assert certificates.context is before
    with pytest.raises(BadCertificate, match=r"tls\.key cannot be read"):
        Certificates(TlsFiles(tmp_path / "tls.crt", tmp_path / "tls.key"), Metrics())


@pytest.mark.parametrize(("in_use_days", "new_days", "is_used"), [
    pytest.param(30, -1, False, id="an expired one does not replace one that holds"),
    pytest.param(-2, -1, True, id="between two expired ones the newer is as good"),
    pytest.param(-1, 30, True, id="one that holds replaces an expired one"),
])  # fmt: skip
def test_an_expired_certificate(in_use_days, new_days, is_used, authority, tmp_path):
    certificates = Certificates(files(tmp_path, authority.sign("old", ends=NOW + in_use_days * DAY)), Metrics())
    files(tmp_path, authority.sign("new", ends=NOW + new_days * DAY))
    assert certificates.refresh(NOW_S) is is_used


def test_files_that_did_not_change_are_not_loaded_again(authority, tmp_path):
    certificates = Certificates(files(tmp_path, authority.sign("server")), Metrics())
    assert certificates.refresh(NOW_S) is False


@pytest.mark.parametrize("days", [1, 365, 365 * 20, 365 * 40])
def test_the_end_of_a_certificate_is_read_to_the_second(days, authority, tmp_path):
    pair = authority.sign("server", ends=NOW + days * DAY)  # from 2050 on dates are written in another type
    (tmp_path / "tls.crt").write_bytes(pair.cert + authority.pem)
    assert expiry(tmp_path / "tls.crt") == pair.ends_s


REVIEW = b'{"request": {"uid": "u-1", "namespace": "ml", "operation": "CREATE", "object": {"metadata": {}}}}'


@pytest.mark.asyncio
async def test_the_webhooks_port_answers_whom_its_client_ca_knows(authority, stranger, tmp_path):
    scripted = Scripted()
    scripted.why_unready = (
        "waiting for the first list of pods"  # which pods get the gate depends on nothing that is watched
    )
    tls = files(tmp_path, authority.sign("server"), authority)
    async with WebhookPort(scripted, Metrics(), "127.0.0.1", 0, tls) as webhook, aiohttp.ClientSession() as session:
        address = f"https://127.0.0.1:{webhook.port}"
        known = caller(authority, tmp_path, authority.client())
        async with session.post(f"{address}/gate", data=REVIEW, ssl=known) as answer:
            assert (await answer.json())["response"]["allowed"]
        async with session.post(f"{address}/filter", data=b"{}", ssl=known) as answer:
            assert answer.status == 404
        for pair in (None, stranger.client()):
            with pytest.raises((aiohttp.ClientError, OSError)):
                await session.post(f"{address}/gate", data=REVIEW, ssl=caller(authority, tmp_path, pair))


@pytest.mark.asyncio
async def test_the_webhooks_port_serves_a_renewed_certificate_without_a_restart(authority, tmp_path):
    clock = Hand()
    async with WebhookPort(Scripted(), Metrics(), "127.0.0.1", 0, files(tmp_path, authority.sign("first"))) as webhook:
        following = asyncio.create_task(webhook.follow(clock))
        await until_async(lambda: clock.asked_s)
        async with call_listener(webhook, caller(authority, tmp_path)) as before:
            assert _subject(before) == "first"
        files(tmp_path, authority.sign("second", ends=NOW + 60 * DAY))
        await clock.tick()
        async with call_listener(webhook, caller(authority, tmp_path)) as after:
            assert _subject(after) == "second"
        following.cancel()
