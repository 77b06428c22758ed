"""The page in Debian's Chromium: every view, the keyboard, a live change, rights, and what a hostile name does."""

import shutil
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path

import pytest

from tests.cli.page.served import SECRET, fill, page, pod
from tests.cli.page.test_access import Reviews, SlowReviews
from tests.cli.page.test_prometheus import Server, matrix
from tests.cli.page.usage_lines import days_of_log
from tests.kit.clock import ManualClock
from turnout.cli.page.access import ClusterAccess
from turnout.kube.client.clock import RealClock

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, pytest.mark.debian("chromium")]

# Chromium asks Google for this and that at its start; the tests allow no traffic but to this machine.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
SCREENS = Path("build/screens")
VIEWS = ("fabric", "queues", "jobs", "decisions", "nodes")
HOSTILE = "<img src=x onerror=alert(1)>"


@asynccontextmanager
async def browser(address, token=SECRET, theme="light", width=1_440, height=900):
    """Give a page that is logged in, and the list of what its console says."""
    from playwright.async_api import async_playwright

    async with async_playwright() as started:
        chromium = await started.chromium.launch(executable_path=shutil.which("chromium"), args=list(FLAGS))
        try:
            size = {"width": width, "height": height}
            tab = await (await chromium.new_context(color_scheme=theme, viewport=size)).new_page()
            console = []
            tab.on("console", lambda message: console.append(message) if message.type in ("error", "warning") else None)
            tab.on("pageerror", lambda error: console.append(str(error)))
            tab.on("dialog", lambda dialog: console.append(f"dialog {dialog.message}"))
            await tab.goto(f"{address}/#token={token}")
            yield tab, console
        finally:
            await chromium.close()


async def show(tab, place):
    """Go to a view, and wait for its heading."""
    await tab.evaluate("place => { location.hash = place }", place)
    await tab.wait_for_selector("h1:focus")


@pytest.mark.parametrize(
    ("theme", "width"), [("light", 1_440), ("dark", 1_440), ("light", 390)], ids=["light", "dark", "phone"]
)
async def test_every_view_answers_its_question_without_an_error(tmp_path, theme, width):
    text_by_view = {
        "fabric": "Largest free gang",
        "queues": "Quota",
        "jobs": "ocr",
        "decisions": "Decisions",
        "nodes": "n3",
    }
    async with page(tmp_path) as (address, _, _), browser(address, theme=theme, width=width) as (tab, console):
        for view in VIEWS:
            await show(tab, f"#/{view}")
            await tab.get_by_text(text_by_view[view]).first.wait_for()
            await tab.screenshot(path=SCREENS / f"{view}-{theme}-{width}.png", full_page=True)
            overflow = await tab.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0, f"{view} is wider than the window by {overflow} px"
        await show(tab, "#/job?id=Pod%2Fteam-b%2Focr")
        await tab.get_by_text("It waits for 1 workers of 8 GPUs.").wait_for()
        await tab.screenshot(path=SCREENS / f"job-{theme}-{width}.png", full_page=True)
        assert console == []


async def test_a_change_in_the_cluster_comes_by_itself(tmp_path):
    async with page(tmp_path) as (address, client, _), browser(address) as (tab, console):
        await show(tab, "#/jobs")
        await tab.get_by_text("ocr").first.wait_for()
        await client.create("/api/v1/namespaces/team-a/pods", pod("team-a", "newcomer"))
        await tab.get_by_text("newcomer").first.wait_for()
        assert console == []


async def test_a_change_in_the_cluster_keeps_what_was_zoomed(tmp_path):
    async with page(tmp_path) as (address, client, _), browser(address) as (tab, _):
        await tab.get_by_text("Largest free gang").wait_for()
        canvas = tab.locator("canvas[data-scale]")
        await canvas.wait_for()
        await tab.get_by_label("Zoom in").click()
        await tab.get_by_label("Zoom in").click()
        await tab.wait_for_function("() => document.querySelector('canvas[data-scale]').dataset.scale > 0")
        zoomed = await canvas.get_attribute("data-scale")
        await client.create("/api/v1/namespaces/team-a/pods", pod("team-a", "more", "n1"))
        await tab.get_by_text("16 50.0 %").wait_for()
        await tab.evaluate("new Promise(requestAnimationFrame)")
        assert await canvas.get_attribute("data-scale") == zoomed


async def test_the_token_does_not_stay_in_the_address(tmp_path):
    async with page(tmp_path) as (address, _, _), browser(address) as (tab, _):
        await tab.wait_for_selector("h1")
        assert SECRET not in tab.url


async def test_who_has_no_token_logs_in(tmp_path):
    async with page(tmp_path) as (address, _, _), browser(address, token="wrong") as (tab, _):
        await tab.get_by_role("heading", name="Log in").wait_for()
        await tab.locator("#token").fill("another wrong one")
        await tab.get_by_role("button", name="Log in").click()
        await tab.get_by_role("alert").wait_for()
        await tab.locator("#token").fill(SECRET)
        await tab.get_by_role("button", name="Log in").click()
        await tab.get_by_role("heading", name="Fabric").wait_for()


async def test_the_keyboard_reaches_everything(tmp_path):
    async with page(tmp_path) as (address, _, _), browser(address) as (tab, console):
        await tab.get_by_text("Largest free gang").wait_for()
        for key, view in (("q", "Queues"), ("j", "Jobs"), ("d", "Decisions"), ("n", "Nodes"), ("f", "Fabric")):
            await tab.keyboard.press("g")
            await tab.keyboard.press(key)
            await tab.get_by_role("heading", name=view, exact=True).wait_for()
        picture = tab.get_by_role("application")
        await picture.focus()
        await tab.keyboard.press("ArrowDown")
        await tab.get_by_text("n0, spine/leaf-0: 8 GPUs: 8 of Pod/team-a/bert").wait_for()
        await tab.keyboard.press("Enter")
        await tab.wait_for_url("**job=Pod*")
        await tab.keyboard.press("Escape")
        await tab.wait_for_url(lambda url: "job=" not in url)
        await tab.keyboard.press("t")
        await tab.get_by_role("treegrid").wait_for()
        await tab.keyboard.press("?")
        await tab.get_by_role("dialog").wait_for()
        await tab.keyboard.press("Escape")
        assert await tab.get_by_role("dialog").count() == 0
        assert console == []


async def test_a_planned_gang_is_shown_with_its_nodes(tmp_path):
    async with page(tmp_path) as (address, _, _), browser(address) as (tab, console):
        await tab.locator("#pods").fill("2")
        await tab.get_by_role("button", name="Plan").click()
        await tab.get_by_text("It lands on the rows in ink colour.").wait_for()
        assert console == []


async def test_names_are_text_whatever_they_contain(tmp_path):
    """Names of objects cannot have such letters, but labels, messages and reasons of Events can."""
    long = "a" * 63

    async def filled(client):
        await fill(client)
        await client.create("/api/v1/namespaces/team-a/pods", pod("team-a", long, "n1"))
        event = {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "hostile", "namespace": "team-a"},
            "involvedObject": {"kind": "Pod", "namespace": "team-a", "name": "bert"}, "type": "Warning",
            "reason": "Hostile", "message": f"{HOSTILE} \u202egnihtyna", "reportingComponent": "turnout-autoscaler",
            "source": {"component": "turnout-autoscaler"}, "lastTimestamp": "2026-01-01T00:00:00Z", "count": 1,
        }  # fmt: skip
        await client.create("/api/v1/namespaces/team-a/events", event)

    async with page(tmp_path, filled=filled) as (address, _, _), browser(address, width=390) as (tab, console):
        await show(tab, "#/decisions")
        await tab.get_by_text(HOSTILE).first.wait_for()
        await show(tab, f"#/jobs?text={long}")
        await tab.locator(f'a[title="Pod/team-a/{long}"]').wait_for()
        assert await tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert console == []


async def test_of_hidden_jobs_a_viewer_sees_grey_cells_and_no_names(tmp_path):
    grants = {("eve", "pods", "team-b"), ("eve", "nodes", "")}
    access = ClusterAccess(Reviews({SECRET: "eve"}, grants), ManualClock())
    async with page(tmp_path, access) as (address, _, _), browser(address) as (tab, console):
        await tab.get_by_text("not yours to see").wait_for()
        assert "bert" not in await tab.content()
        assert console == []


async def test_the_page_says_that_rights_are_not_known_yet(tmp_path):
    reviews = SlowReviews({SECRET: "eve"}, {("eve", "pods", "team-b"), ("eve", "nodes", "")})
    reviews.open.clear()
    access = ClusterAccess(reviews, RealClock())
    async with page(tmp_path, access) as (address, _, _), browser(address) as (tab, console):
        await tab.get_by_text("not known yet in 2 namespaces").wait_for()
        await show(tab, "#/jobs")
        reviews.open.set()
        await tab.get_by_text("ocr").first.wait_for()
        await tab.get_by_text("not known yet").wait_for(state="detached")
        assert console == []


async def test_an_expired_token_keeps_what_is_shown_and_asks_for_a_new_one(tmp_path):
    reviews, clock = Reviews({SECRET: "ann"}, {("ann", "pods", ""), ("ann", "nodes", "")}), ManualClock()
    async with page(tmp_path, ClusterAccess(reviews, clock)) as (address, _, _), browser(address) as (tab, _):
        await show(tab, "#/jobs")
        await tab.get_by_text("ocr").first.wait_for()
        reviews.tokens.clear()
        clock.now_s += 61
        await tab.reload()
        await tab.get_by_role("heading", name="Log in").wait_for()
        assert "ocr" not in await tab.locator("main").inner_text()


async def test_an_api_server_that_is_gone_leaves_the_data_with_its_age(tmp_path):
    async with page(tmp_path) as (address, _, source), browser(address) as (tab, _):
        await show(tab, "#/jobs")
        await tab.get_by_text("ocr").first.wait_for()
        source.watches.interrupted_s = lambda: 90.0
        source.watches.last_error = lambda: "connection refused"
        banner = tab.get_by_role("status")
        await banner.wait_for()
        text = await banner.inner_text()
        assert "The API server does not answer (connection refused)" in text
        assert "1 min ago" in text
        assert await tab.get_by_text("ocr").first.is_visible()


@pytest.fixture
def axe():
    """The text of axe-core."""
    return resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_axe_finds_nothing_serious(tmp_path, axe, theme):
    async with page(tmp_path) as (address, _, _), browser(address, theme=theme) as (tab, _):
        for view in (*VIEWS, "job?id=Pod%2Fteam-b%2Focr", "fabric?show=table"):
            await show(tab, f"#/{view}")
            await tab.evaluate(axe)
            found = await tab.evaluate(
                "axe.run().then(found => found.violations.map(each => [each.impact, each.id, each.nodes[0].html]))"
            )
            assert [each for each in found if each[0] in ("serious", "critical")] == [], view


GRAFANA, DOCS = "https://grafana.example.com/sub/", "https://docs.example.com/turnout"
TIME = {
    "observed_at_s": 1.0, "version": 1, "job": "Pod/team-a/bert", "missing": "", "until_at_s": 1_800_000_000.0,
    "wall_s": 7_200.0, "productive": 0.931,
    "kinds": [
        {"kind": kind, "seconds": 7_200 * share, "share": share, "gpu_hours": round(16 * share, 2)}
        for kind, share in (("productive", 0.931), ("startup", 0.02), ("wasted", 0.035), ("recovery", 0.014))
    ],
    "rounds": [
        {"at_s": 1_799_999_000.0, "round": 2, "reason": "member_lost"},
        {"at_s": 1_799_996_000.0, "round": 1, "reason": "process_failed"},
    ],
    "saves": [
        {"at_s": 1_799_999_800.0, "step": 4_500, "tier": "storage", "outcome": "failed", "rank": 3, "took_s": None},
        {"at_s": 1_799_999_400.0, "step": 4_000, "tier": "storage", "outcome": "done", "rank": None, "took_s": 21.4},
    ],
}  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_a_job_shows_its_goodput_and_links_to_its_board(tmp_path, theme):
    settings = {"grafana_url": GRAFANA, "docs_url": DOCS}
    async with page(tmp_path, **settings) as (address, _, _), browser(address, theme=theme) as (tab, console):
        await tab.route("**/goodput", lambda route: route.fulfill(json=TIME))
        await show(tab, "#/job?id=Pod%2Fteam-a%2Fbert")
        await tab.get_by_text("Goodput 93.1 % of 2 h 0 min.").wait_for()
        await tab.get_by_text("process_failed").wait_for()
        await tab.get_by_text("failed on rank 3").wait_for()
        await tab.get_by_role("cell", name="4000").wait_for()
        boards = tab.get_by_role("link", name="Grafana: this job")
        address_of_board = "https://grafana.example.com/sub/d/turnout-job?"
        variables = "var-queue=namespace%2Fteam-a&var-namespace=team-a&var-kind=Pod&var-job=bert"
        assert await boards.first.get_attribute("href") == address_of_board + variables
        assert await boards.first.get_attribute("rel") == "noreferrer"
        reason = tab.locator(f'a[href^="{DOCS}/reference/reasons.html#"]')
        assert await reason.count() > 0
        await tab.screenshot(path=SCREENS / f"goodput-{theme}-1440.png", full_page=True)
        assert await tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert console == []


@pytest.mark.parametrize(("theme", "width"), [("light", 1_440), ("dark", 1_440), ("light", 390)])
async def test_gpu_hours_of_a_queue_and_of_a_job(tmp_path, axe, theme, width):
    log = tmp_path / "decisions"
    log.write_bytes(days_of_log(RealClock().wall()))
    async with (
        page(tmp_path, decision_log=log) as (address, _, _),
        browser(address, theme=theme, width=width) as (tab, console),
    ):
        await show(tab, "#/queues")
        queue = tab.get_by_role("region", name="GPU-hours of this queue")
        await queue.get_by_role("button", name="by user").click()
        await queue.get_by_role("rowheader", name="ann").wait_for()
        await queue.get_by_role("button", name="today").click()
        await queue.get_by_role("cell", name="2.00").wait_for()
        every = tab.get_by_role("region", name="GPU-hours of all queues")
        await every.get_by_role("link", name="namespace/team-b").wait_for()
        await tab.screenshot(path=SCREENS / f"hours-queue-{theme}-{width}.png", full_page=True)
        await show(tab, "#/job?id=Pod%2Fteam-a%2Fbert")
        job = tab.get_by_role("region", name="GPU-hours of this job")
        await job.get_by_role("cell", name="6.00").wait_for()
        await tab.screenshot(path=SCREENS / f"hours-job-{theme}-{width}.png", full_page=True)
        assert await tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        await tab.evaluate(axe)
        found = await tab.evaluate("axe.run().then(found => found.violations.map(each => [each.impact, each.id]))")
        assert [each for each in found if each[0] in ("serious", "critical")] == []
        assert console == []


def half_an_hour(form):
    """Half an hour of a queue with a gap in it, and of a job that grew."""
    end_s = float(form["end"])
    times = [end_s - 10 * at for at in range(180, 0, -1) if not 60 < at < 90]
    if "queue_gpus" in form["query"]:
        return matrix(({"type": "used"}, [(at, 6 + at // 300 % 4) for at in times]),
                      ({"type": "deserved"}, [(at, 12) for at in times]))  # fmt: skip
    if "worker_gpus" in form["query"]:
        return matrix(({"part": "elastic"}, [(at, 2) for at in times]))
    return matrix(({}, [(at, 1 + (at > end_s - 600)) for at in times])) if "job_gpus" in form["query"] else matrix()


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_the_time_before_the_page_started_is_from_prometheus(tmp_path, theme):
    async with (
        Server(half_an_hour).running() as url,
        page(tmp_path, prometheus_url=url) as (address, _, _),
        browser(address, theme=theme) as (tab, console),
    ):
        await show(tab, "#/queues")
        await tab.get_by_text("from Prometheus, since").wait_for()
        await tab.locator(".chart canvas").first.wait_for()
        await tab.screenshot(path=SCREENS / f"past-queue-{theme}-1440.png", full_page=True)
        await show(tab, "#/job?id=Pod%2Fteam-a%2Fbert")
        await tab.get_by_text("from Prometheus.").wait_for()
        await tab.screenshot(path=SCREENS / f"past-job-{theme}-1440.png", full_page=True)
        assert console == []


async def test_a_prometheus_that_is_gone_leaves_what_the_page_has_observed(tmp_path):
    async with (
        page(tmp_path, prometheus_url="http://127.0.0.1:1") as (address, _, _),
        browser(address) as (tab, console),
    ):
        await show(tab, "#/queues")
        await tab.get_by_text("Prometheus cannot be reached.").wait_for()
        await show(tab, "#/job?id=Pod%2Fteam-a%2Fbert")
        await tab.get_by_text("Prometheus cannot be reached.").wait_for()
        await tab.get_by_text("Its size has not changed").wait_for()
        assert console == []


async def test_every_view_links_to_its_boards(tmp_path):
    found = {}
    async with page(tmp_path, grafana_url=GRAFANA) as (address, _, _), browser(address) as (tab, _):
        for view in VIEWS:
            await show(tab, f"#/{view}")
            links = tab.locator('main a[href^="https://grafana.example.com/sub/d/"]')
            await links.first.wait_for() if view != "jobs" else None
            addresses = [await each.get_attribute("href") for each in await links.all()]
            found[view] = [each.partition("/d/")[2] for each in addresses]
            await tab.screenshot(path=SCREENS / f"links-{view}-light-1440.png", full_page=True)
    assert found == {
        "fabric": ["turnout-overview", "turnout-placement"],
        "queues": ["turnout-queue?var-queue=namespace%2Fteam-a"],
        "jobs": [],
        "decisions": ["turnout-controllers", "turnout-extender"],
        "nodes": ["turnout-launcher"],
    }


async def test_without_grafana_and_docs_nothing_links_out(tmp_path):
    async with page(tmp_path) as (address, _, _), browser(address) as (tab, console):
        for view in ("fabric", "queues", "decisions", "nodes", "job?id=Pod%2Fteam-a%2Fbert"):
            await show(tab, f"#/{view}")
            assert await tab.locator('a[target="_blank"]').count() == 0
        await tab.get_by_text("may not read the logs").wait_for()
        assert console == []
