"""The saves of a job, as the logs of its pods name them: those that are complete in storage and those that failed."""

from __future__ import annotations

import asyncio
import io
import logging

import msgspec
import pytest

from tests.cli.views.test_goodput import JOB, Server, line, record
from turnout.cli.verb_support.job_goodput import totals_and_saves_of
from turnout.cli.views.saves import LoggedSave, read_saves
from turnout.kube.client.logs import JsonFormatter, PlainFormatter
from turnout.launcher.checkpoint.daemon.save_reports import SaveReportReader
from turnout.launcher.checkpoint.format.daemon_messages import SaveEnded, encode
from turnout.launcher.event_log import log_to
from turnout.launcher.model import SaveOutcome, SaveTier

STORED = SaveEnded(500, 2, 0, SaveTier.STORAGE, SaveOutcome.DONE, True, 1_800_000_000.0, 1_800_000_012.5)
REFUSED = SaveEnded(600, 2, 3, SaveTier.STORAGE, SaveOutcome.FAILED, False, 1_800_000_100.0, 1_800_000_101.0)


def lines_of(formatter, *saves):
    """Return the lines that an agent logs of these ends of saves."""
    log, lines = logging.Logger("agent"), io.StringIO()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(formatter())
    log.addHandler(handler)
    reader = SaveReportReader(log_to(log, quiet=["save_ended"]))
    log.setLevel(logging.INFO)
    reader.data_received(b"".join(map(encode, saves)))
    return lines.getvalue().splitlines()


@pytest.mark.parametrize("formatter", [JsonFormatter, PlainFormatter])
def test_what_an_agent_logs_is_read(formatter):
    ordered = msgspec.structs.replace(STORED, step=700, announced_s=0.0)
    shard = msgspec.structs.replace(STORED, rank=1, complete=False)
    in_memory = msgspec.structs.replace(STORED, tier=SaveTier.MEMORY)
    assert read_saves(lines_of(formatter, shard, in_memory, STORED, REFUSED, ordered)) == [
        LoggedSave(1_800_000_012.5, 500, SaveTier.STORAGE, SaveOutcome.DONE, None, 12.5),
        LoggedSave(1_800_000_101.0, 600, SaveTier.STORAGE, SaveOutcome.FAILED, 3),
        LoggedSave(1_800_000_012.5, 700, SaveTier.STORAGE, SaveOutcome.DONE),
    ]


def test_ranks_that_fail_at_once_have_one_line():
    failures = [msgspec.structs.replace(REFUSED, rank=rank) for rank in range(8)]
    assert len(lines_of(PlainFormatter, *failures)) == 1


@pytest.mark.parametrize(
    "words",
    [
        pytest.param("step_saved", id="a word alone"),
        pytest.param("12:00:00 info step_saved step=5 tier=storage", id="no time"),
        pytest.param("12:00:00 info step_saved step=5 tier=tape ended_s=3", id="a tier that nobody knows"),
        pytest.param("12:00:00 info step_saved step=-5 tier=storage ended_s=3", id="a negative step"),
        pytest.param('{"event": "save_failed", "step": 5, "tier": ["storage"], "ended_s": 3}', id="a list for a tier"),
        pytest.param('{"event": "save_failed", "step": 5, "tier": "storage", "ended_s": 1e999}', id="an infinite time"),
        pytest.param("12:00:00 info step_saved step=1e300 tier=storage ended_s=3", id="a step beyond every number"),
        pytest.param("loss 0.3 save_failed soon", id="a line of the script"),
        pytest.param("", id="nothing"),
    ],
)
def test_other_lines_are_passed_over(words):
    assert read_saves([words]) == []


def test_the_saves_of_all_pods_are_read_with_the_totals():
    (stored,), (refused,) = (lines_of(JsonFormatter, each) for each in (STORED, REFUSED))
    server = Server({"bert-0": f"{stored}\n{line(record(100, productive=60))}\n", "bert-1": refused, "bert-2": None})
    totals, saves = asyncio.run(totals_and_saves_of(server, JOB))
    assert [each.until_s for each in totals] == [100]
    assert sorted(each.step for each in saves) == [500, 600]
