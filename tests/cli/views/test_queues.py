"""`turnout queues`: what each queue has, uses, lends and borrows, as the autoscaler sees it or has written it down."""

import json

import pytest

from tests.autoscaler.world import GPU, POLICY, job, shape, state_of, world
from turnout.autoscaler.decide import decide
from turnout.autoscaler.reporting.queue_status import queue_configmaps
from turnout.autoscaler.reporting.why import UnmanagedGang
from turnout.cli.views.listing import text
from turnout.cli.views.queues import listing, rows, status_rows
from turnout.jobs.model import JobKey

GPUS = (GPU,)
LENDS = state_of(
    job("lends", minimum=2, maximum=6, replicas=5, gpus=2), [0, 0, 1, 1, 1]
)  # 4 GPUs of its min, 6 elastic
WAITS = state_of(job("waits", minimum=4, maximum=4), [None] * 4)
BERT = JobKey("PodGroup", "ns", "bert")
BARE = UnmanagedGang(BERT, "r", 2, ((0, shape(2)), (1, shape(1))))


def table_of(at, gangs=()):
    return {row.queue: row for row in rows(at, {each.key: each for each in gangs}, GPUS)}


def test_a_queue_tells_its_share_and_who_borrows_it():
    at = world([8, 8], LENDS, WAITS, queues={"q": {"limit": 12, "deserved": 6}, "idle": {"deserved": 4}})
    row = table_of(at)["q"]
    assert (row.share_gpus, row.limit_gpus, row.used_gpus, row.free_gpus) == (6, 12, 10, 2)
    assert (row.lent_gpus, row.borrowed_gpus) == (6, 4)
    assert (row.running, row.waiting, row.wanted_gpus) == (1, 1, 4)
    assert (table_of(at)["idle"].used_gpus, table_of(at)["idle"].running) == (0, 0)


def test_a_queue_that_nobody_describes_tells_what_its_jobs_hold():
    row = table_of(world([8, 8], LENDS, queues={}))["q"]
    assert (row.share_gpus, row.limit_gpus, row.free_gpus) == (None, None, None)
    assert (row.used_gpus, row.lent_gpus, row.borrowed_gpus) == (10, 6, 0)


def test_gangs_that_are_nobodys_job_count_in_their_queue():
    row = table_of(world([8, 8], LENDS), [BARE])["r"]
    assert (row.used_gpus, row.running, row.waiting, row.namespaces) == (3, 1, 0, ("ns",))


def test_what_the_autoscaler_wrote_down_tells_the_same():
    at = world([8, 8], LENDS, WAITS, queues={"q": {"limit": 12, "deserved": 6}})
    wrote = queue_configmaps(at, decide(at, POLICY, 1_000_000.0), GPUS, dry_run=False)
    (row,) = status_rows([{"data": page} for page in wrote.values()])
    ours = table_of(at)["q"]
    fields = (
        "queue",
        "open",
        "share_gpus",
        "limit_gpus",
        "used_gpus",
        "lent_gpus",
        "borrowed_gpus",
        "free_gpus",
        "waiting",
    )
    for field in fields:
        assert getattr(row, field) == getattr(ours, field), field
    assert (row.wanted_gpus, ours.wanted_gpus) == (None, 4)  # the pages do not have it: it is not known to be 0


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(None, id="no data"),
        pytest.param({"queue": "q"}, id="no status"),
        pytest.param({"queue": "q", "status": "{"}, id="a status that is no JSON"),
        pytest.param({"queue": "q", "status": json.dumps([])}, id="a status that is a list"),
        pytest.param({"queue": "q", "status": json.dumps({"jobs": 1})}, id="jobs that are a number"),
    ],
)
def test_a_page_that_cannot_be_read_is_left_out(data):
    assert status_rows([{"data": data}]) == []


def test_the_table_has_a_line_a_queue_and_says_where_nothing_is_known():
    at = world([8, 8], LENDS, queues={"q": {"deserved": 6, "open": False}})
    head, line = text(listing(rows(at, {}, GPUS)), "table").split("\n")
    assert head.split() == ["QUEUE", "SHARE", "LIMIT", "USED", "LENT", "BORROWED", "FREE", "RUNNING", "WAITING"]
    assert line.split() == ["q", "(closed)", "6", "-", "10", "6", "4", "-", "1", "0"]
    assert text(listing([]), "table") == "no queue is described, and no job asks for GPUs"
