"""Run the stages in processes of this machine. If a worker process ends early, its chunks are processed again."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from turnout.preprocess.errors import LostWorker
from turnout.preprocess.model import ShardRecord, TextChunk
from turnout.preprocess.options import Options
from turnout.preprocess.progress import progress_of
from turnout.preprocess.run import PreprocessRun, Totals, merge_if_complete, prepare_run
from turnout.preprocess.shards import ShardSettings, make_shard
from turnout.preprocess.tokenizers.encoders import get_encoder

log = logging.getLogger("turnout.preprocess")

QUEUED_CHUNKS = 1  # further chunks that each worker has, so that it never waits for the next one

_settings: ShardSettings | None = None  # the settings of this worker process


def run_local(options: Options) -> Totals | None:
    """Make the dataset that the options describe in processes of this machine, and return its totals.

    None if other processes of the same run have not finished their shards, or if one of them merges now. Raises the
    errors of prepare_run(), make_shards() and merge_if_complete().
    """
    with prepare_run(options) as run:
        if isinstance(run, Totals):
            log.info("already_complete", extra={"prefix": options.output_prefix})
            return run
        return merge_if_complete(run, make_shards(run, _show))


def make_shards(run: PreprocessRun, report: Callable[[str], None]) -> list[ShardRecord]:
    """Turn the pending chunks of a run into shards in worker processes, and return their records.

    report: receives lines of progress. Chunks that were in progress when a worker process ended early are processed
    again, one at a time. Raises LostWorker if the worker process of a repeated chunk ends again, RunInProgress if
    another run took the lock, and the errors of make_shard().
    """
    progress = progress_of(run, time.monotonic())
    records: list[ShardRecord] = []

    def count_finished(chunk: TextChunk, record: ShardRecord) -> None:
        """Record a finished shard, and report progress when a line is due. Raises RunInProgress for a lost lock."""
        records.append(record)
        progress.add(chunk, record)
        if (line := progress.line_if_due(time.monotonic())) is not None:
            report(line)
        run.lock.check()

    waiting: Sequence[TextChunk] = run.pending
    while waiting:
        suspects, waiting = _run_in_pool(run.settings, min(run.options.workers, len(waiting)), waiting, count_finished)
        for chunk in suspects:  # one at a time, so that the chunk that ends its worker is known
            if _run_in_pool(run.settings, 1, [chunk], count_finished)[0]:
                raise LostWorker(_lost_text(run, chunk))
    if records:
        report(progress.line(time.monotonic()))
    return records


def _run_in_pool(
    settings: ShardSettings,
    workers: int,
    chunks: Sequence[TextChunk],
    count_finished: Callable[[TextChunk, ShardRecord], None],
) -> tuple[list[TextChunk], list[TextChunk]]:
    """Process chunks in a pool of `workers` processes until all are finished or a worker process ends.

    count_finished: receives each finished chunk and its record. Return (chunks that were submitted and not finished,
    chunks that were not submitted), both empty if all chunks are finished. Raises the errors of make_shard() after the
    workers have ended.
    """
    queue = deque(chunks)
    running: dict[Future[ShardRecord], TextChunk] = {}
    context = multiprocessing.get_context("spawn")  # threads of a tokenizer do not survive a fork
    with ProcessPoolExecutor(workers, context, _prepare_worker, (settings,)) as pool:
        try:
            while queue or running:
                while queue and len(running) < workers * (1 + QUEUED_CHUNKS):
                    chunk = queue.popleft()
                    running[pool.submit(_process, chunk)] = chunk
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    record = future.result()
                    count_finished(running.pop(future), record)
        except BrokenProcessPool:
            log.warning("worker_lost", extra={"chunks": len(running)})
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return _pass_on_finished(running, count_finished), list(queue)


def _pass_on_finished(
    running: dict[Future[ShardRecord], TextChunk], count_finished: Callable[[TextChunk, ShardRecord], None]
) -> list[TextChunk]:
    """Pass on the records of chunks that were finished before a worker process ended, and return the other chunks.

    running: the submitted chunks. count_finished: receives each finished chunk and its record. The result is sorted by
    index.
    """
    unfinished = []
    for future, chunk in running.items():
        if future.done() and not future.cancelled() and future.exception() is None:
            count_finished(chunk, future.result())
        else:
            unfinished.append(chunk)
    return sorted(unfinished, key=lambda chunk: chunk.index)


def _prepare_worker(settings: ShardSettings) -> None:
    """Prepare a worker process: store the settings for _process(), ignore Ctrl-C, and load the tokenizer."""
    global _settings
    _settings = settings
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the run ends its workers
    get_encoder(settings.tokenizer)


def _process(chunk: TextChunk) -> ShardRecord:
    """Process a chunk in a worker process, with the settings of _prepare_worker(): write its shard and return its
    record.
    """
    assert _settings is not None
    return make_shard(_settings, chunk)


def _lost_text(run: PreprocessRun, chunk: TextChunk) -> str:
    """Return the message about a chunk whose worker process ended twice: the file and byte range of its first piece,
    the number of its other files, and what to do.
    """
    settings = run.settings
    piece = chunk.pieces[0]
    path = settings.sources[piece.source].path
    count = len({each.source for each in chunk.pieces}) - 1
    further = f" and {count} more file{'s' if count > 1 else ''}" if count else ""
    others = "end the other processes of --indexes, " if run.options.share.count > 1 else ""
    return (
        f"{path}, bytes {piece.start} to {piece.end}{further}: a worker process ended twice at this chunk, often"
        f" because of too little memory; {others}remove {settings.folder}, then try a smaller --chunk-bytes or"
        " --max-document-bytes"
    )


def _show(line: str) -> None:
    """Print a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)
