"""The parts of the record beside a dataset: its inputs, the options and versions that made it, and the faults."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
import xxhash

from turnout.preprocess.merge import fault_of_cut_document, is_complete
from turnout.preprocess.model import DocumentFault, InputFile, ShardRecord, TextChunk
from turnout.preprocess.options import Options
from turnout.preprocess.tokenizers.settings import EncoderSettings

# Libraries whose versions are recorded.
LIBRARIES = ("turnout", "gigatoken", "tokenizers", "tiktoken", "ftfy", "zstandard", "msgspec", "numpy")
PADDING_MULTIPLE = 128  # the padded size of a vocabulary is a multiple of this, as in the guide. Source: DL-78


class RunIdentity(msgspec.Struct, frozen=True):
    """Everything that determines an output, except for the contents of its inputs, which records of shards hash."""

    inputs: tuple[tuple[str, str, int], ...]  # (path, format, size in bytes)
    keys: tuple[str, ...]  # fields that are read, one dataset each
    tokenizer_type: str  # a value of TokenizerType
    vocabulary_xxh3: str  # the XXH3-128 of the vocabulary, 32 hexadecimal digits
    pattern: str | None  # the name of the split rule of a tiktoken vocabulary; None for other vocabularies
    append_eod: bool  # True if each document ends with the end-of-document token
    ftfy: bool  # True if texts are repaired
    max_document_bytes: int  # raw bytes of one document
    max_expansion: int  # decompressed bytes for each compressed byte of an archive
    indexes: int  # the number of processes that share the work, --indexes


def identity_of(options: Options, sources: Sequence[InputFile], tokenizer: EncoderSettings) -> RunIdentity:
    """Return the identity of a run's output. sources: the input files in their order."""
    return RunIdentity(
        inputs=tuple((source.path, source.input_format.value, source.size_bytes) for source in sources),
        keys=options.keys,
        tokenizer_type=options.tokenizer.kind.value,
        vocabulary_xxh3=xxhash.xxh3_128_hexdigest(tokenizer.content),
        pattern=tokenizer.pattern,
        append_eod=options.append_eod,
        ftfy=options.ftfy,
        max_document_bytes=options.limits.max_document_bytes,
        max_expansion=options.limits.max_expansion,
        indexes=options.share.count,
    )


def first_difference(earlier: RunIdentity, current: RunIdentity) -> str | None:
    """Return a phrase that names the first difference between the identities of two runs; None if they are equal.

    The phrase is such as "keys was ..., is ...". For inputs it gives path, size and format of the first one that
    differs, or both numbers of inputs. earlier: the run that made the existing files. current: this run.
    """
    for name in RunIdentity.__struct_fields__:
        earlier_value, current_value = getattr(earlier, name), getattr(current, name)
        if earlier_value == current_value:
            continue
        if name != "inputs":
            return f"{name} was {earlier_value}, is {current_value}"
        for earlier_input, current_input in zip(earlier_value, current_value, strict=False):
            if earlier_input != current_input:
                (path, form, size), (new_path, new_form, new_size) = earlier_input, current_input
                return f"input {path} ({form}, {size} bytes) is now {new_path} ({new_form}, {new_size} bytes)"
        return f"there were {len(earlier_value)} inputs, there are {len(current_value)}"
    return None


def versions() -> dict[str, str]:
    """Return the versions of Python and of those LIBRARIES that are installed here, by name."""
    result = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            result[name] = version(name)
        except PackageNotFoundError:
            continue
    return result


def input_entries(
    sources: Sequence[InputFile], shards: Sequence[tuple[TextChunk, ShardRecord]]
) -> list[dict[str, Any]]:
    """Return path, size, number of pieces and hash of every input, as JSON objects.

    shards: all chunks of the run in the order of the input, with their records. The hash of an input of one piece is
    the XXH3-128 of its bytes. For several pieces (or none) it is the XXH3-128 of the concatenated 16-byte hashes of the
    pieces, in order.
    """
    digests: list[list[str]] = [[] for _ in sources]
    for chunk, record in shards:
        for piece, digest in zip(chunk.pieces, record.input_xxh3, strict=True):
            digests[piece.source].append(digest)
    return [
        {"path": source.path, "bytes": source.size_bytes, "pieces": len(parts), "xxh3_128": _combine_digests(parts)}
        for source, parts in zip(sources, digests, strict=True)
    ]


def _combine_digests(digests: Sequence[str]) -> str:
    """Return the digest of an input from the digests of its pieces."""
    if len(digests) == 1:
        return digests[0]
    return xxhash.xxh3_128_hexdigest(b"".join(map(bytes.fromhex, digests)))


def fault_counts(shards: Sequence[tuple[TextChunk, ShardRecord]]) -> dict[str, int]:
    """Return how many documents were left out, by the value of FaultReason, sorted.

    A long document of several parts counts once, and so does a damaged archive, whatever its rest contains. shards: all
    chunks of the run in the order of the input, with their records.
    """
    result: dict[str, int] = {}
    parts: list[ShardRecord] = []
    for chunk, record in shards:
        if chunk.part is None:
            counts = record.fault_counts
        else:
            parts.append(record)
            if not chunk.part.is_last:
                continue
            counts = {} if is_complete(iter(parts)) else {fault_of_cut_document(parts): 1}
            parts = []
        for reason, count in counts.items():
            result[reason] = result.get(reason, 0) + count
    return dict(sorted(result.items()))


def located_faults(
    sources: Sequence[InputFile], shards: Sequence[tuple[TextChunk, ShardRecord]]
) -> Iterator[tuple[InputFile, int, DocumentFault]]:
    """Yield (input file, line in the file from 1, fault) for the faults that the records list.

    sources: the input files. shards: all chunks of the run in the order of the input, with their records. The order is
    necessary, because the lines of earlier chunks are added up. In a format without lines, documents count as lines.
    """
    lines = [0] * len(sources)
    for chunk, record in shards:
        lines_before = [lines[piece.source] for piece in chunk.pieces]
        for fault in record.faults:
            source = chunk.pieces[fault.piece].source
            yield sources[source], lines_before[fault.piece] + fault.line, fault
        for piece, count in zip(chunk.pieces, record.lines, strict=True):
            lines[piece.source] += count
