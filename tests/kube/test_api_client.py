"""The client of the API server: what goes over the wire, which error each answer becomes, and that every call ends."""

import asyncio
import contextlib
import datetime
import gzip
import ipaddress
import json
import re
import ssl
from functools import partial

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.kube import world
from tests.kube.world import (
    bookmark,
    broken_off,
    event,
    fault,
    kubeconfig,
    mute,
    page,
    plain,
    pod,
    scripted,
    slammed,
    stream,
)
from turnout.kube.client.api_client import Client
from turnout.kube.errors import (
    BadKubeconfig,
    BadResponse,
    CallError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    Rejected,
    ServerFault,
    TooManyRequests,
    Unauthorised,
    Unreachable,
)
from turnout.kube.status import decode_json_object

pytestmark = pytest.mark.asyncio
PODS = "/api/v1/pods"
SOONEST_S = 0.05


@pytest.fixture(params=[False, True], ids=["a service", "a command that ends in a moment"])
def minimal(request):
    return request.param


@pytest.fixture
def connected(minimal):
    return partial(world.connected, minimal=minimal)


@pytest.mark.parametrize(
    ("code", "becomes"),
    [
        pytest.param(400, Rejected, id="a bad request is not to be repeated"),
        pytest.param(403, Forbidden, id="forbidden"),
        pytest.param(404, NotFound, id="not found"),
        pytest.param(409, Conflict, id="somebody was first"),
        pytest.param(410, Gone, id="the version is forgotten"),
        pytest.param(413, Rejected, id="too large"),
        pytest.param(422, Rejected, id="invalid"),
        pytest.param(429, TooManyRequests, id="too many"),
        pytest.param(500, ServerFault, id="etcd has no leader"),
        pytest.param(503, ServerFault, id="shutting down"),
        pytest.param(504, ServerFault, id="timed out behind"),
        pytest.param(304, BadResponse, id="an answer that is none"),
    ],
)
async def test_each_answer_is_its_own_error(connected, tmp_path, code, becomes):
    async with connected(tmp_path) as (script, client):
        script.lists = [fault(code, "because", reason="Why") if code != 304 else plain(b"", 304)]
        with pytest.raises(becomes) as caught:
            await client.get(PODS)
    assert type(caught.value) is becomes
    assert (caught.value.status, caught.value.path) == (code, PODS)
    if code != 304:
        assert "because" in str(caught.value)
        assert caught.value.reason == "Why"


@pytest.mark.parametrize(
    ("answer", "wait_s"),
    [
        pytest.param(fault(429, retry_after=7), 7.0, id="the header"),
        pytest.param(fault(429), 1.0, id="a second when it does not say"),
        pytest.param(fault(429, retry_after="Wed, 21 Oct 2026 07:28:00 GMT"), 1.0, id="a date is not read"),
        pytest.param(fault(429, retry_after="9" * 30), 1.0, id="nor a number beyond reason"),
        pytest.param(fault(503, retry_after=3), 3.0, id="a fault may ask for a pause as well"),
        pytest.param(plain({"kind": "Status", "code": 504, "details": {"retryAfterSeconds": 4}}, 504), 4.0, id="body"),
    ],
)
async def test_the_server_says_how_long_to_wait(connected, tmp_path, answer, wait_s):
    async with connected(tmp_path) as (script, client):
        script.lists = [answer]
        with pytest.raises((TooManyRequests, ServerFault)) as caught:
            await client.get(PODS)
    assert caught.value.retry_after_s == wait_s
    assert len(script.asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(mute(), id="a server that never answers"),
        pytest.param(slammed(), id="a connection that is cut"),
        pytest.param(plain(b"{", headers={"Content-Length": "100"}), id="an answer that breaks off"),
    ],
)
@pytest.mark.parametrize("verb", ["get", "create", "patch", "delete"])
async def test_every_call_ends_in_time(connected, tmp_path, answer, verb):
    async with connected(tmp_path) as (script, client):
        script.lists = script.others = [answer]
        body = {"create": [{}], "patch": [{}]}.get(verb, [])
        with pytest.raises(Unreachable):
            await getattr(client, verb)(PODS, *body, deadline_s=SOONEST_S)


async def test_nobody_listens(minimal, tmp_path):
    async with scripted() as script:
        url = script.url
    async with await Client.open(kubeconfig(tmp_path, url), minimal=minimal) as client:
        with pytest.raises(Unreachable):
            await client.get(PODS)


async def test_words_of_a_query_and_a_body_arrive_as_they_were(connected, tmp_path):
    odd = "a=b,c!=d e+f/g&h%2B=="
    async with connected(tmp_path) as (script, client):
        await client.get(PODS, {"labelSelector": odd, "limit": 5, "watch_not": True})
        await client.patch(f"{PODS}/p", {"a": "é\u2028"}, field_manager="turnout-nominator")
        await client.patch(f"{PODS}/p", [{"op": "remove", "path": "/x"}], "application/json-patch+json")
        await client.create(PODS, b'{"n": 1}')
        await client.delete(f"{PODS}/p", uid="u1", resource_version="7", grace_s=0)
    get, merge, ops, post, delete = script.asked
    assert get.query == {"labelSelector": odd, "limit": "5", "watch_not": "true"}
    assert get.headers["User-Agent"] == "turnout"
    assert get.headers["Authorization"] == "Bearer first"
    assert (merge.headers["Content-Type"], merge.query) == (
        "application/merge-patch+json",
        {"fieldManager": "turnout-nominator"},
    )
    assert json.loads(merge.body) == {"a": "é\u2028"}
    assert (ops.headers["Content-Type"], json.loads(ops.body)) == (
        "application/json-patch+json",
        [{"op": "remove", "path": "/x"}],
    )
    assert (post.method, json.loads(post.body)) == ("POST", {"n": 1})
    assert json.loads(delete.body)["preconditions"] == {"uid": "u1", "resourceVersion": "7"}
    assert json.loads(delete.body)["gracePeriodSeconds"] == 0


async def test_our_own_broken_body_never_leaves(connected, tmp_path):
    async with connected(tmp_path) as (script, client):
        with pytest.raises(Rejected):
            await client.create(PODS, b"{oops")
    assert script.asked == []


async def test_a_list_is_read_page_by_page(connected, tmp_path):
    async with connected(tmp_path) as (script, client):
        script.lists = [page([pod("a")], more="x+/=&y"), page([pod("b")])]
        read = [raw async for raw in client.pages(PODS, {"fieldSelector": "f"}, limit=1)]
    assert [json.loads(raw)["items"][0]["metadata"]["name"] for raw in read] == ["a", "b"]
    assert [request.query for request in script.asked] == [
        {"fieldSelector": "f", "limit": "1"},
        {"fieldSelector": "f", "limit": "1", "continue": "x+/=&y"},
    ]


async def test_what_is_no_list_is_told(connected, tmp_path):
    async with connected(tmp_path) as (script, client):
        script.lists = [plain(b"<html>")]
        with pytest.raises(BadResponse):
            [raw async for raw in client.pages(PODS)]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"<html>", id="the page of a proxy"),
        pytest.param(b'{"metadata": {"continue": "\xff"}}', id="no UTF-8"),
        pytest.param(b'["a"]', id="no object"),
        pytest.param(b'{"a": ' * 100_000, id="nested too deep"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_a_call_error(connected, tmp_path, answer):
    with pytest.raises(BadResponse):
        decode_json_object(PODS, answer)
    async with connected(tmp_path) as (script, client):
        script.lists = [plain(answer)]
        read = []
        with contextlib.suppress(BadResponse):
            read = [raw async for raw in client.pages(PODS)]
    assert read in ([], [answer])


async def test_the_body_of_an_error_may_be_no_utf_8(connected, tmp_path):
    async with connected(tmp_path) as (script, client):
        script.lists = [plain(b'{"message": "\xff"}', 500)]
        with pytest.raises(ServerFault):
            await client.get(PODS)


async def test_an_error_whose_body_breaks_off_keeps_its_status(connected, tmp_path):
    async with connected(tmp_path) as (script, client):
        script.lists = [broken_off(409)]
        with pytest.raises(Conflict):
            await client.get(PODS)
        assert client.requests.counts == {("get", "409"): 1}


async def test_a_rotated_token_is_read_again_once(connected, tmp_path):
    async with connected(tmp_path) as (script, client):
        script.lists = [fault(401), plain({"ok": 1})]
        (tmp_path / "token").write_text("second")
        assert await client.get(PODS) == b'{"ok": 1}'
    assert [request.headers["Authorization"] for request in script.asked] == ["Bearer first", "Bearer second"]


async def test_two_concurrent_calls_both_use_the_reloaded_token(connected, tmp_path):
    async def refuse_both(request, server):
        await server.until("list", 2)
        return await fault(401)(request, server)

    async with connected(tmp_path) as (script, client):
        script.lists = [refuse_both, refuse_both, plain({"ok": 1})]
        calls = asyncio.gather(client.get(PODS), client.get(PODS))
        await script.until("list", 2)
        (tmp_path / "token").write_text("second")
        assert await calls == [b'{"ok": 1}'] * 2


@pytest.mark.parametrize("file_is_missing", [False, True], ids=["the token is the same", "its file is gone"])
async def test_a_token_that_stays_refused_is_not_repeated(connected, tmp_path, file_is_missing):
    async with connected(tmp_path) as (script, client):
        script.lists = [fault(401)]
        if file_is_missing:
            (tmp_path / "token").unlink()
        with pytest.raises(Unauthorised):
            await client.get(PODS)
    assert len(script.asked) == 1


async def test_watch_lines_come_whole_whatever_the_chunks(connected, tmp_path):
    line = event("ADDED", pod("é" * 50))
    pieces = [line[:3], line[3:40], line[40:] + line + line[:1], line[1:], b"\n\n", b"half a line"]
    async with connected(tmp_path) as (script, client):
        script.watches = [stream(*pieces, then="end")]
        read = [raw async for raw in client.watch(PODS, {"resourceVersion": "1"})]
    assert read == [b"", *[line.rstrip()] * 3]  # the empty one says that the watch was taken
    assert script.asked[0].query == {"resourceVersion": "1", "watch": "true"}


async def test_a_line_past_the_bound_is_cut_and_the_next_one_is_whole(connected, tmp_path):
    long = event("ADDED", pod("x" * 200_000))
    async with connected(tmp_path) as (script, client):
        script.watches = [stream(long[:100_000], long[100_000:] + bookmark(5), long + bookmark(6), then="end")]
        read = [raw async for raw in client.watch(PODS, {}, max_line_bytes=50_000)]
    assert [len(raw) for raw in read] == [0, 1024, len(bookmark(5)) - 1, 1024, len(bookmark(6)) - 1]


@pytest.mark.parametrize(
    ("answer", "becomes"),
    [
        pytest.param(stream(bookmark(1), then="reset"), Unreachable, id="cut in mid-stream"),
        pytest.param(slammed(), Unreachable, id="cut at once"),
        pytest.param(fault(410), Gone, id="refused with a status"),
    ],
)
async def test_a_watch_that_breaks_is_told(connected, tmp_path, answer, becomes):
    async with connected(tmp_path) as (script, client):
        script.watches = [answer]
        with pytest.raises(becomes):
            [raw async for raw in client.watch(PODS, {})]


async def test_an_urgent_call_passes_a_full_house(connected, tmp_path):
    async with connected(tmp_path, max_in_flight=1) as (script, client):
        script.lists = [mute(), plain({"urgent": 1})]
        stuck = asyncio.create_task(client.get(PODS, deadline_s=5))
        await script.until("list", 1)
        with pytest.raises(Unreachable):
            await client.get(PODS, deadline_s=SOONEST_S)
        assert len(script.asked) == 1, "the patient one never left"
        assert await client.get(PODS, urgent=True) == b'{"urgent": 1}'
        stuck.cancel()
        await asyncio.wait({stuck})


async def test_a_compressed_bomb_is_not_asked_for(connected, tmp_path):
    async with connected(tmp_path) as (script, client):
        script.lists = [plain(gzip.compress(b"{}"), headers={"X-Plain": "1"})]
        await client.get(PODS)
    assert script.asked[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    "text",
    ["", "{", "a: [", "apiVersion: v1\nkind: Config\n", None, "hello", "contexts: 5"],
    ids=["empty", "cut", "odd", "bare", "absent", "a text", "a number of contexts"],
)
async def test_a_useless_kubeconfig_is_told(minimal, tmp_path, text):
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadKubeconfig, match="kubeconfig") as raised:
        await Client.open(str(path), minimal=minimal)
    assert not re.search(r"\n|'(str|int)' object", str(raised.value))


def certificate(folder):
    """A certificate for 127.0.0.1 that signs itself. Returns the paths of it and of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.KeyUsage(True, False, False, False, False, True, False, False, False), True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "cert").write_bytes(signed.public_bytes(pem))
    plain_key = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key").write_bytes(plain_key)
    return folder / "cert", folder / "key"


@pytest.mark.parametrize("trusted", [True, False], ids=["its authority is known", "a stranger gets no token"])
async def test_the_server_must_prove_who_it_is(minimal, tmp_path, trusted):
    cert, key = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    async with scripted(context) as script:
        path = kubeconfig(tmp_path, script.url, ca=cert if trusted else None)
        async with await Client.open(path, minimal=minimal) as client:
            if trusted:
                await client.get(PODS)
            else:
                with pytest.raises(Unreachable):
                    await client.get(PODS)
    assert len(script.asked) == trusted


@pytest.mark.parametrize(
    ("status", "code"),
    [
        pytest.param(200, "2xx", id="a success"),
        pytest.param(404, "404", id="an object that does not exist"),
        pytest.param(409, "409", id="a lost update"),
        pytest.param(403, "403", id="a missing right"),
        pytest.param(410, "4xx", id="another refusal"),
        pytest.param(503, "5xx", id="a fault of the server"),
    ],
)
async def test_calls_are_counted_by_verb_and_code(connected, tmp_path, status, code):
    async with connected(tmp_path) as (script, client):
        script.lists = [fault(status, "because") if status != 200 else plain(b"{}", 200)]
        with contextlib.suppress(CallError):
            await client.get(PODS)
        assert client.requests.counts == {("get", code): 1}
