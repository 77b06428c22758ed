"""The nouns of preprocessing: the bytes that a worker reads, the faults of documents, and the record of a shard.

Chunk: the work of one shard. Piece: a byte range of one file in a chunk. Part: a section of one very long document,
which is a chunk of its own. Block: the bytes that are handled at once.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import msgspec

# The errors of decoding JSON of a file: no JSON or the wrong type, no UTF-8, nested too deep.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class InputFormat(Enum):
    """The format of an input file. Source: DL-69; lm_dataformat 0.0.20, `Reader._stream_data`"""

    JSON_LINES = "jsonl"  # a JSON object in each line
    GZIP_JSON_LINES = "jsonl.gz"  # the same behind gzip
    ZSTD_JSON_LINES = "jsonl.zst"  # the same behind Zstandard
    ZSTD_JSON_ARRAY = "json.zst"  # one JSON array of texts behind Zstandard
    TAR_ZSTD_JSON_LINES = "jsonl.zst.tar"  # a tar of jsonl.zst members
    TEXT = "txt"  # the whole file is one document
    ZIP_TEXT = "zip"  # each member is one document
    TAR_GZIP_TEXT = "tar.gz"  # each regular member is one document
    ZSTD_TEXTS = "dat.zst"  # for each document 16 decimal digits, its length in bytes, then its bytes; behind Zstandard

    @property
    def is_splittable(self) -> bool:
        """True if a reader may begin at any line of the file."""
        return self is InputFormat.JSON_LINES

    @property
    def has_fields(self) -> bool:
        """True if each document is a JSON object, so that keys name its texts."""
        return self in (
            InputFormat.JSON_LINES,
            InputFormat.GZIP_JSON_LINES,
            InputFormat.ZSTD_JSON_LINES,
            InputFormat.TAR_ZSTD_JSON_LINES,
        )


class FaultReason(Enum):
    """Why a document was left out. The same word is in the log, in the list of faults and in the run's record."""

    BAD_JSON = "bad_json"  # the line is not one JSON value
    MISSING_KEY = "missing_key"  # the object has no field of a requested key
    NOT_TEXT = "not_text"  # the line is no object, or the key's value is neither a text nor a list of texts
    BAD_UTF8 = "bad_utf8"  # bytes that are not UTF-8
    BAD_UNICODE = "bad_unicode"  # an escaped half of a surrogate pair
    # More bytes than --max-document-bytes, or more tokens than a sequence of a dataset can have.
    DOCUMENT_TOO_LONG = "document_too_long"
    TOKEN_OUT_OF_RANGE = "token_out_of_range"  # noqa: S105 - no password; the tokenizer returned an id beyond its own vocabulary
    BAD_ARCHIVE = "bad_archive"  # the archive cannot be decompressed from here on
    TRUNCATED_ARCHIVE = "truncated_archive"  # the archive ends in the middle
    EXPANSION_LIMIT = "expansion_limit"  # the archive grows beyond 64 MiB and --max-expansion times its size


class Piece(msgspec.Struct, frozen=True):
    """A range of bytes of one input file. It begins and ends at the border of a line, except in a text part."""

    source: int  # the index of the file among the run's inputs, >= 0
    start: int  # the offset of the first byte, >= 0
    end: int  # the offset after the last byte, > start; the file's size for an archive


class TextPart(msgspec.Struct, frozen=True):
    """The position of a chunk in one long document. The parts of a document are consecutive chunks."""

    position: int  # 0 for the first part
    count: int  # the number of parts of the document, >= 2
    text_start: int  # the offset of the document's text in the file, after its opening quote
    text_end: int  # the offset of its closing quote

    @property
    def is_last(self) -> bool:
        """True if the document ends with this part."""
        return self.position == self.count - 1


class TextChunk(msgspec.Struct, frozen=True):
    """The bytes that one worker turns into one shard."""

    index: int  # its position in the order of the input, >= 0
    pieces: tuple[Piece, ...]  # one or more; exactly one for a text part
    part: TextPart | None = None  # None for a chunk of whole documents

    @property
    def size_bytes(self) -> int:
        """The number of bytes that are read from the inputs."""
        return sum(piece.end - piece.start for piece in self.pieces)


class InputFile(msgspec.Struct, frozen=True):
    """An input file as it was when the run was planned."""

    path: str  # a path or an fsspec URL
    input_format: InputFormat  # its format
    size_bytes: int  # >= 0


class DocumentFault(msgspec.Struct, frozen=True):
    """The fault of one document that was left out."""

    reason: FaultReason
    piece: int  # the index of the piece in its chunk, >= 0
    line: int  # the line in the piece, from 1; the number of the document if the format has no lines
    detail: str = ""  # at most 200 characters


class KeyTotals(msgspec.Struct, frozen=True):
    """The contents of one shard for one key."""

    sequences: int  # the number of sequences, >= 0
    tokens: int  # the number of tokens, >= 0
    xxh3: str  # the XXH3-128 of the shard's file, 32 hexadecimal digits


class ShardRecord(msgspec.Struct, frozen=True):
    """The record of the shard that was made from one chunk. A shard counts as finished when its record exists."""

    index: int  # the index of the chunk in the plan
    plan_xxh3: str  # the XXH3-128 of the file of this plan, 32 hexadecimal digits
    input_xxh3: tuple[str, ...]  # the XXH3-128 of the bytes of each piece, 32 hexadecimal digits each
    documents: int  # documents without a fault, also those without tokens, >= 0; for the progress of the run
    written_documents: int  # documents that have tokens of at least one key in the shard, >= 0
    text_bytes: int  # bytes of UTF-8 that were tokenized, all keys together, >= 0
    lines: tuple[int, ...]  # for each piece the number of lines, or of documents if the format has no lines
    keys: tuple[KeyTotals, ...]  # in the order of the run's keys
    fault_counts: dict[str, int]  # the number of faults by FaultReason; every fault is counted
    faults: tuple[DocumentFault, ...]  # the first MAX_LISTED_FAULTS faults
    has_rejected_lines: bool = False  # True if a file beside the shard has the raw lines of faulty documents


shard_record_decoder = msgspec.json.Decoder(ShardRecord)


class FaultyDocument(NamedTuple):
    """A faulty document with its raw bytes, as `--on-error quarantine` keeps it."""

    fault: DocumentFault
    raw: bytes  # its line, cut off after --max-document-bytes; b"" if the raw bytes are not available


MAX_LISTED_FAULTS = 1000  # of one shard: about 100 kB of JSON
