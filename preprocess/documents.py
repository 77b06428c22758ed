"""The documents in JSON lines: the texts of the requested keys, and a fault for every line without them.

A fast reader decodes a whole block of lines. If the block has a faulty line, a slow reader decodes line by line, so
that only the faulty lines are rejected. Both accept what Python's `json` accepts, because Megatron's own scripts use
it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from turnout.preprocess.model import UNREADABLE, DocumentFault, FaultReason, FaultyDocument

BYTE_ORDER_MARK = b"\xef\xbb\xbf"  # of UTF-8; some programs write it at the start of a file
PARAGRAPH_BREAK = "\n\n"  # between the texts of a list. Source: lm_dataformat 0.0.20, `handle_jsonl`
MAX_DETAIL_CHARACTERS = 200  # of the detail of a fault


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of one block of input."""

    texts: tuple[Sequence[str], ...]  # for each key the texts of all documents, in order; equal lengths
    rejected: tuple[FaultyDocument, ...]  # the faulty documents
    lines: int  # lines in the block, empty ones included, >= 0
    line_numbers: Sequence[int]  # the line of each document within its piece, from 1


class LineReader:
    """A reader of JSON lines for fixed keys."""

    def __init__(self, keys: Sequence[str], max_document_bytes: int) -> None:
        """Make a reader. keys: the fields to read. max_document_bytes: a longer line is a fault."""
        fields: list[Any] = [
            (f"text_{position}", str | list[str], msgspec.field(name=key)) for position, key in enumerate(keys)
        ]
        self._keys = tuple(keys)
        self._decoder = msgspec.json.Decoder(msgspec.defstruct("Record", fields))
        self._max_document_bytes = max_document_bytes

    def read(self, raw: bytes, piece: int = 0, lines_before: int = 0) -> Documents:
        """Return the documents of whole lines, and the rejected lines. Raises nothing.

        raw: lines, the last with or without its newline. piece: the index of the piece in its chunk, for faults.
        lines_before: the number of lines of the piece before `raw`, for line numbers. Empty lines are no documents.
        """
        lines = _count_newlines(raw) + (not raw.endswith(b"\n") and bool(raw))
        if len(raw) <= self._max_document_bytes:
            try:
                records = self._decoder.decode_lines(raw)
            except UNREADABLE:
                pass
            else:
                line_numbers = _line_numbers(raw, lines, len(records), lines_before)
                if len(line_numbers) == len(records):  # else a line has several objects, or an object several lines
                    columns = tuple(
                        [_join_paragraphs(getattr(record, f"text_{position}")) for record in records]
                        for position in range(len(self._keys))
                    )
                    return Documents(columns, (), lines, line_numbers)
        return self._read_line_by_line(raw, piece, lines_before, lines)

    def _read_line_by_line(self, raw: bytes, piece: int, lines_before: int, lines: int) -> Documents:
        """Return the documents of lines that are decoded one by one, so that only faulty lines are rejected.

        raw: the lines. piece: the index of the piece in its chunk. lines_before: the number of lines of the piece
        before `raw`. lines: the number of lines in `raw`.
        """
        columns: tuple[list[str], ...] = tuple([] for _ in self._keys)
        rejected, numbers = [], []
        for number, line in enumerate(raw.split(b"\n"), lines_before + 1):
            if not line.strip():
                continue
            texts = self._read_line(line)
            if isinstance(texts, tuple):
                numbers.append(number)
                for column, text in zip(columns, texts, strict=True):
                    column.append(text)
            else:
                fault = DocumentFault(texts.reason, piece, number, texts.detail)
                rejected.append(FaultyDocument(fault, line[: self._max_document_bytes]))
        return Documents(columns, tuple(rejected), lines, numbers)

    def _read_line(self, line: bytes) -> tuple[str, ...] | DocumentFault:
        """Return the texts of one JSON line, in the order of the keys, or the fault for which it is rejected.

        A text that is a list of paragraphs is joined with PARAGRAPH_BREAK. The caller adds the piece and the line
        number to the fault.
        """
        if len(line) > self._max_document_bytes:
            return _fault(FaultReason.DOCUMENT_TOO_LONG, f"{len(line)} bytes, the limit is {self._max_document_bytes}")
        try:
            record = self._decoder.decode(line)
        except UNREADABLE as error:
            return self._read_with_json_module(line, str(error))
        return tuple(_join_paragraphs(getattr(record, f"text_{position}")) for position in range(len(self._keys)))

    def _read_with_json_module(self, line: bytes, decoder_error: str) -> tuple[str, ...] | DocumentFault:
        """Return the texts of a line that Python's `json` accepts, such as one with NaN, or its fault without its
        place.

        decoder_error: the error text of the fast decoder, which names the byte at fault.
        """
        try:
            value = json.loads(line.decode())
        except UnicodeDecodeError as error:
            return _fault(FaultReason.BAD_UTF8, str(error))
        except (ValueError, RecursionError):
            return _fault(FaultReason.BAD_JSON, decoder_error)
        if not isinstance(value, dict):
            return _fault(FaultReason.NOT_TEXT, f"expected an object, got {type(value).__name__}")
        texts = []
        for key in self._keys:
            if key not in value:
                return _fault(FaultReason.MISSING_KEY, f"the object has no field {key!r}")
            text = value[key]
            if isinstance(text, list) and all(isinstance(part, str) for part in text):
                text = PARAGRAPH_BREAK.join(text)
            if not isinstance(text, str):
                return _fault(FaultReason.NOT_TEXT, f"field {key!r} is {type(text).__name__}")
            if has_lone_surrogate(text):
                return _fault(FaultReason.BAD_UNICODE, f"field {key!r} has half of a surrogate pair")
            texts.append(text)
        return tuple(texts)


def read_text(raw: bytes, piece: int, number: int) -> Documents:
    """Return a block as one document, or as one rejected document if it is not UTF-8.

    piece: the index of the piece in its chunk, for faults. number: of the document in the piece, from 1.
    """
    try:
        return Documents(([raw.decode()],), (), 1, (number,))
    except UnicodeDecodeError as error:
        fault = DocumentFault(FaultReason.BAD_UTF8, piece, number, str(error)[:MAX_DETAIL_CHARACTERS])
        return Documents(([],), (FaultyDocument(fault, raw),), 1, ())


def without_byte_order_mark(raw: bytes) -> bytes:
    """Return the start of a file, or a whole file, without the UTF-8 byte order mark (BOM) that it may begin with."""
    return raw.removeprefix(BYTE_ORDER_MARK)


def has_lone_surrogate(text: str) -> bool:
    """Return True if a text has a lone surrogate (half of a pair), so that it cannot be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _count_newlines(raw: bytes) -> int:
    """Return the number of newlines. This is four times as fast as `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(raw, np.uint8) == ord("\n"))) if raw else 0


def _line_numbers(raw: bytes, lines: int, documents: int, lines_before: int) -> Sequence[int]:
    """Return the line number of each line of a block that is not empty. `documents` only makes it faster.

    lines, documents: the numbers of lines and of documents in `raw`. lines_before: lines of the piece before `raw`.
    """
    if documents == lines:
        return range(lines_before + 1, lines_before + lines + 1)
    return [number for number, line in enumerate(raw.split(b"\n"), lines_before + 1) if line.strip()]


def _join_paragraphs(text: str | list[str]) -> str:
    """Return a text unchanged, and a list of texts joined by PARAGRAPH_BREAK."""
    return text if type(text) is str else PARAGRAPH_BREAK.join(text)


def _fault(reason: FaultReason, detail: str) -> DocumentFault:
    """Return a fault without its place, which the caller adds."""
    return DocumentFault(reason, 0, 1, detail[:MAX_DETAIL_CHARACTERS])
