"""The nouns of preprocessing: which bytes a worker reads, what was wrong with a document, and what a shard holds."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec


class Form(Enum):
    """How the bytes of an input file hold documents. Source: DL-69; lm_dataformat 0.0.20, `Reader._stream_data`"""

    JSON_LINES = "jsonl"  # a JSON object in each line
    GZIP_JSON_LINES = "jsonl.gz"  # the same behind gzip
    ZSTD_JSON_LINES = "jsonl.zst"  # the same behind Zstandard
    ZSTD_JSON_ARRAY = "json.zst"  # one JSON array of texts behind Zstandard
    TAR_ZSTD_JSON_LINES = "jsonl.zst.tar"  # a tar of jsonl.zst members
    TEXT = "txt"  # the whole file is one document
    ZIP_TEXT = "zip"  # each member is one document
    TAR_GZIP_TEXT = "tar.gz"  # each regular member is one document
    ZSTD_TEXTS = "dat.zst"  # 16 decimal digits of length, then the document, again and again

    @property
    def is_splittable(self) -> bool:
        """True if a reader may begin at any line of the file."""
        return self is Form.JSON_LINES

    @property
    def has_fields(self) -> bool:
        """True if each document is a JSON object, so that keys name its texts."""
        return self in (Form.JSON_LINES, Form.GZIP_JSON_LINES, Form.ZSTD_JSON_LINES, Form.TAR_ZSTD_JSON_LINES)


class FaultReason(Enum):
    """Why a document was not taken. The same word is in the log, in the faults' file and in the run's record."""

    BAD_JSON = "bad_json"  # the line is not one JSON value
    MISSING_KEY = "missing_key"  # the object lacks a key that was asked for
    NOT_TEXT = "not_text"  # the line is no object, or the key's value is neither a text nor a list of texts
    BAD_UTF8 = "bad_utf8"  # bytes that are not UTF-8
    BAD_UNICODE = "bad_unicode"  # an escaped half of a surrogate pair
    DOCUMENT_TOO_LONG = "document_too_long"  # more bytes than --max-document-bytes
    TOKEN_OUT_OF_RANGE = "token_out_of_range"  # noqa: S105 - no password; the tokenizer gave an id beyond its own vocabulary
    BAD_ARCHIVE = "bad_archive"  # the archive cannot be decompressed from here on
    TRUNCATED_ARCHIVE = "truncated_archive"  # the archive ends in the middle
    EXPANSION_LIMIT = "expansion_limit"  # the archive grows beyond --max-expansion times its size


class Piece(msgspec.Struct, frozen=True):
    """A range of bytes of one input file, which begins and ends at a line's border unless the chunk is a text part."""

    source: int  # index of the file among the run's inputs, >= 0
    start: int  # bytes, >= 0
    end: int  # bytes, > start; the file's size for an archive


class TextPart(msgspec.Struct, frozen=True):
    """Which part of one long document a chunk is. The parts of a document are chunks that follow each other."""

    position: int  # 0 for the first part
    count: int  # parts of this document, >= 2
    text_start: int  # bytes, where the document's text begins in the file, behind its quote
    text_end: int  # bytes, where the text ends in the file, before its quote

    @property
    def is_last(self) -> bool:
        """True if the document ends with this part."""
        return self.position == self.count - 1


class TextChunk(msgspec.Struct, frozen=True):
    """The bytes that one worker turns into one shard."""

    index: int  # place in the order of the input, >= 0
    pieces: tuple[Piece, ...]  # one or more; exactly one for a text part
    part: TextPart | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes that are read from the inputs."""
        return sum(piece.end - piece.start for piece in self.pieces)


class InputFile(msgspec.Struct, frozen=True):
    """An input file as it was when the run was planned."""

    path: str
    form: Form
    size_bytes: int  # >= 0


class DocumentFault(msgspec.Struct, frozen=True):
    """One document that was not taken."""

    reason: FaultReason
    piece: int  # which piece of the chunk, >= 0
    line: int  # within the piece, from 1; the number of the document where the form has no lines
    detail: str = ""  # at most 200 characters


class KeyTotals(msgspec.Struct, frozen=True):
    """The contents of one shard for one key."""

    sequences: int  # >= 0
    tokens: int  # >= 0
    xxh3: str  # of the shard's file, 32 hexadecimal digits


class ShardNote(msgspec.Struct, frozen=True):
    """The account of one chunk that was done. A shard counts as finished when its record exists."""

    index: int  # of the chunk
    input_xxh3: tuple[str, ...]  # of the bytes of each piece, 32 hexadecimal digits each
    documents: int  # documents taken, empty ones included, >= 0
    text_bytes: int  # bytes of UTF-8 that were tokenized, all keys together, >= 0
    lines: tuple[int, ...]  # lines, or documents where the form has none, in each piece
    keys: tuple[KeyTotals, ...]  # in the order of the run's keys
    fault_counts: dict[str, int]  # by FaultReason; every fault is counted
    faults: tuple[DocumentFault, ...]  # the first MAX_LISTED_FAULTS of them
    has_rejected_lines: bool = False  # the raw lines of faulty documents lie beside the shard


shard_notes = msgspec.json.Decoder(ShardNote)


class RejectedDocument(NamedTuple):
    """A faulty document with its raw bytes, as `--on-error quarantine` keeps it."""

    fault: DocumentFault
    raw: bytes


MAX_LISTED_FAULTS = 1000  # of one shard: about 100 kB of JSON
