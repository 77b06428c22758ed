"""One run from its options to its dataset: plan or resume, and merge. Runners carry the chunks to workers in between.

While a run is in progress, the folder `<prefix>.shards/` has its plan, locks and shards. It is removed when the dataset
is complete. The results of a run are the dataset, `<prefix>.preprocess.json`, and the lists of documents that were left
out.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import xxhash

from turnout.preprocess import storage
from turnout.preprocess.documents import LineReader
from turnout.preprocess.errors import BadOption, OutputExists, ResumeRefused, RunInProgress
from turnout.preprocess.merge import complete_documents, dataset_path, merge_key
from turnout.preprocess.model import UNREADABLE, InputFile, ShardRecord, TextChunk, shard_record_decoder
from turnout.preprocess.options import Engine, OnError, Options
from turnout.preprocess.plan import ChunkingRules, find_input_files, make_chunks
from turnout.preprocess.run_lock import RunLock, run_lock
from turnout.preprocess.run_record import (
    PADDING_MULTIPLE,
    RunIdentity,
    fault_counts,
    first_difference,
    identity_of,
    input_entries,
    located_faults,
    versions,
)
from turnout.preprocess.sample import sample_texts
from turnout.preprocess.shards import (
    ShardSettings,
    input_digests,
    is_shard_intact,
    make_shard,
    record_path,
    shard_path,
)
from turnout.preprocess.tokenizers.engine_choice import SAMPLE_DOCUMENTS, EngineChoice, choose_engine
from turnout.preprocess.tokenizers.load import load_tokenizer
from turnout.preprocess.tokenizers.settings import EncoderSettings, is_splittable

log = logging.getLogger("turnout.preprocess")

VERIFY_THREADS = 8  # threads that verify finished shards
# The cache of words: the bytes that all processes of a machine share, and the bytes that each gets in addition. A large
# cache is faster.
SHARED_CACHE_BYTES, LEAST_CACHE_BYTES = 256 << 20, 64 << 20


class RunPlan(msgspec.Struct, frozen=True):
    """The plan that all processes of a run follow. It is written before the first shard."""

    identity: RunIdentity  # everything that determines the output
    engine: str  # the value of an Engine, not AUTO
    engine_reason: str  # why this engine was chosen
    chunks: tuple[TextChunk, ...]  # all chunks, in the order of the input


_plans = msgspec.json.Decoder(RunPlan)


@dataclass(frozen=True, slots=True)
class PreprocessRun:
    """A run whose plan is made, and whose pending chunks can be processed."""

    options: Options
    settings: ShardSettings  # for the workers
    plan: RunPlan  # of all processes of the run
    chunks: tuple[TextChunk, ...]  # the chunks of this process
    finished: dict[int, ShardRecord]  # records of shards that an earlier run has finished, by the chunk's index
    lock: RunLock  # on the output

    @property
    def pending(self) -> tuple[TextChunk, ...]:
        """The chunks of this process that have no finished shard."""
        return tuple(chunk for chunk in self.chunks if chunk.index not in self.finished)


class Totals(msgspec.Struct, frozen=True):
    """The counts of a finished run."""

    documents: int  # documents in at least one of the datasets; a document without tokens is in none
    tokens: int  # tokens of all keys together
    # The number of documents that were left out, by the value of a FaultReason; `faults` in the record of a run.
    fault_counts: dict[str, int] = msgspec.field(name="faults")


class _RecordedTokenizer(msgspec.Struct, frozen=True):
    """The part of a tokenizer in the record of a run that is read again."""

    engine: Engine  # the engine that was used, not AUTO


class _RecordedRun(msgspec.Struct, frozen=True):
    """The part of the record of a run that is read again. `_run_record` makes the whole."""

    identity: RunIdentity
    totals: Totals
    tokenizer: _RecordedTokenizer


_recorded_runs = msgspec.json.Decoder(_RecordedRun)


def shards_folder(prefix: str) -> str:
    """Return the path of the folder of a run's shards. prefix: of the output."""
    return f"{prefix}.shards"


def run_record_path(prefix: str) -> str:
    """Return the path of the JSON record beside the datasets. prefix: of the output."""
    return f"{prefix}.preprocess.json"


def _left_out_paths(prefix: str) -> tuple[str, str]:
    """Return the paths of the list of faults and of the rejected lines beside the datasets. prefix: of the output."""
    return f"{prefix}.faults.jsonl", f"{prefix}.quarantine.jsonl"


@contextmanager
def prepare_run(options: Options) -> Iterator[PreprocessRun | Totals]:
    """Plan a run or continue an earlier one, and hold the lock on its output while the block runs.

    Yield the Totals instead if the output exists and was made from the same inputs with the same options. Raises
    BadOption for wrong inputs or a wrong vocabulary, RunInProgress if another process holds the lock, ResumeRefused if
    finished shards belong to another run, and OutputExists if the output was made from something else.
    """
    sources = find_input_files(options)
    tokenizer = load_tokenizer(options.tokenizer, storage.read_bytes, storage.is_folder)
    if options.append_eod and tokenizer.eod is None:
        raise BadOption(f"--append-eod: the vocabulary {options.tokenizer.vocab_file} has no end-of-document token")
    identity = identity_of(options, sources, tokenizer)
    folder = shards_folder(options.output_prefix)
    if (totals := _complete_output(options, identity)) is not None:
        storage.remove_folder(folder)  # left by a run that was killed at its end
        yield totals
        return
    storage.make_folder(folder)
    with run_lock(f"{folder}/run-{options.share.index}.lock") as lock:
        if (totals := _complete_output(options, identity)) is not None:  # by another process
            yield totals
            return
        yield _resume_or_plan(options, sources, tokenizer, identity, lock)


def _complete_output(options: Options, identity: RunIdentity) -> Totals | None:
    """Return the totals of the output if it is complete and has this identity; None if there is no complete output.

    Raises OutputExists if the output was made from other inputs or options, or by another program.
    """
    path = run_record_path(options.output_prefix)
    datasets = ", ".join(dataset_path(options.output_prefix, key, "bin and .idx") for key in options.keys)
    remedy = f"remove {path}, {datasets}, or choose another prefix"
    if storage.exists(path):
        try:
            record = _recorded_runs.decode(storage.read_bytes(path))
        except UNREADABLE as error:
            raise OutputExists(f"{path}: not a record of a run: {error}; {remedy}") from error
        if (change := first_difference(record.identity, identity)) is not None:
            raise OutputExists(
                f"{path}: the dataset exists and was made from other inputs or options: {change}; {remedy}"
            )
        if (change := _engine_change(record.tokenizer.engine, options.engine)) is not None:
            raise OutputExists(f"{path}: the dataset exists: {change}; {remedy}")
        return record.totals
    if not storage.exists(_plan_path(options)):
        for key in options.keys:
            for suffix in ("idx", "bin"):
                if storage.exists(dataset := dataset_path(options.output_prefix, key, suffix)):
                    raise OutputExists(f"{dataset}: exists without the record of a run; {remedy}")
    return None


def _engine_change(earlier: Engine, requested: Engine) -> str | None:
    """Return a phrase about the engine of an earlier run if this run requests another one; None otherwise.

    earlier: the engine that was used, not AUTO. requested: --engine of this run; AUTO accepts the earlier one.
    """
    if requested in (Engine.AUTO, earlier):
        return None
    return f"engine was {earlier.value}, is {requested.value}"


def _plan_path(options: Options) -> str:
    """Return the path of the plan of a run."""
    return f"{shards_folder(options.output_prefix)}/plan.json"


def _resume_or_plan(
    options: Options,
    sources: tuple[InputFile, ...],
    tokenizer: EncoderSettings,
    identity: RunIdentity,
    lock: RunLock,
) -> PreprocessRun:
    """Return the run with the plan of an earlier run and its finished shards, or with a new plan.

    A new plan is written to the folder of the shards. sources: the input files. tokenizer: for the reference engine.
    lock: on the output, held. The chosen engine is logged. Raises ResumeRefused if the plan is unreadable, if the
    earlier run had other inputs or options, or if an input has changed since; and the errors of choose_engine().
    """
    path = _plan_path(options)
    if not storage.exists(path):
        storage.write_once(path, msgspec.json.encode(_new_plan(options, sources, tokenizer, identity)))
    content = storage.read_bytes(path)  # with --indexes perhaps the plan of a process that started at the same time
    plan = _usable_plan(path, content, identity, options)
    engine = Engine(plan.engine)
    log.info("engine_chosen", extra={"engine": engine.value, "reason": plan.engine_reason})
    settings = ShardSettings(
        folder=shards_folder(options.output_prefix),
        plan_xxh3=xxhash.xxh3_128_hexdigest(content),
        sources=sources,
        keys=options.keys,
        tokenizer=msgspec.structs.replace(tokenizer, engine=engine, cache_bytes=cache_bytes(options.workers)),
        append_eod=options.append_eod,
        ftfy=options.ftfy,
        on_error=options.on_error,
        block_bytes=options.limits.chunk_bytes,
        max_document_bytes=options.limits.max_document_bytes,
        max_expansion=options.limits.max_expansion,
    )
    share = tuple(chunk for chunk in plan.chunks if chunk.index % options.share.count == options.share.index)
    return PreprocessRun(options, settings, plan, share, _finished_shards(settings, share), lock)


def _usable_plan(path: str, content: bytes, identity: RunIdentity, options: Options) -> RunPlan:
    """Return the plan in a file, if a run with this identity and these options can follow it; else raise ResumeRefused.

    path: of the plan, for the message. content: of the file.
    """
    try:
        plan = _plans.decode(content)
    except UNREADABLE as error:
        raise ResumeRefused(f"{path}: not a plan: {error}; remove the folder") from error
    if (change := first_difference(plan.identity, identity)) is not None:
        raise ResumeRefused(
            f"{path}: an earlier run had other inputs or options: {change}; remove the folder, or choose another prefix"
        )
    if (change := _engine_change(Engine(plan.engine), options.engine)) is not None:
        raise ResumeRefused(f"{path}: {change}; remove the folder, or omit --engine")
    return plan


def cache_bytes(workers: int) -> int:
    """Return the bytes that the cache of words may use in each process. workers: processes on one machine, >= 1."""
    return SHARED_CACHE_BYTES // workers + LEAST_CACHE_BYTES


def _new_plan(
    options: Options, sources: Sequence[InputFile], tokenizer: EncoderSettings, identity: RunIdentity
) -> RunPlan:
    """Return a new plan: the chunks of the input, and the engine. Nothing is written.

    For the engine AUTO both engines are compared on a sample of the input. sources: the input files. tokenizer: for the
    reference engine.
    """
    may_cut = len(options.keys) == 1 and not options.ftfy and is_splittable(tokenizer)
    rules = ChunkingRules(options.limits.chunk_bytes, options.limits.max_document_bytes, may_cut, options.keys)
    all_chunks = make_chunks(sources, rules)
    choice = EngineChoice(options.engine, "asked for")
    if options.engine is Engine.AUTO:
        reader = LineReader(options.keys, options.limits.max_document_bytes)
        choice = choose_engine(tokenizer, sample_texts(sources, all_chunks, reader, SAMPLE_DOCUMENTS))
    return RunPlan(identity, choice.engine.value, choice.reason, all_chunks)


def _finished_shards(settings: ShardSettings, share: Sequence[TextChunk]) -> dict[int, ShardRecord]:
    """Return the records of finished shards that can be used, by the chunk's index. share: chunks of this process.

    The files of the shards and their inputs are read and hashed. Raises ResumeRefused if an input has changed since its
    shard was made.
    """
    names = set(storage.names_in(settings.folder))
    candidates = [chunk for chunk in share if record_path("", chunk.index).lstrip("/") in names]
    with ThreadPoolExecutor(VERIFY_THREADS) as threads:
        records = threads.map(lambda chunk: _finished_record(settings, chunk), candidates)
        return {record.index: record for record in records if record is not None}


def _finished_record(settings: ShardSettings, chunk: TextChunk) -> ShardRecord | None:
    """Return the record of a chunk's finished shard, which must exist; None if the shard has to be made again.

    That is the case if its record or its files are damaged, if it was made by another plan, or if it has faults that
    this run's --on-error handles differently. Raises ResumeRefused if the input has changed since the shard was made,
    or cannot be read.
    """
    try:
        record = shard_record_decoder.decode(storage.read_bytes(record_path(settings.folder, chunk.index)))
    except UNREADABLE:
        return None
    if record.plan_xxh3 != settings.plan_xxh3:  # of a process that went on after the folder was removed
        return None
    try:
        is_same = input_digests(settings, chunk) == record.input_xxh3
    except OSError:
        is_same = False
    if not is_same:
        paths = ", ".join(sorted({settings.sources[piece.source].path for piece in chunk.pieces}))
        raise ResumeRefused(
            f"{paths}: changed since an earlier run read it; remove {settings.folder}, or restore the input"
        )
    # The earlier run may have handled faults by another --on-error than this run.
    is_usable = not record.fault_counts or (
        settings.on_error is not OnError.STOP and (settings.on_error is OnError.SKIP or record.has_rejected_lines)
    )
    return record if is_usable and is_shard_intact(settings, record) else None


def merge_if_complete(run: PreprocessRun, records: Sequence[ShardRecord]) -> Totals | None:
    """Merge all shards into the output, remove them, and return the totals.

    Call it in the block of prepare_run(), after all of `run.pending` are made. records: of these shards. None if shards
    of other processes are missing or were made by another plan, or if another process merges now. If another process
    has merged, only the totals are returned. A damaged shard of another process is made again here. Raises
    ResumeRefused if the plan in the folder is no longer the plan of this run, or if an input has changed its size
    during the run, OutputExists if the output was made from something else meanwhile, RunInProgress if another run took
    the lock, and the errors of make_shard().
    """
    try:
        return _merge_shares(run, records)
    except (OSError, RunInProgress, ResumeRefused):
        if run.options.share.count > 1 and (totals := _complete_output(run.options, run.plan.identity)) is not None:
            return totals  # another process has merged meanwhile, and has removed the folder of the shards
        raise


def _merge_shares(run: PreprocessRun, records: Sequence[ShardRecord]) -> Totals | None:
    """Merge all shards as merge_if_complete() says. Raise OSError, RunInProgress or ResumeRefused also if another
    process removes the folder of the shards meanwhile.
    """
    run.lock.verify()
    _verify_plan(run)
    by_index = run.finished | {record.index: record for record in records}
    if run.options.share.count > 1:
        for chunk in run.plan.chunks:
            if chunk.index not in by_index:
                if (record := _record_of_another_share(run.settings, chunk)) is None:
                    return None
                by_index[chunk.index] = record
        try:
            with run_lock(f"{run.settings.folder}/merge.lock"):
                return _complete_output(run.options, run.plan.identity) or _merge(run, by_index)
        except RunInProgress:
            return None
    return _merge(run, by_index)


def _verify_plan(run: PreprocessRun) -> None:
    """Raise ResumeRefused if the plan in the folder is not the plan that this run follows."""
    path = _plan_path(run.options)
    try:
        content = storage.read_bytes(path)
    except FileNotFoundError:
        content = b""
    if xxhash.xxh3_128_hexdigest(content) != run.settings.plan_xxh3:
        raise ResumeRefused(f"{path}: the plan was removed or replaced during this run; start again")


def _record_of_another_share(settings: ShardSettings, chunk: TextChunk) -> ShardRecord | None:
    """Return the record of a shard that another process has finished; None if it has not, or has followed another plan.

    If the record or the files are incomplete, as after a power cut, the shard is made again here.
    """
    path = record_path(settings.folder, chunk.index)
    if not storage.exists(path):
        return None
    try:
        record = shard_record_decoder.decode(storage.read_bytes(path))
    except UNREADABLE:
        return make_shard(settings, chunk)
    if record.plan_xxh3 != settings.plan_xxh3:
        return None
    return record if is_shard_intact(settings, record) else make_shard(settings, chunk)


def _merge(run: PreprocessRun, by_index: dict[int, ShardRecord]) -> Totals:
    """Merge the shards into one dataset for each JSON key, write the run's record and the lists of documents that were
    left out, remove the folder of the shards, and return the totals.

    by_index: the record of every chunk of the run, by its index. Raises ResumeRefused if an input has changed its size,
    and OSError if storage fails.
    """
    options, settings = run.options, run.settings
    for source in settings.sources:
        if storage.size_of(source.path) != source.size_bytes:
            raise ResumeRefused(f"{source.path}: changed while it was read; remove {settings.folder} and start again")
    shards = [(chunk, by_index[chunk.index]) for chunk in run.plan.chunks]
    complete_shards = complete_documents(shards)
    headers = [
        merge_key(
            options.output_prefix, settings.folder, key, name, settings.tokenizer.vocabulary_size, complete_shards
        )
        for key, name in enumerate(settings.keys)
    ]
    totals = Totals(
        documents=sum(record.written_documents for _, record in complete_shards),
        tokens=sum(totals.tokens for _, record in complete_shards for totals in record.keys),
        fault_counts=fault_counts(shards),
    )
    _write_left_out(run, shards)
    sequences = {name: header.sequences for name, header in zip(settings.keys, headers, strict=True)}
    with storage.atomic_file(run_record_path(options.output_prefix), durable=True, staging=settings.folder) as file:
        storage.write_all(
            file, msgspec.json.format(msgspec.json.encode(_run_record(run, shards, totals, sequences)), indent=1)
        )
    storage.remove_folder(settings.folder)
    return totals


def _run_record(
    run: PreprocessRun, shards: Sequence[tuple[TextChunk, ShardRecord]], totals: Totals, sequences: dict[str, int]
) -> dict[str, Any]:
    """Return the record of a run as a dict for msgspec.json.encode(): identity, totals, inputs, tokenizer and versions.

    shards: all chunks in the order of the input, with their records. sequences: the number of sequences in each
    dataset, by key.
    """
    tokenizer = run.settings.tokenizer
    padded = -(-tokenizer.vocabulary_size // PADDING_MULTIPLE) * PADDING_MULTIPLE
    return {
        "identity": run.plan.identity,
        "totals": totals,
        "sequences": sequences,
        "inputs": input_entries(run.settings.sources, shards),
        "tokenizer": {
            "type": run.options.tokenizer.kind.value,
            "engine": tokenizer.engine.value,
            "engine_reason": run.plan.engine_reason,
            "vocabulary": tokenizer.vocabulary_size,
            "padded_vocabulary": padded,
            "eod": tokenizer.eod,
            "eod_text": tokenizer.eod_text,
        },
        "versions": versions(),
        "on_error": run.options.on_error.value,
    }


def _write_left_out(run: PreprocessRun, shards: Sequence[tuple[TextChunk, ShardRecord]]) -> None:
    """Write the list of faults and, with --on-error quarantine, the raw lines of faulty documents, beside the output.

    shards: all chunks in the order of the input, with their records. A list that would be empty is not written, and
    that of an earlier run with the same prefix is removed.
    """
    settings = run.settings
    faults_path, rejected_path = _left_out_paths(run.options.output_prefix)
    if not any(record.faults for _, record in shards):
        storage.remove(faults_path)
    else:
        with storage.atomic_file(faults_path, durable=True, staging=settings.folder) as file:
            for source, line, fault in located_faults(settings.sources, shards):
                entry = {"file": source.path, "line": line, "reason": fault.reason.value, "detail": fault.detail}
                storage.write_all(file, msgspec.json.encode(entry) + b"\n")
    keeps_rejected = run.options.on_error is OnError.QUARANTINE  # otherwise only shards of an earlier start have them
    if not keeps_rejected or not any(record.has_rejected_lines for _, record in shards):
        storage.remove(rejected_path)
    else:
        with storage.atomic_file(rejected_path, durable=True, staging=settings.folder) as file:
            for _, record in shards:
                if record.has_rejected_lines:
                    path = shard_path(settings.folder, record.index, "rejected")
                    storage.append_first_bytes(path, storage.size_of(path), file)
