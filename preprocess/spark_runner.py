"""Run the stages as tasks of Spark. plan.py decides what a chunk is, and shards.py how it becomes a shard.

The driver plans before the tasks and merges after them, as the runner of local processes does. A task writes shards to
the storage that the driver and all executors share, so Spark may run a task twice: the same chunk gives the same shard.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any
from zipimport import zipimporter

import msgspec

from turnout.preprocess import command, options, storage
from turnout.preprocess.errors import LostWorker, PreprocessError
from turnout.preprocess.model import ShardRecord, TextChunk, shard_record_decoder
from turnout.preprocess.options import Options
from turnout.preprocess.progress import progress_of
from turnout.preprocess.run import PreprocessRun, Totals, merge_if_complete, prepare_run
from turnout.preprocess.shards import ShardSettings, make_shard, record_path

log = logging.getLogger("turnout.preprocess")

PROGRAM = "pyspark_preprocess.py"
REPORT_S = 0.5  # seconds between two checks of the results of tasks
MAX_NAMED_INPUTS = 3  # inputs of a failed task that a message names
MAX_MESSAGE_CHARACTERS = 1000  # of a message about a failed task
_PYTHON_ERROR = re.compile(r"\w*(Error|Exception): ")
_TASK = re.compile(r"Task (\d+) in stage")
# Settings that spark-submit may override. Over a Unix domain socket a task's data reach Python 0.04 s earlier than over
# TCP, whose acknowledgements are delayed.
SPARK_DEFAULTS = {"spark.python.unix.domain.socket.enabled": "true"}


class Failure(msgspec.Struct, frozen=True):
    """A chunk whose error ends the run, because a retry would fail in the same way."""

    index: int  # the index of the chunk
    error: PreprocessError


Result = ShardRecord | Failure
OpenSession = Callable[[], AbstractContextManager[Any]]  # returns a context with a SparkSession


def process_chunks(
    settings: ShardSettings,
    chunks: Iterable[TextChunk],
    note: Callable[[list[Result]], None],
    process_one: Callable[[ShardSettings, TextChunk], ShardRecord] = make_shard,
) -> Iterator[Result]:
    """Process the chunks of a partition, and yield the record of each. After the first failure, yield it and stop.

    note: receives each result, for the progress. process_one: makes the shard of a chunk. The records have no lists of
    faults, because Spark keeps the results of all tasks in the driver's memory; the lists are in the records on the
    storage. An OSError is raised, so that Spark retries the task, perhaps on another machine.
    """
    for chunk in chunks:
        try:
            record = process_one(settings, chunk)
        except PreprocessError as error:
            failure = Failure(chunk.index, error)
            note([failure])
            yield failure
            return
        note([msgspec.structs.replace(record, lines=(), keys=(), faults=())])
        yield msgspec.structs.replace(record, faults=())


@dataclass(frozen=True, slots=True)
class SparkTask:
    """The work of one partition, in the form in which Spark sends it to an executor."""

    settings: Any  # a broadcast of ShardSettings: an executor's process fetches it once, and builds its encoder once
    results: Any  # an accumulator of lists of Result

    def __call__(self, partition: Iterable[Sequence[TextChunk]]) -> Iterator[Result]:
        """Process the chunks of a partition, and yield the results. Spark's `mapPartitions` calls this.

        partition: its only element is the sequence of the chunks.
        """
        yield from process_chunks(self.settings.value, chain.from_iterable(partition), self.results.add)
        if os.environ.get("SPARK_REUSE_WORKER"):
            speed_up_later_tasks()


@cache
def speed_up_later_tasks() -> None:
    """Make later tasks in this Python worker start faster. Only the first call in a process has an effect.

    Before each task Spark clears the import caches, so that Python reads the index of Spark's zip archive 16 times (0.2
    s): the readers of zip archives are removed from the cache. After each task Spark runs the garbage collector over
    all modules (0.05 s): the objects that exist now are exempt (gc.freeze). Measured with Spark 4.1.4.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]
    gc.freeze()


class ResultLists:
    """The rules by which Spark merges the lists of results of tasks: an AccumulatorParam."""

    def zero(self, _value: list[Result]) -> list[Result]:
        """Return the empty list, with which each task begins."""
        return []

    def addInPlace(self, total: list[Result], more: list[Result]) -> list[Result]:  # noqa: N802  Spark's name
        """Append the second list to the first, and return the first."""
        total += more
        return total


def partitions(chunks: Sequence[TextChunk], count: int) -> list[tuple[TextChunk, ...]]:
    """Return the chunks of each partition: at most `count` partitions, none of them empty; [] without chunks.

    Neighbours in the input go to different partitions, so that a run of large archives is divided among all of them.
    """
    return [tuple(chunks[first::count]) for first in range(min(count, len(chunks)))]


def with_absolute_paths(settings: ShardSettings, folder: str) -> ShardSettings:
    """Return the settings with absolute paths, because each executor has another working folder than the driver.

    folder: the driver's working folder, absolute. Only the inputs and the folder of the shards have paths; URLs stay
    unchanged.
    """

    def absolute(path: str) -> str:
        """Return a local path as an absolute one, and a URL unchanged."""
        return path if storage.is_remote(path) else os.path.join(folder, path)

    sources = tuple(msgspec.structs.replace(source, path=absolute(source.path)) for source in settings.sources)
    return msgspec.structs.replace(settings, folder=absolute(settings.folder), sources=sources)


def first_failure(results: Iterable[Result]) -> Failure | None:
    """Return the failure whose chunk is first in the input, None without failures."""
    failures = (result for result in results if isinstance(result, Failure))
    return min(failures, key=lambda failure: failure.index, default=None)


class SparkReport:
    """The progress of a run on the driver, by the results in the accumulator."""

    def __init__(self, run: PreprocessRun, started_s: float) -> None:
        """Start without results. started_s: on the monotonic clock."""
        self._chunks = {chunk.index: chunk for chunk in run.pending}
        self._counted_results = 0  # results of the accumulator that were counted
        self.progress = progress_of(run, started_s)

    def count_new_results(self, results: Sequence[Result]) -> bool:
        """Count the results that arrived since the last call, and return True if one of them is a failure.

        results: all results so far, in the order of their arrival. A chunk that Spark processed twice counts once.
        """
        new_results = results[self._counted_results :]
        self._counted_results += len(new_results)
        for result in new_results:
            if isinstance(result, ShardRecord) and (chunk := self._chunks.pop(result.index, None)) is not None:
                self.progress.add(chunk, result)
        return first_failure(new_results) is not None


def make_shards(run: PreprocessRun, context: Any, show: Callable[[str], None]) -> list[ShardRecord]:
    """Turn the pending chunks of a run into shards on Spark, and return their records.

    run: with at least one pending chunk. context: a SparkContext. show: receives lines of progress. Raises the error of
    the first failure in the order of the input, and LostWorker if Spark gave up a task or ended the job.
    """
    parts = partitions(run.pending, run.options.partitions)
    report = SparkReport(run, time.monotonic())
    accumulator = context.accumulator([], ResultLists())
    broadcast = context.broadcast(with_absolute_paths(run.settings, os.getcwd()))
    rdd = context.parallelize(parts, len(parts))
    try:
        with _show_progress(context, accumulator, report, show):
            results: list[Result] = rdd.mapPartitions(SparkTask(broadcast, accumulator)).collect()
    except Exception as error:
        if (failure := first_failure(accumulator.value)) is not None:
            raise failure.error from None
        if not hasattr(error, "java_exception"):
            raise
        raise LostWorker(task_failure_text(str(error), run, parts)) from error
    finally:
        broadcast.destroy()
    if (failure := first_failure(results)) is not None:
        raise failure.error
    report.count_new_results(accumulator.value)
    show(report.progress.line(time.monotonic()))
    return [with_faults(run.settings.folder, result) for result in results if isinstance(result, ShardRecord)]


def with_faults(folder: str, record: ShardRecord) -> ShardRecord:
    """Return the record with its list of faults, which is read from the storage if it has any.

    folder: of the shards. record: as process_chunks() yields it, without the list. Raises OSError if the storage fails,
    and msgspec.DecodeError if the stored record is damaged.
    """
    if not record.fault_counts:
        return record
    return shard_record_decoder.decode(storage.read_bytes(record_path(folder, record.index)))


def task_failure_text(message: str, run: PreprocessRun, parts: Sequence[Sequence[TextChunk]]) -> str:
    """Return a message about a failed job for the user: the cause, and the inputs of the failed task if Spark names it.

    message: of Spark, with many lines. parts: the chunks of each task. The result has at most MAX_MESSAGE_CHARACTERS
    characters.
    """
    task, cause = _TASK.search(message), _failure_cause(message)
    if task is None:
        return f"Spark ended the job: {cause}"[:MAX_MESSAGE_CHARACTERS]
    sources = sorted({piece.source for chunk in parts[int(task[1])] for piece in chunk.pieces})
    paths = ", ".join(run.settings.sources[source].path for source in sources[:MAX_NAMED_INPUTS])
    further_inputs = f" and {len(sources) - MAX_NAMED_INPUTS} more inputs" if len(sources) > MAX_NAMED_INPUTS else ""
    return f"Spark gave up the task of {paths}{further_inputs}: {cause}"[:MAX_MESSAGE_CHARACTERS]


def _failure_cause(message: str) -> str:
    """Return the line of a message of Spark that names the cause. message: not empty.

    It is the last Python error, else the first error of Spark, else the last line of the message.
    """
    lines = [line.strip().lstrip(": ") for line in message.splitlines()]
    python = [line for line in lines if _PYTHON_ERROR.match(line)]
    java = [line for line in lines if line.startswith("org.apache.spark.")]
    cause = (python or java[:1] or lines)[-1].removeprefix("org.apache.spark.SparkException: ")
    return cause.partition(" Consider setting ")[0]


@contextmanager
def _show_progress(context: Any, accumulator: Any, report: SparkReport, show: Callable[[str], None]) -> Iterator[None]:
    """Show progress from a thread while the block waits for Spark, and cancel Spark's jobs at the first failure.

    context: a SparkContext. accumulator: of the results so far. report: counts the results, and finds a failure among
    them. show: receives lines of progress.
    """
    end_event = threading.Event()

    def watch() -> None:
        """Show progress until the block ends. Cancel all tasks, and stop, when the report finds a failure."""
        while not end_event.wait(REPORT_S):
            if report.count_new_results(accumulator.value):
                context.cancelAllJobs()
                return
            if (line := report.progress.line_if_due(time.monotonic())) is not None:
                show(line)

    thread = threading.Thread(target=watch, name="preprocess-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end_event.set()
        thread.join()


@contextmanager
def session(master: str | None = None) -> Iterator[Any]:
    """Start a Spark session with the settings of spark-submit, and stop it when the block ends.

    master: the URL of the Spark master, None for the one of spark-submit.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    SparkContext._ensure_initialized()  # connects to the JVM, from which SparkConf gets the settings of spark-submit
    conf = SparkConf()
    for key, value in SPARK_DEFAULTS.items():
        conf.setIfMissing(key, value)
    if master is not None:
        conf.setMaster(master)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    try:
        context = spark.sparkContext
        if context.master.startswith("local") and "PYSPARK_PYTHON" not in os.environ:
            context.pythonExec = sys.executable  # on this machine; Spark's own choice is the python3 on PATH
        yield spark
    finally:
        spark.stop()


def run_spark(run_options: Options, open_session: OpenSession = session) -> Totals | None:
    """Make the dataset that the options describe on Spark, and return its totals.

    None if other processes of the same run have not finished their shards, or if one of them merges now. open_session:
    starts a Spark session, which is open only while tasks run: a wrong command starts no session, and executors do not
    wait for the merge. Raises the errors of prepare_run(), make_shards() and merge_if_complete(). Source: DL-67, DL-79
    """
    with prepare_run(run_options) as run:
        if isinstance(run, Totals):
            log.info("already_complete", extra={"prefix": run_options.output_prefix})
            return run
        records: list[ShardRecord] = []
        if chunks := len(run.pending):
            with open_session() as spark:
                context = spark.sparkContext
                log.info("spark_started", extra={"master": context.master, "chunks": chunks})
                records = make_shards(run, context, _show)
        return merge_if_complete(run, records)


def _show(line: str) -> None:
    """Print a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script of the guide, pyspark_preprocess.py, on Spark, and return its exit code.

    argv: None for the arguments of the process.
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM, allow_abbrev=False, description=command.DESCRIPTION, epilog=command.EPILOG
    )
    options.add_arguments(parser)
    return command.make_dataset(parser.parse_args(argv), PROGRAM, run_spark)
