"""Workers that die, and a run that is interrupted, cost no document. The chunk decides what happens to its worker."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from tests.preprocess import corpus
from turnout.preprocess.errors import LostWorker
from turnout.preprocess.local_runner import make_shards
from turnout.preprocess.model import TextChunk
from turnout.preprocess.options import Engine, WorkShare
from turnout.preprocess.run import merge_if_complete, prepare_run

DOCUMENTS = corpus.texts(120)


def end_worker(*_):
    """End the process that unpickles a chunk, as the kernel does for want of memory."""
    os._exit(9)


def end_worker_once(marker, chunk):
    """End the first process that unpickles a chunk, and give the chunk to the next."""
    try:
        Path(marker).touch(exist_ok=False)
    except FileExistsError:
        return chunk
    os._exit(9)


def interrupt_run(_, chunk):
    """Send the run what Ctrl-C sends."""
    os.kill(os.getppid(), signal.SIGINT)
    return chunk


class Trap(TextChunk, frozen=True):
    """A chunk that does something to the process that takes it up."""

    happens: object = None
    marker: str = ""

    def __reduce__(self):
        return self.happens, (self.marker, TextChunk(self.index, self.pieces, self.part))


def trapped(run, index, happens, marker=""):
    """A run whose chunk of this index is a trap."""
    chunks = [
        Trap(chunk.index, chunk.pieces, chunk.part, happens, str(marker)) if chunk.index == index else chunk
        for chunk in run.chunks
    ]
    return replace(run, chunks=tuple(chunks))


@pytest.fixture
def options(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(corpus.lines(DOCUMENTS))
    return corpus.options(tmp_path, "a.jsonl", engine=Engine.GIGATOKEN, workers=2, chunk_bytes=3000)


def test_a_worker_that_dies_takes_no_document_with_it(options, tmp_path, caplog):
    with prepare_run(options) as run:
        records = make_shards(trapped(run, 2, end_worker_once, tmp_path / "marker"), lambda line: None)
        assert sorted(record.index for record in records) == [chunk.index for chunk in run.chunks]
        merge_if_complete(run, records)
    assert corpus.output(options) == corpus.reference(DOCUMENTS)
    assert "worker_lost" in [record.message for record in caplog.records]


def test_a_chunk_that_always_ends_its_worker_is_named(options):
    with prepare_run(options) as run:
        piece = run.chunks[1].pieces[0]
        with pytest.raises(
            LostWorker, match=rf"a\.jsonl, bytes {piece.start} to {piece.end}: a worker process ended twice"
        ):
            make_shards(trapped(run, 1, end_worker), lambda line: None)


def test_a_chunk_of_several_files_that_ends_its_worker_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(first := corpus.lines(DOCUMENTS[:2]))
    (tmp_path / "b.jsonl").write_bytes(corpus.lines(["b"]))
    options = corpus.options(tmp_path, "a.jsonl", "b.jsonl", engine=Engine.GIGATOKEN, chunk_bytes=10**6)
    with prepare_run(options) as run:
        message = rf"a\.jsonl, bytes 0 to {len(first)} and 1 more file: .* remove .*out\.shards, then try a smaller"
        with pytest.raises(LostWorker, match=message):
            make_shards(trapped(run, 0, end_worker), lambda line: None)


def test_the_other_indexes_end_before_their_shards_are_removed(options):
    message = "end the other processes of --indexes, remove "
    with prepare_run(replace(options, share=WorkShare(1, 2))) as run, pytest.raises(LostWorker, match=message):
        make_shards(trapped(run, 1, end_worker), lambda line: None)


def test_an_interrupted_run_goes_on(options):
    with prepare_run(options) as run, pytest.raises(KeyboardInterrupt):
        make_shards(trapped(run, 3, interrupt_run), lambda line: None)
    with prepare_run(options) as run:
        assert run.finished
        merge_if_complete(run, make_shards(run, lambda line: None))
    assert corpus.output(options) == corpus.reference(DOCUMENTS)
