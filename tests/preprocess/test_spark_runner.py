"""The Spark runner without Spark and Java: its partition functions, and the driver on a context that runs in process.

What real Spark does with the same script is in test_on_spark.py.
"""

import os
import pickle
import re
import subprocess
import sys
import zipfile
from contextlib import contextmanager
from dataclasses import replace as replace_dataclass
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from tests.preprocess.corpus import lines, options, output, reference, run, texts
from turnout.preprocess import pyspark_preprocess
from turnout.preprocess.errors import BadDocument, BadOption, LostWorker
from turnout.preprocess.model import KeyTotals, Piece, ShardRecord, TextChunk
from turnout.preprocess.options import OnError
from turnout.preprocess.run import prepare_run, shards_folder
from turnout.preprocess.shards import make_shard
from turnout.preprocess.spark_runner import (
    Failure,
    ResultLists,
    SparkReport,
    first_failure,
    partitions,
    process_chunks,
    run_spark,
    with_absolute_paths,
)

TEXTS = texts(120, seed=3)
MISSING_KEY = b'{"other": "field"}\n'


@pytest.fixture
def folder(tmp_path):
    """A folder with a good input, in many chunks, and one with two broken lines far from each other."""
    good = lines(TEXTS).splitlines(keepends=True)
    (tmp_path / "good.jsonl").write_bytes(b"".join(good))
    (tmp_path / "bad.jsonl").write_bytes(b"".join([*good[:40], MISSING_KEY, *good[40:80], MISSING_KEY, *good[80:]]))
    return tmp_path


def sent(value):
    """A value as it comes out of the process to which Spark sends it."""
    return pickle.loads(pickle.dumps(value))  # noqa: S301  our own bytes


class Accumulator:
    """Adds as Spark's does, in this process."""

    def __init__(self, zero, parameter):
        self.value, self.parameter = zero, parameter

    def add(self, term):
        self.value = self.parameter.addInPlace(self.value, term)


class Broadcast:
    """A value, of which it is known whether it was released."""

    def __init__(self, value):
        self.value, self.is_destroyed = sent(value), False

    def destroy(self):
        self.is_destroyed = True


class Context:
    """A SparkContext with what the runner uses. Partitions run one after the other, in this process.

    lost: partitions that are run once more after their first attempt was lost in its middle.
    """

    master = "local[2]"

    def __init__(self, lost=()):
        self.lost, self.partitions, self.broadcasts, self.cancelled = lost, [], [], Event()
        self.results = []

    def accumulator(self, zero, parameter):
        return Accumulator(zero, parameter)

    def broadcast(self, value):
        self.broadcasts.append(Broadcast(value))
        return self.broadcasts[-1]

    def parallelize(self, items, count):
        items = sent(items)
        assert len(items) == count  # each partition is one item
        self.partitions = items
        return self

    def mapPartitions(self, task):  # noqa: N802  Spark's name
        return SimpleNamespace(
            collect=lambda: [each for n in range(len(self.partitions)) for each in self.run(n, task)]
        )

    def run(self, number, task):
        if number in self.lost:
            next(iter(task(iter([self.partitions[number]]))))
        results = sent(list(task(iter([self.partitions[number]]))))
        self.results += results
        return results

    def cancelAllJobs(self):  # noqa: N802  Spark's name
        self.cancelled.set()


@contextmanager
def opened(context, stopped):
    """A session of this context. stopped: takes its name when it has been stopped."""
    try:
        yield SimpleNamespace(sparkContext=context)
    finally:
        stopped.append(context)


def on_spark(of, context=None):
    context, stopped = context or Context(), []
    try:
        return run_spark(of, lambda: opened(context, stopped))
    finally:
        assert stopped == [context]
        assert all(each.is_destroyed for each in context.broadcasts)


@pytest.mark.contract("DL-79")
@pytest.mark.parametrize(
    ("count", "expected"),
    [
        pytest.param(1, 1, id="one partition"),
        pytest.param(3, 3, id="three partitions"),
        pytest.param(200, 12, id="never more partitions than chunks"),
    ],
)
def test_the_dataset_is_that_of_one_process_for_any_number_of_partitions(folder, count, expected):
    of, context = options(folder, "good.jsonl", partitions=count), Context()
    totals = on_spark(of, context)
    assert output(of) == reference(TEXTS)
    assert (totals.documents, totals.fault_counts) == (len(TEXTS), {})
    assert len(context.partitions) == expected
    assert len(context.broadcasts) == 1
    assert not os.path.exists(shards_folder(of.output_prefix))


def test_executors_read_and_write_object_storage_by_urls(folder):
    of = options(folder, f"file://{folder}/good.jsonl", output_prefix=f"file://{folder}/stored/out")
    on_spark(of)
    assert output(replace_dataclass(of, output_prefix=f"{folder}/stored/out")) == reference(TEXTS)


@pytest.mark.contract("DL-79")
def test_a_task_that_spark_runs_twice_changes_nothing(folder):
    of = options(folder, "good.jsonl", "good.jsonl", partitions=4)
    totals = on_spark(of, Context(lost=(0, 2)))
    assert output(of) == reference([*TEXTS, *TEXTS])
    assert totals.documents == 2 * len(TEXTS)


def test_only_the_chunks_that_are_missing_become_tasks(folder):
    of, context = options(folder, "good.jsonl"), Context()
    with prepare_run(of) as first:
        done = [make_shard(first.settings, chunk) for chunk in first.pending[:10]]
    on_spark(of, context)
    indices = sorted(chunk.index for partition in context.partitions for chunk in partition)
    assert indices == list(range(len(done), len(first.chunks)))
    assert output(of) == reference(TEXTS)


def test_faults_that_tasks_do_not_return_are_listed_as_by_one_process(folder):
    of, context = options(folder, "bad.jsonl", on_error=OnError.QUARANTINE), Context()
    totals = on_spark(of, context)
    single_process = replace_dataclass(of, output_prefix=str(folder / "alone"))
    assert totals == run(single_process)
    assert totals.fault_counts == {"missing_key": 2}
    for suffix in ("faults.jsonl", "quarantine.jsonl"):
        assert (folder / f"out.{suffix}").read_bytes() == (folder / f"alone.{suffix}").read_bytes()
    assert output(of) == output(single_process) == reference(TEXTS)
    assert sum(sum(each.fault_counts.values()) for each in context.results) == 2
    assert [each.faults for each in context.results if each.faults] == []


def refused():
    raise AssertionError("a session was started")


def test_a_dataset_that_is_complete_starts_no_session(folder):
    summary = run(options(folder, "good.jsonl"))
    assert run_spark(options(folder, "good.jsonl"), refused) == summary


def test_a_wrong_command_starts_no_session(folder):
    with pytest.raises(BadOption, match=r"none\.jsonl"):
        run_spark(options(folder, "none.jsonl"), refused)


def test_the_first_fault_of_the_input_ends_the_run_whoever_finds_it(folder):
    of = options(folder, "bad.jsonl", partitions=200)
    with pytest.raises(BadDocument, match=r"bad\.jsonl, line 41: missing_key"):
        on_spark(of)
    assert os.path.isdir(shards_folder(of.output_prefix))


def test_a_failure_cancels_the_tasks_that_still_run(folder):
    class Running(Context):
        """Its second partition runs until all jobs are cancelled."""

        def run(self, number, task):
            if number == 1:
                assert self.cancelled.wait(60)
                raise RuntimeError("Job 0 cancelled as part of cancellation of all jobs")
            return super().run(number, task)

    with pytest.raises(BadDocument, match="line 41"):
        on_spark(options(folder, "bad.jsonl", partitions=2), Running())


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param(
            "An error occurred while calling z:…\n: org.apache.spark.SparkException: Job aborted due to stage failure:"
            " Task 1 in stage 0.0 failed 4 times, most recent failure: Lost task 1.3 in stage 0.0 (TID 9):"
            " ExecutorLostFailure (executor 2 exited) Reason: exit code 137\n\nDriver stacktrace:\n\tat org.apache…",
            "Job aborted due to stage failure: Task 1 in stage 0.0 failed 4 times",
            id="an executor that ended",
        ),
        pytest.param(
            '…Task 1 in stage 0.0 failed\n  File "x.py", line 3\nOSError: [Errno 28] No space left on device\n\n\tat …',
            "OSError: [Errno 28] No space left on device",
            id="an error of Python in a task",
        ),
    ],
)
def test_a_task_that_spark_gives_up_is_reported_with_its_cause(folder, message, expected):
    class GivesUp(Context):
        def run(self, number, task):
            error = RuntimeError(message)
            error.java_exception = object()
            raise error

    expected = f"Spark gave up the task of {folder}/good.jsonl: {expected}"
    with pytest.raises(LostWorker, match=f"^{re.escape(expected)}"):
        on_spark(options(folder, "good.jsonl"), GivesUp())


def test_a_job_that_spark_ends_without_a_task_names_no_inputs(folder):
    class Stops(Context):
        def run(self, number, task):
            error = RuntimeError(
                "…\n: org.apache.spark.SparkException: Job 0 cancelled because SparkContext was shut down"
            )
            error.java_exception = object()
            raise error

    expected = "Spark ended the job: Job 0 cancelled because SparkContext was shut down"
    with pytest.raises(LostWorker, match=f"^{re.escape(expected)}"):
        on_spark(options(folder, "good.jsonl"), Stops())


def record(index, documents=1):
    keys = (KeyTotals(documents, 5, "0" * 32),)
    return ShardRecord(index, "", (), documents, documents, 10, (documents,), keys, {}, ())


def chunk(index):
    return TextChunk(index, (Piece(0, 10 * index, 10 * index + 10),))


def ends_with(error):
    def process_one(_settings, of):
        if of.index == 2:
            raise error
        return record(of.index)

    return process_one


def test_a_partition_yields_records_in_order_and_notes_them_without_lists():
    notes = []
    results = list(process_chunks(None, map(chunk, range(3)), notes.append, lambda _, of: record(of.index, 7)))
    assert results == [record(index, 7) for index in range(3)]
    assert [(note.index, note.documents, note.lines, note.keys, note.faults) for (note,) in notes] == [
        (index, 7, (), (), ()) for index in range(3)
    ]


def test_a_fault_that_stops_the_run_is_the_last_result_of_its_partition():
    error, notes = BadDocument("x.jsonl, line 3: bad_json"), []
    results = list(process_chunks(None, map(chunk, range(5)), notes.append, ends_with(error)))
    assert results == [record(0), record(1), Failure(2, error)]
    assert notes[-1] == [Failure(2, error)]
    assert str(sent(results[-1]).error) == str(error)


def test_an_error_of_the_storage_is_left_to_sparks_own_retries():
    with pytest.raises(OSError, match="unreachable"):
        list(process_chunks(None, map(chunk, range(5)), lambda _: None, ends_with(OSError("unreachable"))))


def test_progress_counts_a_chunk_once_though_two_tasks_did_it(folder):
    with prepare_run(options(folder, "good.jsonl")) as prepared_run:
        report = SparkReport(prepared_run, 0.0)
    results = []
    assert not report.count_new_results(results)
    for index in (0, 1, 1, 0):
        ResultLists().addInPlace(results, [record(index)])
        assert not report.count_new_results(results)
    assert report.progress.documents == 2
    ResultLists().addInPlace(results, [Failure(2, BadDocument("x"))])
    assert report.count_new_results(results)


def test_the_first_failure_is_that_of_the_lowest_chunk():
    low, high = Failure(3, BadDocument("low")), Failure(8, BadDocument("high"))
    assert first_failure([record(0), high, low]) is low
    assert first_failure([record(0)]) is None


def test_executors_get_paths_that_hold_in_any_working_folder(folder):
    with prepare_run(options(folder, "good.jsonl")) as prepared_run:
        (source,) = prepared_run.settings.sources
    paths = ("a/b.jsonl", "/c.jsonl", "s3://bucket/d.jsonl")
    sources = tuple(replace(source, path=path) for path in paths)
    relative = replace(prepared_run.settings, folder="out.shards", sources=sources)
    absolute = with_absolute_paths(relative, "/work")
    assert absolute.folder == "/work/out.shards"
    assert [each.path for each in absolute.sources] == ["/work/a/b.jsonl", "/c.jsonl", "s3://bucket/d.jsonl"]


@pytest.mark.parametrize(
    ("count", "chunks", "expected"),
    [
        pytest.param(200, 2, [(0,), (1,)], id="no partition is empty"),
        pytest.param(1, 3, [(0, 1, 2)], id="one partition has all"),
        pytest.param(3, 8, [(0, 3, 6), (1, 4, 7), (2, 5)], id="neighbours go to different partitions"),
    ],
)
def test_chunks_are_dealt_to_partitions(count, chunks, expected):
    chunks_by_partition = partitions([chunk(index) for index in range(chunks)], count)
    assert [tuple(each.index for each in part) for part in chunks_by_partition] == expected


@pytest.mark.contract("DL-68")
def test_the_script_finds_the_tokenizers_of_pypi_though_ours_lie_beside_it(tmp_path):
    """Python puts the folder of a script first on its path, and that folder has a `tokenizers` of ours."""
    script = Path(pyspark_preprocess.__file__)
    assert (script.parent / "tokenizers" / "__init__.py").exists()
    command = [
        sys.executable,
        script,
        "--input",
        "x.jsonl",
        "--output-prefix",
        "out",
        "--tokenizer-type",
        "HFTokenizer",
    ]
    (tmp_path / "x.jsonl").write_bytes(lines(TEXTS[:1]))
    (tmp_path / "tokenizer.json").write_text("not a vocabulary")
    command += ["--vocab-file", "tokenizer.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("pyspark_preprocess.py: --vocab-file tokenizer.json: not a tokenizer.json of Hugging")


WORKER = """
import gc, sys, zipimport
sys.path.insert(0, "modules.zip")
import from_a_zip
from turnout.preprocess.spark_runner import speed_up_later_tasks

def archives():
    return sum(isinstance(each, zipimport.zipimporter) for each in sys.path_importer_cache.values())

before = archives(), gc.get_freeze_count() > 0
speed_up_later_tasks()
print(before, (archives(), gc.get_freeze_count() > 0))
import also_from_a_zip
"""


def test_a_worker_process_forgets_archives_that_spark_would_read_again(tmp_path):
    with zipfile.ZipFile(tmp_path / "modules.zip", "w") as archive:
        archive.writestr("from_a_zip.py", "")
        archive.writestr("also_from_a_zip.py", "print('still imported')")
    command = [sys.executable, "-c", WORKER]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["(1, False) (0, True)", "still imported"]
