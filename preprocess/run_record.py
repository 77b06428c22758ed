"""The record beside a dataset: where it came from, what made it, and what was left out."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
import xxhash

from turnout.preprocess.merge import group_fault, is_complete
from turnout.preprocess.model import DocumentFault, InputFile, ShardNote, TextChunk
from turnout.preprocess.options import Options
from turnout.preprocess.tokenizers.settings import EncoderSettings

LIBRARIES = ("turnout", "gigatoken", "tokenizers", "tiktoken", "ftfy", "zstandard", "msgspec", "numpy")
PADDING_MULTIPLE = 128  # of the vocabulary, as the guide's tokenizer constants have it. Source: DL-78


class RunIdentity(msgspec.Struct, frozen=True):
    """All that an output depends on but the contents of its inputs, which shards' records hash."""

    inputs: tuple[tuple[str, str, int], ...]  # path, form and size in bytes
    keys: tuple[str, ...]
    tokenizer_type: str
    vocabulary_xxh3: str
    pattern: str | None
    append_eod: bool
    ftfy: bool
    max_document_bytes: int
    max_expansion: int
    indexes: int


def identity_of(options: Options, sources: Sequence[InputFile], tokenizer: EncoderSettings) -> RunIdentity:
    """Return the identity of a run's output."""
    return RunIdentity(
        inputs=tuple((source.path, source.form.value, source.size_bytes) for source in sources),
        keys=options.keys,
        tokenizer_type=options.tokenizer_type.value,
        vocabulary_xxh3=xxhash.xxh3_128_hexdigest(tokenizer.content),
        pattern=tokenizer.pattern,
        append_eod=options.append_eod,
        ftfy=options.ftfy,
        max_document_bytes=options.max_document_bytes,
        max_expansion=options.max_expansion,
        indexes=options.indexes,
    )


def difference(one: RunIdentity, other: RunIdentity) -> str | None:
    """Say in what two runs differ first, None if in nothing."""
    for name in RunIdentity.__struct_fields__:
        before, after = getattr(one, name), getattr(other, name)
        if before == after:
            continue
        if name != "inputs":
            return f"{name} was {before}, is {after}"
        for old, new in zip(before, after, strict=False):
            if old != new:
                return f"input {old[0]} of {old[2]} bytes is now {new[0]} of {new[2]} bytes"
        return f"there were {len(before)} inputs, there are {len(after)}"
    return None


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that are installed here."""
    result = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            result[name] = version(name)
        except PackageNotFoundError:
            continue
    return result


def input_entries(sources: Sequence[InputFile], shards: Sequence[tuple[TextChunk, ShardNote]]) -> list[dict[str, Any]]:
    """Return path, size and hash of every input.

    The hash of an input that was read in one piece is the XXH3-128 of its bytes, otherwise that of the hashes of its
    pieces in their order, 16 bytes each.
    """
    digests: list[list[str]] = [[] for _ in sources]
    for chunk, record in shards:
        for piece, digest in zip(chunk.pieces, record.input_xxh3, strict=True):
            digests[piece.source].append(digest)
    return [
        {"path": source.path, "bytes": source.size_bytes, "pieces": len(parts), "xxh3_128": _combined(parts)}
        for source, parts in zip(sources, digests, strict=True)
    ]


def _combined(digests: Sequence[str]) -> str:
    if len(digests) == 1:
        return digests[0]
    return xxhash.xxh3_128_hexdigest(b"".join(map(bytes.fromhex, digests)))


def fault_counts(shards: Sequence[tuple[TextChunk, ShardNote]]) -> dict[str, int]:
    """Return how many documents were left out for each reason. A long document of several parts counts once."""
    result: dict[str, int] = {}
    parts: list[ShardNote] = []
    for chunk, record in shards:
        if chunk.part is None:
            counts = record.fault_counts
        else:
            parts.append(record)
            if not chunk.part.is_last:
                continue
            counts = {} if is_complete(iter(parts)) else {group_fault(parts): 1}
            parts = []
        for reason, count in counts.items():
            result[reason] = result.get(reason, 0) + count
    return dict(sorted(result.items()))


def located_faults(
    sources: Sequence[InputFile], shards: Sequence[tuple[TextChunk, ShardNote]]
) -> Iterator[tuple[InputFile, int, DocumentFault]]:
    """Yield the listed faults with their files and lines, in the order of the input."""
    lines = [0] * len(sources)
    for chunk, record in shards:
        before = [lines[piece.source] for piece in chunk.pieces]
        for fault in record.faults:
            source = chunk.pieces[fault.piece].source
            yield sources[source], before[fault.piece] + fault.line, fault
        for piece, count in zip(chunk.pieces, record.lines, strict=True):
            lines[piece.source] += count
