"""`turnout why`: the chain as text, which job is meant, and the command itself on a yard."""

import asyncio
import json
import sys
from dataclasses import replace

import pytest
import pytest_asyncio
from aiohttp import web

from autoscaler.decide import decide
from autoscaler.model import Reason
from autoscaler.telling.chain import chain
from autoscaler.telling.forecast import Estimate, forecast
from autoscaler.telling.lives import Lives
from autoscaler.telling.reasons import MEANINGS
from console.why import NoSuchJob, lasting, meant, rows, start, title
from jobs.model import JobKey, Life, Pause
from tests.autoscaler.test_on_a_yard import JOBS, cluster  # noqa: F401
from tests.autoscaler.world import GPU, NOW_S, POLICY, job, seen, world

SOON = {"created": "1970-01-12T13:43:40Z"}  # three minutes before now


def told(name, at, policy=POLICY):
    """Title and text by what it is about."""
    steps = decide(at, policy, NOW_S)
    key = JobKey("Job", "ns", name)
    found = chain(key, at, steps, policy, NOW_S, [], GPU, forecast(at, steps, Lives(), NOW_S).get(key))
    return title(found), dict(rows(found))


A = seen(job("a", most=8, **SOON), [0])
LENT = seen(job("a", least=1, most=4, replicas=4, **SOON), [0] * 4)
STUCK = seen(job("a", replicas=3, **SOON), [0, None, None])
LATE = replace(STUCK, workers=tuple(replace(each, since_s=NOW_S - 60) for each in STUCK.workers))
FLAT = ((1, 1.0), (8, 1.01))
POOR = {"resized_s": NOW_S - 700, "gained_s": -5000.0}
# A world for each reason, in which it is the reason for job a.
WORLDS = {
    Reason.IDLE_ROOM: world([4], A),
    Reason.MAKES_ROOM: world([4], LENT, seen(job("bb", least=2, most=2))),
    Reason.ROOM_TAKEN: world([1], LATE),
    Reason.AT_MAX: world([8], LENT),
    Reason.COOLDOWN: world([8], seen(job("a", resized_s=NOW_S - 5), [0])),
    Reason.NO_FREE_ROOM: world([1], A),
    Reason.OTHERS_WAIT: world([4], A, seen(job("bb", least=3, most=3))),
    Reason.MARGINAL_GAIN: world([8], seen(job("a", curve=FLAT), [0])),
    Reason.BUDGET_SPENT: world([8], seen(job("a", **POOR), [0])),
    Reason.NOT_READY: world([8], seen(job("a", replicas=2), [0])),
    Reason.PAUSED: world([8], seen(job("a", pause=Pause.GROW), [0])),
    Reason.RIGID: world([8], seen(job("a", most=1), [0])),
    Reason.REFUSED: world([8], seen(job("a", refused="its own HPA resizes it"), [0])),
    Reason.QUEUE_CLOSED: world([8], seen(job("a")), queues={"q": {"open": False}}),
    Reason.SUSPENDED: world([8], seen(job("a", life=Life.SUSPENDED))),
    Reason.SCHEDULERS_TURN: world([8], seen(job("a"))),
    Reason.WAITS_FOR_ROOM: world(
        [4], replace(LENT, job=replace(LENT.job, key=JobKey("Job", "ns", "b"))), seen(job("a"))
    ),
    Reason.NEEDS_MORE: world([1], seen(job("a", least=2))),
    Reason.OVER_QUOTA: world([8], seen(job("a", least=2)), queues={"q": {"limit": 1}}),
    Reason.STALE: world([8], A, whole=False),
    Reason.NODES_UNREADY: world([8], A, unready=0.5),
}


@pytest.mark.parametrize("reason", WORLDS, ids=lambda reason: reason.value)
def test_every_reason_is_told_with_its_sentence_and_what_its_owner_can_do(reason):
    head, text = told("a", WORLDS[reason])
    assert head.endswith(f": {reason.value}")
    assert MEANINGS[reason].means in text["decision"]
    assert text["next"] == MEANINGS[reason].next
    assert text.keys() >= {"queue", "held by", "quota", "room", "gang"}
    assert ("start" in text) is (" has waited" in head)


def test_the_reasons_that_no_world_here_shows_are_an_admins():
    assert set(Reason) - WORLDS.keys() == {Reason.HEADROOM_KEPT, Reason.ALL_PAUSED, Reason.RELEASED}
    kept = replace(POLICY, headroom={GPU: 2})
    _, text = told("a", world([2], A), kept)
    assert "2 kept free" in text["queue"]
    assert MEANINGS[Reason.HEADROOM_KEPT].means in text["decision"]


def test_a_waiting_job_reads_from_its_queue_to_its_start():
    lent = seen(job("a", least=6, most=8, replicas=8, **SOON), [0] * 8)
    at = world([8], lent, seen(job("b", least=3, most=3, **SOON)), queues={"q": {"limit": 8, "deserved": 5}})
    head, text = told("b", at)
    assert head == "Job/ns/b has waited for 3 min: NeedsMore"
    assert text["queue"] == "q: 8 of 8 GPUs used, 0 free, 5 its own, so 3 borrowed"
    assert text["held by"] == "Job/ns/a (6 + 2 elastic)"
    assert text["quota"] == f"its min lacks 3 {GPU}, 0 free: 3 short"
    assert text["gang"] == "it needs 3 workers, 0 with a node: 3 lacking"
    assert text["start"].startswith("likely in ")
    assert "a guess" in text["start"]


def test_a_running_job_reads_what_it_has_and_what_comes_next():
    head, text = told("a", world([8], seen(job("a", least=1, most=4, replicas=2, resized_s=NOW_S - 300), [0, 0])))
    assert head == "Job/ns/a has run for 5 s: Cooldown"
    assert text["size"] == "2 workers of 1 to 4, 1 of them elastic; the next size is 3"
    assert "5 min of its cooldown are left" in text["bank"]
    assert "start" not in text


def test_one_that_could_not_start_even_on_an_empty_cluster_is_told_so():
    _, text = told("b", world([8], LENT, seen(job("b", least=20, most=20))))
    assert "not more than 8 would fit if every job were gone" in text["gang"]
    assert text["start"].startswith("not known")


@pytest.mark.parametrize(
    ("times", "text"),
    [
        ((0, 300, 4000), "likely in 5 min (1970-01-12T13:51:40Z), at once at the earliest, 67 min at the latest: so"),
        ((60, 90, float("inf")), "likely in 90 s (1970-01-12T13:48:10Z), 60 s at the earliest, with no bound: so"),
        ((60, float("inf"), float("inf")), "not known, not before 60 s: so"),
        ((float("inf"),) * 3, "so"),
    ],
)
def test_a_start_is_told_with_how_sure_it_is(times, text):
    assert start(Estimate(*(NOW_S + each for each in times), "so"), NOW_S) == text


@pytest.mark.parametrize(
    ("s", "text"), [(-3, "0 s"), (119, "119 s"), (600, "10 min"), (9000, "2.5 h"), (200_000, "2.3 days")]
)
def test_times_are_told_as_people_say_them(s, text):
    assert lasting(s) == text


KEYS = [
    JobKey("Job", "x", "a"),
    JobKey("PyTorchJob", "x", "a"),
    JobKey("PyTorchJob", "x", "bert"),
    JobKey("VolcanoJob", "y", "bert"),
]


@pytest.mark.parametrize(
    ("wanted", "namespace", "found"),
    [
        ("PyTorchJob/x/a", "z", KEYS[1]),
        ("pytorchjobs/x/bert", "z", KEYS[2]),
        ("vcjob/bert", "y", KEYS[3]),
        ("bert", "x", KEYS[2]),
        ("bert", "y", KEYS[3]),
    ],
)
def test_a_job_is_meant_by_as_much_of_its_name_as_is_needed(wanted, namespace, found):
    assert meant(wanted, namespace, KEYS) == found


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ("a", "'a' may be Job/x/a or PyTorchJob/x/a: say which"),
        ("berth", "there is no job 'berth' in namespace x; did you mean PyTorchJob/x/bert, VolcanoJob/y/bert?"),
        ("VolcanoJob/bert", "there is no VolcanoJob 'bert' in namespace x; did you mean"),
        ("zzz", "there is no job 'zzz' in namespace x; there are 4 jobs in all"),
        ("cronjob/a", "'cronjob' is no kind of job here; those are"),
        ("a/b/c/d", "is no name of a job"),
        ("Job//a", "is no name of a job"),
    ],
)
def test_a_name_that_means_none_or_several_says_which_there_are(wanted, says):
    with pytest.raises(NoSuchJob) as error:
        meant(wanted, "x", KEYS)
    assert says in str(error.value)


async def turnout(*args):
    """The command as a process: exit code, what it printed, what it complained of."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "console", *args), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            out, complaint = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return child.returncode, out.decode(), complaint.decode()


@pytest.mark.asyncio
async def test_on_a_yard_it_tells_why_a_job_waits_and_what_another_has(cluster):  # noqa: F811
    config = ("--kubeconfig", str(cluster.kubeconfig))
    await cluster.lender("--act")
    await cluster.submit("lends", 2, 8)
    await cluster.until(lends=8)
    await cluster.submit("needs", 7)
    await cluster.says('"NeedsMore"')

    code, out, _ = await turnout("why", "needs", *config)
    assert code == 0
    head, *lines = out.splitlines()
    assert head.startswith("VolcanoJob/default/needs has waited for ")
    assert head.endswith(": NeedsMore")
    text = {line[:10].strip(): line[10:] for line in lines}
    assert text["held by"] == "VolcanoJob/default/lends (2 + 6 elastic)"
    assert text["room"] == f"2 of 2 nodes let a worker in (1 {GPU}); no whole worker fits now"
    assert text["gang"] == "it needs 7 workers, 0 with a node: 7 lacking"
    assert text["start"].startswith("likely in ")
    assert "\x1b" not in out

    code, out, _ = await turnout("why", "volcanojob/default/lends", "--json", *config)
    assert code == 0
    now = json.loads(out)
    assert (now["state"], now["reason"], now["size"]["elastic"], now["start"]) == ("runs", "AtMax", 6, None)

    says = "there is no job 'need' in namespace default; did you mean VolcanoJob/default/needs?"
    assert await turnout("why", "need", *config) == (1, "", f"turnout why: {says}\n")


@pytest.mark.asyncio
async def test_the_log_of_a_lender_at_work_is_decided_again_to_the_last_word(cluster, tmp_path):  # noqa: F811
    log = tmp_path / "decisions"
    lender = await cluster.lender("--act", "--decision-log", str(log))
    await cluster.submit("lends", 2, 8)
    await cluster.until(lends=8)
    await cluster.submit("gets", 3)
    await cluster.until(lends=5, gets=3)
    lender.terminate()
    await lender.wait()
    code, out, complaint = await turnout("replay-decisions", str(log))
    assert (code, complaint) == (0, "")
    assert out.endswith("looks, all identical\n")
    assert int(out.split()[0]) >= 3
    log.write_bytes(log.read_bytes().replace(b'"WaitsForRoom"', b'"SchedulersTurn"'))
    code, _, complaint = await turnout("replay-decisions", str(log))
    assert code == 1
    assert "VolcanoJob/default/gets: the log has SchedulersTurn, 3 workers, now it is WaitsForRoom" in complaint


def kubeconfig(folder, server):
    """A file that leads to an API server."""
    told = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    (folder / "config").write_text(json.dumps(told))
    return folder / "config"


@pytest_asyncio.fixture
async def server(tmp_path):
    """An API server of empty lists. forbidden: paths that may not be listed."""
    forbidden = set()

    async def answer(request):
        if request.path in forbidden:
            return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden"}, status=403)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield str(kubeconfig(tmp_path, f"http://127.0.0.1:{runner.addresses[0][1]}")), forbidden
    await runner.cleanup()


@pytest.mark.asyncio
async def test_every_right_that_is_missing_is_named_as_kubectl_takes_it(server):
    config, forbidden = server
    forbidden |= {"/api/v1/nodes", JOBS.replace("/namespaces/default", "")}
    code, out, complaint = await turnout("why", "a", "--kubeconfig", config)
    assert (code, out) == (1, "")
    assert "you may not list nodes, jobs.batch.volcano.sh in the whole cluster" in complaint
    assert complaint.count("\n") == 1


@pytest.mark.asyncio
async def test_without_the_right_to_the_lenders_own_configmaps_it_goes_on(server):
    config, forbidden = server
    forbidden |= {"/api/v1/namespaces/turnout-system/configmaps"}
    code, _, complaint = await turnout("why", "a", "--kubeconfig", config)
    assert (code, complaint) == (
        1,
        "turnout why: there is no job 'a' in namespace default; there are 0 jobs in all\n",
    )


@pytest.mark.asyncio
async def test_what_it_cannot_do_is_said_in_a_line(tmp_path):
    missing = tmp_path / "none"
    code, _, complaint = await turnout("why", "a", "--kubeconfig", str(missing))
    assert code == 1
    assert str(missing) in complaint
    config = kubeconfig(tmp_path, "http://127.0.0.1:9")
    code, _, complaint = await turnout("why", "a", "--kubeconfig", str(config))
    assert code == 1
    assert "the API server cannot be reached" in complaint
    assert "127.0.0.1:9" in complaint
    assert complaint.count("\n") == 1
    code, _, complaint = await turnout("why", "a", "--cooldown-s", "-1")
    assert (code, complaint) == (2, "turnout why: --cooldown-s is -1.0: it must not be negative\n")
    assert (await turnout("why"))[0] == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("text", [None, "", "not a log\n"])
async def test_a_log_of_which_nothing_can_be_read_is_no_success(tmp_path, text):
    file = tmp_path / "log"
    if text is not None:
        file.write_text(text)
    code, out, complaint = await turnout("replay-decisions", str(file))
    assert (code, out) == (1, "")
    assert str(file) in complaint
