"""Documents of JSON lines: the texts of the asked keys, and every line that holds none with its fault.

A fast reader takes a whole block of lines. If it refuses the block, a slow one takes it line by line, so that a fault
gets its line. Both accept what Python's `json` accepts, since that is what Megatron's own scripts read with.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from turnout.preprocess.model import DocumentFault, FaultReason, RejectedDocument

PARAGRAPH_BREAK = "\n\n"  # joins a list of texts. Source: lm_dataformat 0.0.20, `handle_jsonl`
MAX_DETAIL_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of one block of input."""

    texts: tuple[Sequence[str], ...]  # for each key the texts of all documents, in order; equal lengths
    rejected: tuple[RejectedDocument, ...]
    lines: int  # lines in the block, empty ones included, >= 0
    line_numbers: Sequence[int]  # of each document within its piece, from 1


class LineReader:
    """A reader of JSON lines for fixed keys."""

    def __init__(self, keys: Sequence[str], max_document_bytes: int) -> None:
        fields: list[Any] = [
            (f"text_{position}", str | list[str], msgspec.field(name=key)) for position, key in enumerate(keys)
        ]
        self._keys = tuple(keys)
        self._decoder = msgspec.json.Decoder(msgspec.defstruct("Record", fields))
        self._max_document_bytes = max_document_bytes

    def read(self, raw: bytes, piece: int = 0, lines_before: int = 0) -> Documents:
        """Return the documents of whole lines.

        raw: lines, the last with or without its newline. piece, lines_before: where a fault is reported.
        Empty lines are no documents and no faults. Raises nothing.
        """
        lines = _newlines(raw) + (not raw.endswith(b"\n") and bool(raw))
        if len(raw) <= self._max_document_bytes:
            try:
                records = self._decoder.decode_lines(raw)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass
            else:
                columns = tuple(
                    [_joined(getattr(record, f"text_{position}")) for record in records]
                    for position in range(len(self._keys))
                )
                return Documents(columns, (), lines, _line_numbers(raw, lines, len(records), lines_before))
        return self._read_line_by_line(raw, piece, lines_before, lines)

    def _read_line_by_line(self, raw: bytes, piece: int, lines_before: int, lines: int) -> Documents:
        """Read each line by itself, so that a bad line is rejected alone.

        piece: number of the piece of input. lines_before: lines of the piece before `raw`. lines: lines in `raw`.
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
                rejected.append(RejectedDocument(fault, line[: self._max_document_bytes]))
        return Documents(columns, tuple(rejected), lines, numbers)

    def _read_line(self, line: bytes) -> tuple[str, ...] | DocumentFault:
        """Return the texts of one JSON line, one for each key, or why the line is rejected."""
        if len(line) > self._max_document_bytes:
            return _fault(FaultReason.DOCUMENT_TOO_LONG, f"{len(line)} bytes, the limit is {self._max_document_bytes}")
        try:
            record = self._decoder.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return self._read_as_python_does(line, str(error))
        return tuple(_joined(getattr(record, f"text_{position}")) for position in range(len(self._keys)))

    def _read_as_python_does(self, line: bytes, refusal: str) -> tuple[str, ...] | DocumentFault:
        """Say what is wrong with a line, or take it: `json` also reads NaN.

        refusal: of the fast reader, which names the byte at fault.
        """
        try:
            value = json.loads(line.decode())
        except UnicodeDecodeError as error:
            return _fault(FaultReason.BAD_UTF8, str(error))
        except (ValueError, RecursionError):
            return _fault(FaultReason.BAD_JSON, refusal)
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
            if has_half_surrogate(text):
                return _fault(FaultReason.BAD_UNICODE, f"field {key!r} has half of a surrogate pair")
            texts.append(text)
        return tuple(texts)


def read_text(raw: bytes, piece: int, number: int) -> Documents:
    """Return a whole block as one document. number: of the document within its piece, from 1."""
    try:
        return Documents(([raw.decode()],), (), 1, (number,))
    except UnicodeDecodeError as error:
        fault = DocumentFault(FaultReason.BAD_UTF8, piece, number, str(error)[:MAX_DETAIL_CHARACTERS])
        return Documents(([],), (RejectedDocument(fault, raw),), 1, ())


def has_half_surrogate(text: str) -> bool:
    """Return True if a text cannot be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _newlines(raw: bytes) -> int:
    """Return the number of newlines, four times as fast as `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(raw, np.uint8) == ord("\n"))) if raw else 0


def _line_numbers(raw: bytes, lines: int, documents: int, lines_before: int) -> Sequence[int]:
    """Return the line of each document of a block without faults. Empty lines hold none."""
    if documents == lines:
        return range(lines_before + 1, lines_before + lines + 1)
    return [number for number, line in enumerate(raw.split(b"\n"), lines_before + 1) if line.strip()]


def _joined(text: str | list[str]) -> str:
    return text if type(text) is str else PARAGRAPH_BREAK.join(text)


def _fault(reason: FaultReason, detail: str) -> DocumentFault:
    return DocumentFault(reason, 0, 1, detail[:MAX_DETAIL_CHARACTERS])
