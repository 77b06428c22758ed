"""The page's server on an embedded cluster: answers, live changes, logins, and what others may try against it."""

import asyncio
import json

import aiohttp
import pytest

from tests.cli.page.served import SECRET, asking, fill, next_event, page, pod
from tests.cli.page.test_access import Reviews
from tests.kit.clock import ManualClock
from turnout.cli.page.access import ClusterAccess
from turnout.cli.page.open_api import PATHS
from turnout.kube.errors import Unreachable

pytestmark = pytest.mark.asyncio


async def test_the_page_shows_the_cluster_and_its_changes(tmp_path):
    async with page(tmp_path) as (address, client, source), asking(address) as ask:
        _, summary = await ask("summary")
        assert (summary["gpus"], summary["used_gpus"], summary["free_gpus"], summary["cordoned_nodes"]) == (
            32,
            8,
            16,
            1,
        )
        assert summary["waiting_jobs"] == 1
        _, jobs = await ask("jobs?state=waiting")
        assert [each["job"] for each in jobs["items"]] == ["Pod/team-b/ocr"]
        changed = source.changed
        await client.create("/api/v1/namespaces/team-a/pods", pod("team-a", "more", "n1"))
        await asyncio.wait_for(changed.wait(), 20)
        _, later = await ask("summary")
        assert later["used_gpus"] == 16
        assert later["version"] > summary["version"]


async def test_a_deleted_node_leaves_the_page(tmp_path):
    async with page(tmp_path) as (address, client, source), asking(address) as ask:
        changed = source.changed
        await client.delete("/api/v1/nodes/n2")
        await asyncio.wait_for(changed.wait(), 20)
        _, summary = await ask("summary")
        assert (summary["gpus"], summary["free_gpus"]) == (24, 8)


async def test_an_unchanged_answer_is_not_sent_again(tmp_path):
    async with page(tmp_path) as (address, _, _), aiohttp.ClientSession() as session:
        headers = {"Authorization": f"Bearer {SECRET}"}
        async with session.get(f"{address}/api/v1/fabric/gpus", headers=headers) as response:
            tag = response.headers["ETag"]
        async with session.get(f"{address}/api/v1/fabric/gpus", headers={**headers, "If-None-Match": tag}) as response:
            assert response.status == 304


async def test_every_path_of_the_openapi_document_answers_with_its_struct(tmp_path):
    async with page(tmp_path) as (address, _, _), asking(address) as ask:
        status, document = await ask("openapi.json")
        assert status == 200
        assert set(document["paths"]) == {path for path, *_ in PATHS}
        values = {"{queue}": "default", "{kind}": "Pod", "{namespace}": "team-a", "{name}": "none"}
        for path, struct, *_ in PATHS:
            if path.endswith(("explain", "{name}")):
                continue
            for name, value in values.items():
                path = path.replace(name, value)
            status, answer = await ask(path.removeprefix("/api/v1/"))
            assert status in (200, 404), (path, answer)
            if status == 200:
                assert set(answer) == {field.encode_name for field in struct.__struct_fields__ and _fields(struct)}


def _fields(struct):
    import msgspec

    return msgspec.structs.fields(struct)


async def test_a_landing_is_planned_by_the_planner(tmp_path):
    async with page(tmp_path) as (address, _, _), asking(address) as ask:
        status, answer = await ask("explain?gang=2x8")
        assert (status, answer["fits"]) == (200, True)
        assert {row["node"] for row in answer["landings"]} <= {"n1", "n2"}
        assert (await ask("explain?gang=0x8"))[0] == 400


REFUSED = {
    "without a token": ("summary", {"Authorization": ""}, 401),
    "with a wrong token": ("summary", {"Authorization": "Bearer wrong"}, 401),
    "with an unknown session": ("summary", {"Authorization": "", "Cookie": "turnout-session=guess"}, 401),
    "the stream, without a token": ("stream", {"Authorization": ""}, 401),
    "the document, without a token": ("openapi.json", {"Authorization": ""}, 401),
    "by another host name": ("summary", {"Host": "attacker.example"}, 421),
    "an unknown filter": ("jobs?colour=red", {}, 400),
    "a page beyond all bounds": ("jobs?limit=100000", {}, 400),
    "an unknown path": ("secrets", {}, 404),
    "a file outside": ("../../static/%2e%2e/%2e%2e/setup.cfg", {}, 404),
    "an address without end": (f"jobs?text={'x' * 3_000}", {}, 400),
    "a job that is not there": ("jobs/Job/team-a/gone", {}, 404),
    "a queue that is not there": ("queues/gone/history", {}, 404),
    "a window that is not there": ("queues/default/history?window=1y", {}, 400),
}


async def test_what_is_refused(tmp_path):
    """One server for all rows: each names what is wrong in JSON, and shows nothing of the cluster."""
    hosts = set()
    async with page(tmp_path, allowed_hosts=hosts) as (address, _, _):
        hosts.add(address.removeprefix("http://"))
        async with aiohttp.ClientSession() as session:
            for case, (path, headers, status) in REFUSED.items():
                sent = {"Authorization": f"Bearer {SECRET}", **headers}
                sent = {name: value for name, value in sent.items() if value}
                async with session.get(f"{address}/api/v1/{path}", headers=sent) as response:
                    assert response.status == status, case
                    text = await response.text()
                    assert "error" in json.loads(text), case
                    assert "bert" not in text, case
                    assert response.headers["X-Content-Type-Options"] == "nosniff", case


async def test_a_session_is_a_cookie_that_scripts_and_other_sites_cannot_use(tmp_path):
    async with page(tmp_path) as (address, _, _):
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            async with session.post(f"{address}/api/v1/session", json={"token": "wrong"}) as response:
                assert response.status == 401
            async with session.post(f"{address}/api/v1/session", json={"token": SECRET}) as response:
                assert response.status == 204
                cookie = response.headers["Set-Cookie"]
            assert all(word in cookie for word in ("HttpOnly", "SameSite=Strict", "Path=/"))
            assert SECRET not in cookie
            async with session.get(f"{address}/api/v1/summary") as response:
                assert response.status == 200
            async with session.delete(f"{address}/api/v1/session") as response:
                assert response.status == 204
            async with session.get(f"{address}/api/v1/summary") as response:
                assert response.status == 401


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        pytest.param({"Content-Type": "text/plain"}, json.dumps({"token": SECRET}), id="a form of another site"),
        pytest.param(
            {"Content-Type": "application/json", "Sec-Fetch-Site": "cross-site"},
            json.dumps({"token": SECRET}),
            id="a script of another site",
        ),
        pytest.param({"Content-Type": "application/json"}, "[]", id="no token"),
        pytest.param({"Content-Type": "application/json"}, "x" * 40_000, id="a body without end"),
    ],
)
async def test_another_site_cannot_begin_a_session(tmp_path, headers, body):
    async with page(tmp_path) as (address, _, _), aiohttp.ClientSession() as session:
        response = await session.post(f"{address}/api/v1/session", data=body, headers=headers)
        assert response.status in (400, 403, 413)
        assert "Set-Cookie" not in response.headers


async def test_a_viewer_sees_what_the_cluster_lets_them_list(tmp_path):
    grants = {("ann", "pods", "team-a"), ("ann", "nodes", "")}
    reviews = Reviews({"t1": "ann", "t2": "eve"}, grants)
    async with page(tmp_path, ClusterAccess(reviews, ManualClock())) as (address, _, _):
        async with asking(address, "t1") as ask:
            assert (await ask("viewer"))[1]["user"] == "ann"
            assert [each["job"] for each in (await ask("jobs"))[1]["items"]] == ["Pod/team-a/bert"]
            _, cells = await ask("fabric/gpus")
            assert [each["job"] for each in cells["jobs"]] == ["Pod/team-a/bert"]
            assert (await ask("explain?gang=1x8"))[0] == 403
        async with asking(address, "t2") as ask:
            _, cells = await ask("fabric/gpus")
            assert (cells["jobs"], cells["counts"]) == ([], [])


async def test_the_user_of_a_proxy_is_believed_only_if_configured(tmp_path):
    access = ClusterAccess(Reviews({}, {("ann", "pods", "")}), ManualClock())
    header = {"X-User": "ann"}
    async with page(tmp_path, access, user_header="X-User") as (address, _, _), asking(address, "", **header) as ask:
        assert (await ask("viewer"))[1]["all_namespaces"]
    (tmp_path / "second").mkdir()
    async with page(tmp_path / "second", access) as (address, _, _), asking(address, "", **header) as ask:
        assert (await ask("viewer"))[0] == 401


async def test_the_stream_tells_each_new_version(tmp_path):
    async with (
        page(tmp_path) as (address, client, _),
        aiohttp.ClientSession() as session,
        session.get(f"{address}/api/v1/stream", headers={"Authorization": f"Bearer {SECRET}"}) as response,
    ):
        first = await next_event(response)
        await client.create("/api/v1/namespaces/team-a/pods", pod("team-a", "more", "n1"))
        later = first
        while later["version"] == first["version"]:
            later = await next_event(response)
        assert (later["silent_s"], later["error"]) == (0.0, "")


async def test_what_the_planner_may_not_list_is_named(tmp_path):
    """The API server does not answer the page's account: this viewer gets the reason, and other answers go on."""
    async with page(tmp_path) as (address, client, _), asking(address) as ask:

        async def refused(*_, **__):
            raise Unreachable("GET", "/api/v1/nodes", 0, "no answer")
            yield

        client.pages = refused
        status, answer = await ask("explain?gang=1x8")
        assert (status, "no answer" in answer["error"]) == (503, True)
        assert (await ask("summary"))[0] == 200


async def test_pods_that_ask_for_absurd_amounts_break_no_answer(tmp_path):
    """Anybody who may create pods can name a node and any number of GPUs."""
    async with page(tmp_path) as (address, client, source), asking(address) as ask:
        changed = source.changed
        for at in range(4):
            path = "/api/v1/namespaces/team-a/pods"
            await client.create(path, pod("team-a", f"absurd-{at}", "n1" if at % 2 else "", gpus=2**63 - 1))
        await asyncio.wait_for(changed.wait(), 20)
        for answer_path in ("summary", "fabric/gpus", "queues", "jobs", "nodes", "fabric/largest"):
            assert (await ask(answer_path))[0] == 200, answer_path


async def test_before_the_first_observation_the_page_says_what_it_waits_for(tmp_path):
    async with page(tmp_path) as (address, _, source), asking(address) as ask:
        source.state = type(source.state)()
        status, answer = await ask("summary")
        assert (status, "listed" in answer["error"]) == (503, True)


async def test_the_files_of_the_page_carry_a_policy_without_foreign_code(tmp_path):
    async with page(tmp_path) as (address, _, _), aiohttp.ClientSession() as session:
        for path in ("/", "/page.js", "/page.css", "/notices.txt", "/icon.svg"):
            async with session.get(f"{address}{path}") as response:
                assert response.status == 200
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert b"://" not in await response.read() or path in ("/page.js", "/notices.txt", "/icon.svg")


@pytest.mark.parametrize(
    ("reads_logs", "text"),
    [
        pytest.param(False, "may not read the logs", id="a page for many viewers reads no logs"),
        pytest.param(True, "not of a Pod", id="a pod that is no job's"),
    ],
)
async def test_a_page_that_does_not_know_a_goodput_says_why(tmp_path, reads_logs, text):
    async with page(tmp_path, reads_logs=reads_logs) as (address, _, _), asking(address) as ask:
        status, answer = await ask("jobs/Pod/team-a/bert/goodput")
        assert status == 200
        assert text in answer["missing"]
        assert (answer["productive"], answer["kinds"]) == (None, [])
        assert (await ask("jobs/Pod/team-a/none/goodput"))[0] == 404


async def test_a_viewer_is_told_where_grafana_and_the_docs_are(tmp_path):
    urls = {"docs_url": "https://docs.example.com", "grafana_url": "https://grafana.example.com/sub"}
    async with page(tmp_path, **urls) as (address, _, _), asking(address) as ask:
        assert urls.items() <= (await ask("viewer"))[1].items()


async def test_a_job_whose_launcher_reports_nothing_has_no_goodput(tmp_path):
    async def with_a_job(client):
        await fill(client)
        containers = pod("team-a", "big")["spec"]["containers"]
        task = {"name": "worker", "replicas": 1, "template": {"spec": {"containers": containers}}}
        job = {"metadata": {"name": "big"}, "spec": {"minAvailable": 1, "queue": "default", "tasks": [task]}}
        version = "batch.volcano.sh/v1alpha1"
        body = {"apiVersion": version, "kind": "Job", **job}
        await client.create(f"/apis/{version}/namespaces/team-a/jobs", body)

    async with page(tmp_path, filled=with_a_job, reads_logs=True) as (address, _, _), asking(address) as ask:
        status, answer = await ask("jobs/VolcanoJob/team-a/big/goodput")
        assert status == 200
        assert answer["missing"].startswith("The logs of VolcanoJob/team-a/big have no totals: turnout-run writes")
