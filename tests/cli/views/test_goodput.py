"""`turnout goodput`: the totals in the logs of a job's workers, as a table."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from hack.lint.code_blocks import run_by
from tests.cli.verbs.why_world import Drawn, Served
from turnout.autoscaler.settings import Settings
from turnout.cli.job_names import JOB_KINDS, JobName
from turnout.cli.verb_support import autoscaler_view
from turnout.cli.verb_support.find_jobs import FoundJob
from turnout.cli.verb_support.job_goodput import goodput_of, goodput_of_jobs, jobs_of_queue
from turnout.cli.verb_support.run_verb import NoSuch
from turnout.cli.views.goodput import Totals, listing, period, read_totals, rows, sum_listing
from turnout.cli.views.listing import text
from turnout.controllers.kinds.registry import KINDS
from turnout.kube.client.logs import JsonFormatter, PlainFormatter
from turnout.kube.errors import NotFound, Rejected
from turnout.launcher.goodput.job_time import NS, JobTime, TimeKind
from turnout.launcher.goodput.job_time import Totals as Amounts


def record(until_s, **kinds_s):
    """The totals of a job with eight GPUs."""
    amounts = Amounts()
    for kind, seconds in kinds_s.items():
        amounts = amounts.add(TimeKind(kind), round(seconds * NS), 8)
    return JobTime("w0/1", 0, round(until_s * NS), amounts.time_ns, amounts.gpu_us, 5 * NS, 8, steps_reported=True)


def line(totals, formatter=JsonFormatter, event="goodput"):
    fields = {"reason": "all_done", "round": 3, **totals.log_fields()}
    record = logging.makeLogRecord({"msg": event, "levelname": "INFO", "levelno": 20, **fields})
    return formatter().format(record)


@pytest.mark.parametrize("formatter", [JsonFormatter, PlainFormatter])
def test_a_line_of_either_format_is_read(formatter):
    (found,) = read_totals([line(record(100, productive=60, wasted=2.5), formatter)])
    assert (found.until_s, found.wall_s, found.undecided_s, found.steps_reported) == (100, 67.5, 5, True)
    assert {kind: amount for kind, amount in found.kinds_s.items() if amount} == {"productive": 60, "wasted": 2.5}
    assert found.gpu_s["productive"] == 480


@pytest.mark.parametrize("words", [
    pytest.param("loss 0.3 goodput is high", id="a line of the script"),
    pytest.param(line(record(100), event="goodput")[:-9], id="a line that was cut"),
    pytest.param('{"event": "goodput", "until_s": "soon", "wall_s": 1, "undecided_s": 0}', id="a word for a number"),
    pytest.param('{"event": "goodput", "until_s": 1e999, "wall_s": 1, "undecided_s": 0}', id="an infinite number"),
    pytest.param('{"event": "goodput", "until_s": -1, "wall_s": 1, "undecided_s": 0}', id="a negative time"),
    pytest.param('["event": "goodput"]', id="no object"),
    pytest.param("12:00:00 info goodput wall_s=3", id="a plain line without the end of its time"),
    pytest.param("", id="nothing"),
])  # fmt: skip
def test_other_lines_are_passed_over(words):
    assert read_totals([words]) == []


A, B, C = (
    Totals(until_s, until_s, 0, {"productive": until_s}, {"productive": 8 * until_s}) for until_s in (10, 400, 900)
)


@pytest.mark.parametrize(("since_s", "found"), [
    pytest.param(None, (C, None), id="the whole job"),
    pytest.param(500, (C, B), id="from the newest line before"),
    pytest.param(5, (C, None), id="the job is younger"),
    pytest.param(2_000, (C, C), id="the job ended before"),
])  # fmt: skip
def test_period(since_s, found):
    assert period([B, C, A], since_s) == found


def test_rows_of_a_period_are_differences():
    (row,) = rows(C, B)
    assert (row.kind, row.seconds, row.share, row.gpu_hours) == ("productive", 500, 1, round(4_000 / 3_600, 3))


def test_the_listing_of_the_page():
    kinds_s = {"productive": 6840, "save": 144, "wasted": 120, "recovery": 36, "reinit": 50}
    totals = Totals(7_200, 7_200, 10, kinds_s, {kind: 8 * seconds for kind, seconds in kinds_s.items()})
    (block,) = run_by("tests/cli/views/test_goodput.py::test_the_listing_of_the_page")
    assert text(listing("PyTorchJob/team-a/bert", totals, None), "table") in block.text


def test_a_job_without_steps_says_so():
    table = text(listing("bert", Totals(9, 9, 0, {"other": 9}, {}, steps_reported=False), None), "table")
    assert "no steps are reported" in table
    assert "goodput 0" not in table


class Server:
    """An API server of pods and their logs. logs: by pod; None where the container has not begun."""

    def __init__(self, logs):
        self.logs, self.queries = logs, []

    async def pages(self, path, params=None, *, limit=500):
        pods = [{"metadata": {"name": name}, "spec": {"containers": [{"name": "pytorch"}]}} for name in self.logs]
        yield json.dumps({"items": pods}).encode()

    async def get(self, path, params=None):
        self.queries.append(params)
        found = self.logs[path.split("/")[-2]]
        if found is None:
            raise Rejected("GET", path, 400, "the container is waiting to start")
        return found.encode()


JOB = FoundJob(KINDS["PyTorchJob"], {"apiVersion": "kubeflow.org/v1", "metadata": {"name": "bert", "namespace": "a"}})


def test_the_newest_totals_of_all_pods_count():
    """The coordinator has moved from one pod to another."""
    old, new = line(record(100, productive=60)), line(record(300, productive=200))
    server = Server({"bert-0": f"step 1\n{old}\n", "bert-1": f"{new}\nbye\n", "bert-2": None})
    found = asyncio.run(goodput_of(server, JOB, None, 400.0))
    assert {row.kind: row.seconds for row in found.rows} == {"productive": 200, "undecided": 5}
    found = asyncio.run(goodput_of(server, JOB, 250.0, 400.0))
    assert {row.kind: row.seconds for row in found.rows} == {"productive": 140}
    assert server.queries[-1]["sinceSeconds"] == "850"


def test_a_job_without_totals_is_an_error():
    with pytest.raises(NoSuch, match="have no totals"):
        asyncio.run(goodput_of(Server({"bert-0": "hello"}), JOB, None, 400.0))


HOUR = Totals(3_600, 3_600, 0, {"productive": 1_800, "save": 1_800}, {"productive": 14_400, "save": 14_400})
SMALL = Totals(7_200, 7_200, 0, {"productive": 7_200}, {"productive": 7_200})


def test_the_jobs_of_a_queue_count_by_their_gpu_time():
    """A job of eight GPUs that was productive for half an hour, and one of one GPU for two hours."""
    found = sum_listing("queue q", [(HOUR, None), (SMALL, None)], [], 0)
    assert {row.kind: (row.seconds, row.share, row.gpu_hours) for row in found.rows} == {
        "productive": (9_000, 0.6, 6),
        "save": (1_800, 0.4, 4),
    }
    assert found.notes == ["queue q: goodput 60.0% of 10.00 GPU hours of 2 jobs"]


@pytest.mark.parametrize(
    ("silent", "unread", "words"),
    [
        pytest.param(["a", "b"], 0, "without totals in their logs: a, b", id="jobs without totals"),
        pytest.param([*"abcdefg"], 0, "a, b, c, d, e and 2 more", id="many jobs without totals"),
        pytest.param([], 3, "3 jobs that hold fewer GPUs were not read", id="jobs beyond the bound"),
    ],
)
def test_what_the_sum_leaves_out_is_said(silent, unread, words):
    assert words in text(sum_listing("queue q", [(HOUR, None)], silent, unread), "table")


class Cluster(Server):
    """PyTorchJobs of one namespace, each with one pod. logs: by job."""

    async def get(self, path, params=None):
        if path.endswith("/log"):
            return await super().get(path, params)
        name = path.rpartition("/")[2]
        if "/pytorchjobs/" not in path or name not in self.logs:
            raise NotFound("GET", path, 404, "")
        return json.dumps({"metadata": {"name": name, "namespace": "a"}}).encode()

    async def pages(self, path, params=None, *, limit=500):
        pod = {
            "metadata": {"name": params["labelSelector"].rpartition("=")[2]},
            "spec": {"containers": [{"name": "c"}]},
        }
        yield json.dumps({"items": [pod]}).encode()


def test_a_job_that_has_gone_and_one_without_totals_do_not_stop_the_sum():
    server = Cluster({"bert": line(record(100, productive=60)), "gpt": "hello"})
    names = [JobName("PyTorchJob", "a", name) for name in ("bert", "gpt", "gone")]
    found = asyncio.run(goodput_of_jobs(server, "queue q", names, None, 200.0))
    assert {row.kind: row.seconds for row in found.rows} == {"productive": 60, "undecided": 5}
    assert found.notes[-1] == "without totals in their logs: PyTorchJob/a/gpt, PyTorchJob/a/gone"


def test_the_jobs_of_a_queue_are_those_that_the_autoscaler_sees_there():
    source = Served(Drawn(3).items)
    states = asyncio.run(autoscaler_view.look(source, Settings(), "default")).observation.jobs
    for queue in {state.job.queue for state in states}:
        found = asyncio.run(jobs_of_queue(source, Settings(), queue))
        expected_jobs = {
            str(state.job.key) for state in states if state.job.queue == queue and state.job.key.kind in JOB_KINDS
        }
        assert len(found) == len(expected_jobs) > 0
        assert {str(name) for name in found} == expected_jobs


def test_an_unknown_queue_is_an_error():
    with pytest.raises(NoSuch, match="there is no queue 'missing'"):
        asyncio.run(jobs_of_queue(Served(Drawn(3).items), Settings(), "missing"))
