"""Turn one chunk into one shard: read, repair, tokenize, write. The same bytes always give the same shard.

A shard has one file for each key (all tokens, then the int32 lengths) and one record. The record is written last: a
shard without a record does not count. If a process ends before, its files are ignored and replaced later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import IO, Any

import msgspec
import numpy as np
import xxhash

from turnout.preprocess import archives, clean, storage
from turnout.preprocess.documents import Documents, LineReader, read_text, without_byte_order_mark
from turnout.preprocess.errors import BadDocument
from turnout.preprocess.indexed_dataset import dtype_for
from turnout.preprocess.model import (
    MAX_LISTED_FAULTS,
    DocumentFault,
    FaultReason,
    FaultyDocument,
    InputFile,
    InputFormat,
    KeyTotals,
    Piece,
    ShardRecord,
    TextChunk,
    TextPart,
)
from turnout.preprocess.options import OnError
from turnout.preprocess.sequences import Sequences, assemble
from turnout.preprocess.tokenizers.encoders import Encoder, get_encoder
from turnout.preprocess.tokenizers.settings import EncoderSettings

LINES_BYTES = 2 << 20  # lines that are decoded, tokenized and written at once, so that they fit a core's cache


class ShardSettings(msgspec.Struct, frozen=True):
    """Everything that a worker needs besides the chunk. Any machine that reaches inputs and storage can use it."""

    folder: str  # the folder of the shards, a path or a URL
    plan_xxh3: str  # the XXH3-128 of the plan's file, 32 hexadecimal digits; in the record of each shard
    sources: tuple[InputFile, ...]  # all input files, by their index
    keys: tuple[str, ...]  # fields that are read, one dataset each
    tokenizer: EncoderSettings
    append_eod: bool  # True if each document ends with the end-of-document token
    ftfy: bool  # True if texts are repaired first
    on_error: OnError  # the policy for faulty documents
    block_bytes: int  # bytes of lines of an archive that are handled at once, >= 1
    max_document_bytes: int  # raw bytes of one document, >= 1
    max_expansion: int  # decompressed bytes for each compressed byte of an archive, >= 1


def shard_path(folder: str, index: int, suffix: str) -> str:
    """Return the path of one file of a shard.

    folder: of the shards. index: of the shard's chunk. suffix: without the dot.
    """
    return f"{folder}/{index:08d}.{suffix}"


def record_path(folder: str, index: int) -> str:
    """Return the path of a shard's record. folder: of the shards. index: of the shard's chunk."""
    return shard_path(folder, index, "json")


def tokens_path(folder: str, index: int, key_index: int) -> str:
    """Return the path of a shard's file for one key.

    folder: of the shards. index: of the shard's chunk. key_index: the position of the key.
    """
    return shard_path(folder, index, f"{key_index}.tokens")


def make_shard(settings: ShardSettings, chunk: TextChunk) -> ShardRecord:
    """Write the shard of one chunk and return its record.

    Raises BadDocument at the first faulty document if `on_error` is STOP, OSError if storage fails, and the errors of
    get_encoder().
    """
    return _Shard(settings, chunk).write()


def input_digests(settings: ShardSettings, chunk: TextChunk) -> tuple[str, ...]:
    """Return the XXH3-128 of the current bytes of each piece of a chunk, 32 hexadecimal digits each.

    Raises OSError if an input is shorter now, or cannot be read.
    """
    return tuple(_digest(settings.sources[piece.source].path, piece.start, piece.end) for piece in chunk.pieces)


def is_shard_intact(settings: ShardSettings, record: ShardRecord) -> bool:
    """Return True if the files of a finished shard agree with its record in size and hash.

    Of the file with rejected lines only the existence is checked. After a power cut the files may be incomplete
    although the record exists. Raises OSError if storage fails.
    """
    itemsize = dtype_for(settings.tokenizer.vocabulary_size).itemsize
    for key_index, totals in enumerate(record.keys):
        path, size = (
            tokens_path(settings.folder, record.index, key_index),
            totals.tokens * itemsize + 4 * totals.sequences,
        )
        if not storage.exists(path) or storage.size_of(path) != size or _digest(path, 0, size) != totals.xxh3:
            return False
    return not record.has_rejected_lines or storage.exists(shard_path(settings.folder, record.index, "rejected"))


def _digest(path: str, start: int, end: int) -> str:
    """Return the XXH3-128 of a byte range of a file, 32 hexadecimal digits.

    start: the offset of the first byte. end: the offset after the last byte. Raises OSError if the file is shorter.
    """
    digest = xxhash.xxh3_128()
    for content in _contents(path, start, end):
        digest.update(content)
    return digest.hexdigest()


def _contents(path: str, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of a range of a file, at most COPY_BYTES at once.

    start: the offset of the first byte. end: the offset after the last byte. Raises OSError if the file is shorter.
    """
    while start < end:
        content = storage.read_range(path, start, min(end, start + storage.COPY_BYTES))
        yield content
        start += len(content)


class _Output:
    """The file of one key while it is written."""

    def __init__(self, file: IO[bytes]) -> None:
        """Take the open file, which is empty."""
        self._file, self._digest = file, xxhash.xxh3_128()
        self._lengths: list[Any] = []
        self.tokens = 0

    def append(self, tokens: Any, lengths: Any) -> None:
        """Write tokens of documents, and keep the numbers of tokens of these documents."""
        self.tokens += len(tokens)
        self._lengths.append(lengths)
        self._write(tokens)

    def finish(self) -> KeyTotals:
        """Write the lengths after all tokens, and return the counts and the digest of the file.

        The caller closes the file.
        """
        lengths = np.concatenate(self._lengths) if self._lengths else np.empty(0, "<i4")
        self._write(lengths)
        return KeyTotals(len(lengths), self.tokens, self._digest.hexdigest())

    def _write(self, values: Any) -> None:
        """Write an array to the file and add it to the digest."""
        if len(values):
            content = memoryview(values).cast("B")
            self._digest.update(content)
            storage.write_all(self._file, content)


class _Shard:
    """The shard of one chunk while it is made."""

    def __init__(self, settings: ShardSettings, chunk: TextChunk) -> None:
        """Load the tokenizer; nothing is read or written yet."""
        self._settings, self._chunk = settings, chunk
        self._encoder: Encoder = get_encoder(settings.tokenizer)
        self._reader = LineReader(settings.keys, settings.max_document_bytes)
        self._dtype = dtype_for(settings.tokenizer.vocabulary_size)
        self._digests: list[str] = []
        self._documents = self._written_documents = self._text_bytes = 0
        self._fault_counts: Counter[str] = Counter()
        self._faults: list[DocumentFault] = []
        self._rejected_file: IO[bytes] | None = None  # None before the first rejected line
        self._files = ExitStack()  # the open files of the shard, which appear when it is closed
        self._outputs: list[_Output] = []

    def write(self) -> ShardRecord:
        """Tokenize the chunk, write its files, and return the record, which is written last.

        Raises BadDocument at the first faulty document if `on_error` is STOP, OSError if storage fails.
        """
        settings, chunk = self._settings, self._chunk
        with self._files:
            for key_index in range(len(settings.keys)):
                path = tokens_path(settings.folder, chunk.index, key_index)
                self._outputs.append(_Output(self._files.enter_context(storage.atomic_file(path))))
            lines = tuple(self._append_piece(number, piece) for number, piece in enumerate(chunk.pieces))
            totals = tuple(output.finish() for output in self._outputs)
        record = ShardRecord(
            index=chunk.index,
            plan_xxh3=settings.plan_xxh3,
            input_xxh3=tuple(self._digests),
            documents=self._documents,
            written_documents=self._written_documents,
            text_bytes=self._text_bytes,
            lines=lines,
            keys=totals,
            fault_counts=dict(self._fault_counts),
            faults=tuple(self._faults),
            has_rejected_lines=self._rejected_file is not None,
        )
        with storage.atomic_file(record_path(settings.folder, chunk.index)) as file:
            storage.write_all(file, msgspec.json.encode(record))
        return record

    def _append_piece(self, number: int, piece: Piece) -> int:
        """Write the documents of a piece, and return how many lines it has.

        number: the index of the piece in its chunk. Of a part of a long document only the last one has a line. For a
        format without lines the number of documents is returned.
        """
        source = self._settings.sources[piece.source]
        if source.input_format is not InputFormat.JSON_LINES:
            return self._append_archive(number, piece, source)
        raw = storage.read_range(source.path, piece.start, piece.end)
        self._digests.append(xxhash.xxh3_128_hexdigest(raw))
        if self._chunk.part is not None:
            self._append_part(raw, piece, self._chunk.part)
            return 1 if self._chunk.part.is_last else 0
        if not piece.start:
            raw = without_byte_order_mark(raw)
        lines = 0
        for block in _blocks(raw):
            documents = self._reader.read(block, number, lines)
            self._append_documents(documents, number)
            lines += documents.lines
        return lines

    def _append_archive(self, number: int, piece: Piece, source: InputFile) -> int:
        """Write the documents of an archive, and return its number of lines, or of documents for a format without
        lines.

        number: the index of the piece in its chunk. source: the archive. A fault in the archive rejects its rest.
        """
        settings, lines = self._settings, 0
        limits = archives.ArchiveLimits(settings.block_bytes, settings.max_document_bytes, settings.max_expansion)
        with storage.open_input(source.path) as file:
            try:
                for block in archives.blocks(file, source.input_format, source.size_bytes, limits):
                    if block.is_text:
                        documents = read_text(block.raw, number, lines + 1)
                    else:
                        documents = self._reader.read(block.raw, number, lines)
                    self._append_documents(documents, number)
                    lines += documents.lines
            except archives.ArchiveFault as error:
                self._reject([FaultyDocument(DocumentFault(error.reason, number, lines + 1, str(error)[:200]), b"")])
        self._digests.append(_digest(source.path, 0, source.size_bytes))
        return lines

    def _append_documents(self, documents: Documents, piece: int) -> None:
        """Tokenize documents for all keys, and reject those that cannot be tokenized.

        piece: the index of the piece in its chunk. Raises BadDocument at the first fault if `on_error` is STOP.
        """
        self._reject(documents.rejected)
        eod = self._settings.tokenizer.eod if self._settings.append_eod else None
        count = len(documents.texts[0])
        faults: dict[int, FaultReason] = {}
        unwritten = set(range(count))  # positions of documents of which no key has tokens
        for output, texts in zip(self._outputs, documents.texts, strict=True):
            sequences = self._append(output, texts, eod)
            faults |= _faults_of(sequences)
            unwritten &= {*sequences.empty, *sequences.out_of_range, *sequences.too_long}
        self._documents += count - len(faults)
        self._written_documents += count - len(unwritten)
        for position, reason in sorted(faults.items()):
            self._reject([FaultyDocument(DocumentFault(reason, piece, documents.line_numbers[position]), b"")])

    def _append(self, output: _Output, texts: Sequence[str], eod: int | None) -> Sequences:
        """Repair, tokenize and write texts, and return the sequences that were written.

        output: the file of one key. eod: the token that ends each text, None for none.
        """
        if self._settings.ftfy:
            texts = clean.repair(texts)
        sequences = assemble(self._encoder.encode(texts), self._settings.tokenizer.vocabulary_size, self._dtype, eod)
        # The encoder has stored the UTF-8 of each text in its string, so encoding it again only copies it.
        self._text_bytes += sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
        output.append(sequences.tokens, sequences.lengths)
        return sequences

    def _append_part(self, raw: bytes, piece: Piece, part: TextPart) -> None:
        """Tokenize and write one part of a long document. Only its last part gets the end-of-document token.

        raw: the bytes of the piece. A part that is not valid text is rejected.
        """
        text = raw[max(0, part.text_start - piece.start) : max(0, part.text_end - piece.start)]
        try:
            value: str = msgspec.json.decode(b'"' + text + b'"', type=str)
        except UnicodeDecodeError as error:
            return self._reject([FaultyDocument(DocumentFault(FaultReason.BAD_UTF8, 0, 1, str(error)[:200]), raw)])
        except msgspec.MsgspecError as error:
            return self._reject([FaultyDocument(DocumentFault(FaultReason.BAD_JSON, 0, 1, str(error)[:200]), raw)])
        eod = self._settings.tokenizer.eod if self._settings.append_eod and part.is_last else None
        for reason in _faults_of(self._append(self._outputs[0], [value], eod)).values():
            self._reject([FaultyDocument(DocumentFault(reason, 0, 1), raw)])
        self._documents += part.is_last
        self._written_documents += part.is_last  # the merge leaves the document out if a part has a fault
        return None

    def _reject(self, rejected: Sequence[FaultyDocument]) -> None:
        """Count and list faulty documents, and with --on-error quarantine write their raw bytes.

        Raises BadDocument for the first one if --on-error is `stop`, OSError if storage fails.
        """
        raw_lines = []
        for fault, raw in rejected:
            if self._settings.on_error is OnError.STOP:
                raise BadDocument(describe(self._settings, self._chunk, fault))
            self._fault_counts[fault.reason.value] += 1
            if len(self._faults) < MAX_LISTED_FAULTS:
                self._faults.append(fault)
            if self._settings.on_error is OnError.QUARANTINE and raw:
                raw_lines.append(raw if raw.endswith(b"\n") else raw + b"\n")
        if not raw_lines:
            return
        if self._rejected_file is None:
            path = shard_path(self._settings.folder, self._chunk.index, "rejected")
            self._rejected_file = self._files.enter_context(storage.atomic_file(path))
        storage.write_all(self._rejected_file, b"".join(raw_lines))


def _faults_of(sequences: Sequences) -> dict[int, FaultReason]:
    """Return position -> reason of the documents that cannot be tokenized."""
    return dict.fromkeys(sequences.too_long, FaultReason.DOCUMENT_TOO_LONG) | dict.fromkeys(
        sequences.out_of_range, FaultReason.TOKEN_OUT_OF_RANGE
    )


def _blocks(raw: bytes) -> Iterator[bytes]:
    """Yield the bytes of a piece in blocks of whole lines, LINES_BYTES or a little more each."""
    start = 0
    while start < len(raw):
        end = raw.find(b"\n", start + LINES_BYTES) + 1 or len(raw)
        yield raw[start:end]
        start = end


def describe(settings: ShardSettings, chunk: TextChunk, fault: DocumentFault) -> str:
    """Return a text about a fault: file, line in the file, reason and detail.

    The file is read up to the fault's piece, to count lines. In a format without lines, documents count as lines.
    Raises OSError.
    """
    piece = chunk.pieces[fault.piece]
    source = settings.sources[piece.source]
    line = fault.line + _lines_before(source, piece.start)
    detail = f" ({fault.detail})" if fault.detail else ""
    return f"{source.path}, line {line}: {fault.reason.value}{detail}"


def _lines_before(source: InputFile, offset: int) -> int:
    """Return the number of lines of a file that end before a byte offset."""
    return sum(content.count(b"\n") for content in _contents(source.path, 0, offset))
