"""Turn one chunk into one shard: read, repair, tokenize, write. The same bytes always give the same shard.

A shard is a file for each key, tokens first and then int32 lengths, and a record. The record is written last: a shard
without one does not count. A process that ends on the way leaves at most files that nobody reads.
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
from turnout.preprocess.documents import Documents, LineReader, read_text
from turnout.preprocess.errors import BadDocument
from turnout.preprocess.indexed_dataset import dtype_for
from turnout.preprocess.model import (
    MAX_LISTED_FAULTS,
    DocumentFault,
    FaultReason,
    Form,
    InputFile,
    KeyTotals,
    Piece,
    RejectedDocument,
    ShardNote,
    TextChunk,
    TextPart,
)
from turnout.preprocess.options import OnError
from turnout.preprocess.sequences import assemble
from turnout.preprocess.tokenizers.encoders import Encoder, encoder
from turnout.preprocess.tokenizers.settings import EncoderSettings

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Lines that are decoded, tokenized and written at once: few enough for the cache of a core, and for its memory.
LINES_BYTES = 2 << 20


class ShardSettings(msgspec.Struct, frozen=True):
    """All that a worker needs besides the chunk: it can be sent to any machine that reaches inputs and storage."""

    folder: str  # of the shards, a path or a URL
    sources: tuple[InputFile, ...]
    keys: tuple[str, ...]
    tokenizer: EncoderSettings
    append_eod: bool
    ftfy: bool
    on_error: OnError
    block_bytes: int  # lines of an archive that are handled at once, >= 1
    max_document_bytes: int
    max_expansion: int


def shard_path(folder: str, index: int, suffix: str) -> str:
    """Return the name of one file of a shard."""
    return f"{folder}/{index:08d}.{suffix}"


def record_path(folder: str, index: int) -> str:
    """Return the name of a shard's record."""
    return shard_path(folder, index, "json")


def tokens_path(folder: str, index: int, key: int) -> str:
    """Return the name of the file of one key, which is given by its position."""
    return shard_path(folder, index, f"{key}.tokens")


def process(settings: ShardSettings, chunk: TextChunk) -> ShardNote:
    """Write the shard of one chunk and return its record.

    Raises BadDocument at the first fault if the run is to stop at faults, OSError if storage fails.
    """
    return _Shard(settings, chunk).write()


def input_digests(settings: ShardSettings, chunk: TextChunk) -> tuple[str, ...]:
    """Return the hash of each piece of a chunk as the inputs are now. Raises OSError if one has become shorter."""
    return tuple(_digest(settings.sources[piece.source].path, piece.start, piece.end) for piece in chunk.pieces)


def has_whole_shard(settings: ShardSettings, record: ShardNote) -> bool:
    """Return True if the files of a finished shard hold what its record says. A power cut can tear them."""
    itemsize = dtype_for(settings.tokenizer.size).itemsize
    for key, totals in enumerate(record.keys):
        path, size = tokens_path(settings.folder, record.index, key), totals.tokens * itemsize + 4 * totals.sequences
        if not storage.exists(path) or storage.size_of(path) != size or _digest(path, 0, size) != totals.xxh3:
            return False
    return not record.has_rejected_lines or storage.exists(shard_path(settings.folder, record.index, "rejected"))


def _digest(path: str, start: int, end: int) -> str:
    """Return the xxh3 digest of a byte range of a file, in hexadecimal."""
    digest = xxhash.xxh3_128()
    for content in _contents(path, start, end):
        digest.update(content)
    return digest.hexdigest()


def _contents(path: str, start: int, end: int) -> Iterator[bytes]:
    """Yield a range of a file, a bounded number of bytes at once."""
    while start < end:
        content = storage.read_range(path, start, min(end, start + storage.COPY_BYTES))
        yield content
        start += len(content)


class _Output:
    """The file of one key while it is written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest = file, xxhash.xxh3_128()
        self._lengths: list[Any] = []
        self.tokens = 0

    def append(self, tokens: Any, lengths: Any) -> None:
        self.tokens += len(tokens)
        self._lengths.append(lengths)
        self._write(tokens)

    def finish(self) -> KeyTotals:
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
    """One chunk on its way to its shard."""

    def __init__(self, settings: ShardSettings, chunk: TextChunk) -> None:
        self._settings, self._chunk = settings, chunk
        self._encoder: Encoder = encoder(settings.tokenizer)
        self._reader = LineReader(settings.keys, settings.max_document_bytes)
        self._dtype = dtype_for(settings.tokenizer.size)
        self._digests: list[str] = []
        self._documents = self._text_bytes = 0
        self._fault_counts: Counter[str] = Counter()
        self._faults: list[DocumentFault] = []
        self._rejected: list[bytes] = []
        self._outputs: list[_Output] = []

    def write(self) -> ShardNote:
        """Tokenize a chunk and write its shard.

        The note is written last and returned; a shard without it is done again.
        """
        settings, chunk = self._settings, self._chunk
        with ExitStack() as files:
            for key in range(len(settings.keys)):
                path = tokens_path(settings.folder, chunk.index, key)
                self._outputs.append(_Output(files.enter_context(storage.whole_file(path))))
            lines = tuple(self._append_piece(number, piece) for number, piece in enumerate(chunk.pieces))
            totals = tuple(output.finish() for output in self._outputs)
        if self._rejected:
            with storage.whole_file(shard_path(settings.folder, chunk.index, "rejected")) as file:
                storage.write_all(file, b"".join(self._rejected))
        record = ShardNote(
            index=chunk.index,
            input_xxh3=tuple(self._digests),
            documents=self._documents,
            text_bytes=self._text_bytes,
            lines=lines,
            keys=totals,
            fault_counts=dict(self._fault_counts),
            faults=tuple(self._faults),
            has_rejected_lines=bool(self._rejected),
        )
        with storage.whole_file(record_path(settings.folder, chunk.index)) as file:
            storage.write_all(file, msgspec.json.encode(record))
        return record

    def _append_piece(self, number: int, piece: Piece) -> int:
        """Write a piece's documents, and return how many lines it has."""
        source = self._settings.sources[piece.source]
        if source.form is not Form.JSON_LINES:
            return self._append_archive(number, piece, source)
        raw = storage.read_range(source.path, piece.start, piece.end)
        self._digests.append(xxhash.xxh3_128_hexdigest(raw))
        if self._chunk.part is not None:
            self._append_part(raw, piece, self._chunk.part)
            return 1 if self._chunk.part.is_last else 0
        if not piece.start and raw.startswith(BYTE_ORDER_MARK):
            raw = raw[len(BYTE_ORDER_MARK) :]
        lines = 0
        for block in _blocks(raw):
            documents = self._reader.read(block, number, lines)
            self._append_documents(documents, number)
            lines += documents.lines
        return lines

    def _append_archive(self, number: int, piece: Piece, source: InputFile) -> int:
        """Tokenize all documents of an archive and return its number of lines.

        A fault in the archive rejects its rest. number: of the piece.
        """
        settings, lines = self._settings, 0
        limits = archives.ArchiveLimits(settings.block_bytes, settings.max_document_bytes, settings.max_expansion)
        with storage.open_input(source.path) as file:
            try:
                for block in archives.blocks(file, source.form, source.size_bytes, limits):
                    if block.is_text:
                        documents = read_text(block.raw, number, lines + 1)
                    else:
                        documents = self._reader.read(block.raw, number, lines)
                    self._append_documents(documents, number)
                    lines += documents.lines
            except archives.ArchiveFault as error:
                self._reject([RejectedDocument(DocumentFault(error.reason, number, lines + 1, str(error)[:200]), b"")])
        self._digests.append(_digest(source.path, 0, source.size_bytes))
        return lines

    def _append_documents(self, documents: Documents, piece: int) -> None:
        """Tokenize documents and reject those that cannot be tokenized. piece: number of the piece they come from."""
        self._reject(documents.rejected)
        eod = self._settings.tokenizer.eod if self._settings.append_eod else None
        left_out: dict[int, FaultReason] = {}
        for output, texts in zip(self._outputs, documents.texts, strict=True):
            left_out |= self._append(output, texts, eod)
        self._documents += len(documents.texts[0]) - len(left_out)
        for position, reason in sorted(left_out.items()):
            self._reject([RejectedDocument(DocumentFault(reason, piece, documents.line_numbers[position]), b"")])

    def _append(self, output: _Output, texts: Sequence[str], eod: int | None) -> dict[int, FaultReason]:
        """Tokenize texts into the output, and return the positions of those that were left out, with the reason."""
        if self._settings.ftfy:
            texts = clean.repair(texts)
        sequences = assemble(self._encoder.encode(texts), self._settings.tokenizer.size, self._dtype, eod)
        # After the encoder: it leaves the UTF-8 of a text in the string, and a second encoding only copies it.
        self._text_bytes += sum(len(text) if text.isascii() else len(text.encode()) for text in texts)
        output.append(sequences.tokens, sequences.lengths)
        return dict.fromkeys(sequences.too_long, FaultReason.DOCUMENT_TOO_LONG) | dict.fromkeys(
            sequences.out_of_range, FaultReason.TOKEN_OUT_OF_RANGE
        )

    def _append_part(self, raw: bytes, piece: Piece, part: TextPart) -> None:
        """Tokenize one part of a long document. Only the last part ends it, with the end-of-document token."""
        text = raw[max(0, part.text_start - piece.start) : max(0, part.text_end - piece.start)]
        try:
            value: str = msgspec.json.decode(b'"' + text + b'"', type=str)
        except UnicodeDecodeError as error:
            return self._reject([RejectedDocument(DocumentFault(FaultReason.BAD_UTF8, 0, 1, str(error)[:200]), raw)])
        except msgspec.MsgspecError as error:
            return self._reject([RejectedDocument(DocumentFault(FaultReason.BAD_JSON, 0, 1, str(error)[:200]), raw)])
        eod = self._settings.tokenizer.eod if self._settings.append_eod and part.is_last else None
        for reason in self._append(self._outputs[0], [value], eod).values():
            self._reject([RejectedDocument(DocumentFault(reason, 0, 1), raw)])
        self._documents += part.is_last
        return None

    def _reject(self, rejected: Sequence[RejectedDocument]) -> None:
        """Handle faulty documents as --on-error says. Raises BadDocument if the run stops at the first one."""
        for fault, raw in rejected:
            if self._settings.on_error is OnError.STOP:
                raise BadDocument(describe(self._settings, self._chunk, fault))
            self._fault_counts[fault.reason.value] += 1
            if len(self._faults) < MAX_LISTED_FAULTS:
                self._faults.append(fault)
            if self._settings.on_error is OnError.QUARANTINE and raw:
                self._rejected.append(raw if raw.endswith(b"\n") else raw + b"\n")


def _blocks(raw: bytes) -> Iterator[bytes]:
    """Yield the lines of a piece in blocks of about LINES_BYTES."""
    start = 0
    while start < len(raw):
        end = raw.find(b"\n", start + LINES_BYTES) + 1 or len(raw)
        yield raw[start:end]
        start = end


def describe(settings: ShardSettings, chunk: TextChunk, fault: DocumentFault) -> str:
    """Say where a fault is and what it is: file, line, reason."""
    piece = chunk.pieces[fault.piece]
    source = settings.sources[piece.source]
    line = fault.line + _lines_before(source, piece.start)
    detail = f" ({fault.detail})" if fault.detail else ""
    return f"{source.path}, line {line}: {fault.reason.value}{detail}"


def _lines_before(source: InputFile, offset: int) -> int:
    return sum(content.count(b"\n") for content in _contents(source.path, 0, offset))
