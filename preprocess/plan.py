"""Divide the inputs into chunks of about equal size in bytes, whatever the sizes of files and documents are."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turnout.preprocess import storage, text_parts
from turnout.preprocess.documents import LineReader
from turnout.preprocess.errors import BadOption
from turnout.preprocess.model import InputFile, InputFormat, Piece, TextChunk, TextPart
from turnout.preprocess.options import Options

# The format of each suffix; the first suffix that matches counts. `.jsonl.gz` is ours.
# Source: lm_dataformat 0.0.20, `Reader._stream_data`
FORMATS_BY_SUFFIX = (
    (".jsonl.zst.tar", InputFormat.TAR_ZSTD_JSON_LINES),
    (".jsonl.zst", InputFormat.ZSTD_JSON_LINES),
    (".json.zst", InputFormat.ZSTD_JSON_ARRAY),
    (".dat.zst", InputFormat.ZSTD_TEXTS),
    (".jsonl.gz", InputFormat.GZIP_JSON_LINES),
    (".json.gz", InputFormat.GZIP_JSON_LINES),
    (".tar.gz", InputFormat.TAR_GZIP_TEXT),
    (".jsonl", InputFormat.JSON_LINES),
    (".json", InputFormat.JSON_LINES),
    (".zip", InputFormat.ZIP_TEXT),
    (".txt", InputFormat.TEXT),
    (".gz", InputFormat.GZIP_JSON_LINES),
)
ARCHIVE_EXPANSION = 4  # bytes of text that a compressed byte counts as in the size of a chunk
LONG_LINE_CHUNKS = 2  # a line that is longer than this many chunks is cut into parts if its tokens allow it
WINDOW_BYTES = 1 << 16  # bytes that are searched at once for the border of a line
MAX_SOURCES = 10_000_000  # input files of a run


def find_input_files(options: Options) -> tuple[InputFile, ...]:
    """Return the input files that --input names, each with its format and size, in the order of the output.

    That is the order of --input, and inside a folder or glob the order of the names. A file that is named twice occurs
    twice. Raises BadOption for a file that is missing or cannot be accessed, a folder or glob without a file, an
    unknown suffix, too many files, and several keys for a format without fields.
    """
    paths = [path for part in options.inputs for path in _paths(part)]
    if len(paths) > MAX_SOURCES:
        raise BadOption(f"--input names {len(paths)} files, at most {MAX_SOURCES} are read")
    sources = tuple(_input_file(path) for path in paths)
    for source in sources:
        if len(options.keys) > 1 and not source.input_format.has_fields:
            raise BadOption(f"--input {source.path}: its documents have no fields, so only one key can be read")
    return sources


def _paths(part: str) -> list[str]:
    """Return the paths of one part of --input: the part itself, or the sorted paths of a folder or glob.

    Of a folder only names with a known suffix other than .json count. A path that is neither folder nor glob need not
    exist. Raises BadOption if a folder or glob has no file, OSError if a folder cannot be read.
    """
    if storage.is_folder(part):
        # A .json file in a folder usually describes the data, so only .jsonl files are read as lines of JSON.
        names = [name for name in storage.names_in(part) if _format_of(name) is not None and not name.endswith(".json")]
        if not names:
            raise BadOption(f"--input {part}: the folder holds no file of a known suffix")
        return [f"{part.rstrip('/')}/{name}" for name in names]
    if any(character in part for character in "*?[") and not storage.exists(part):
        if not (paths := storage.glob_files(part)):
            raise BadOption(f"--input {part}: no file matches")
        return paths
    return [part]


def _input_file(path: str) -> InputFile:
    """Return an input file with its format and size.

    Raises BadOption for an unknown suffix, and for a file that is missing or cannot be accessed.
    """
    if (input_format := _format_of(path)) is None:
        known = ", ".join(suffix for suffix, _ in FORMATS_BY_SUFFIX)
        raise BadOption(f"--input {path}: unknown suffix; known are {known}")
    try:
        return InputFile(path, input_format, storage.size_of(path))
    except OSError as error:
        raise BadOption(f"--input {path}: {error.strerror or error}") from error


def _format_of(path: str) -> InputFormat | None:
    """Return the format that the suffix of a path stands for, None for an unknown suffix."""
    name = posixpath.basename(path)
    return next((input_format for suffix, input_format in FORMATS_BY_SUFFIX if name.endswith(suffix)), None)


@dataclass(frozen=True, slots=True)
class ChunkingRules:
    """The rules by which inputs are divided."""

    chunk_bytes: int  # the approximate size of a chunk, >= 1
    max_document_bytes: int  # a longer document is not cut, because it will be rejected
    may_cut: bool  # True if a long document may be cut into parts
    keys: tuple[str, ...]  # fields that are read


def make_chunks(sources: Sequence[InputFile], rules: ChunkingRules) -> tuple[TextChunk, ...]:
    """Return the chunks of the inputs in their order. Small files share a chunk; a large file has many chunks.

    Each part of a long line that may be cut is a chunk of its own. Files above chunk_bytes are searched for ends of
    lines. Raises OSError if a file cannot be read.
    """
    result: list[TextChunk] = []
    pieces: list[Piece] = []
    estimated_bytes = 0

    def close_chunk() -> None:
        """Complete the chunk that is being filled, and begin an empty one. An empty chunk is not added."""
        nonlocal estimated_bytes
        if pieces:
            result.append(TextChunk(len(result), tuple(pieces)))
        pieces.clear()
        estimated_bytes = 0

    for source_index, source in enumerate(sources):
        for piece, parts in _pieces(source_index, source, rules):
            size = (piece.end - piece.start) * (1 if source.input_format.is_splittable else ARCHIVE_EXPANSION)
            if parts or estimated_bytes + size > rules.chunk_bytes:
                close_chunk()
            for piece_of_part, part in parts:
                result.append(TextChunk(len(result), (piece_of_part,), part))
            if not parts:
                pieces.append(piece)
                estimated_bytes += size
    close_chunk()
    return tuple(result)


Parts = Sequence[tuple[Piece, TextPart]]  # the parts of one long line with their bytes


def _pieces(source_index: int, source: InputFile, rules: ChunkingRules) -> Iterator[tuple[Piece, Parts]]:
    """Yield (piece, parts) for an input file. Pieces are cut at ends of lines. An empty file yields nothing.

    source_index: the index of the file. The parts are () unless the piece is one very long line that is cut.
    """
    if not source.size_bytes:
        return
    if not source.input_format.is_splittable or source.size_bytes <= rules.chunk_bytes:
        yield Piece(source_index, 0, source.size_bytes), ()
        return
    start = 0
    while start < source.size_bytes:
        end = _line_end(source, start + rules.chunk_bytes)
        if end - start > (LONG_LINE_CHUNKS + 1) * rules.chunk_bytes:
            line_start = _line_start(source, start + rules.chunk_bytes, start)
            if line_start > start:
                yield Piece(source_index, start, line_start), ()
            yield Piece(source_index, line_start, end), _parts(source_index, source, line_start, end, rules)
        else:
            yield Piece(source_index, start, end), ()
        start = end


def _line_end(source: InputFile, offset: int) -> int:
    """Return the end of the line that contains the byte at `offset` - 1: the offset after its newline, or the end of
    the file.

    offset: >= 1; past the end of the file gives the size of the file. Raises OSError.
    """
    offset -= 1
    with storage.open_input(source.path) as file:
        file.seek(offset)
        window_bytes = WINDOW_BYTES
        while offset < source.size_bytes and (window := file.read(window_bytes)):
            if (newline := window.find(b"\n")) >= 0:
                return offset + newline + 1
            offset += len(window)
            window_bytes = min(2 * window_bytes, text_parts.WINDOW_BYTES)
    return source.size_bytes


def _line_start(source: InputFile, offset: int, lowest: int) -> int:
    """Return the start of the line that contains the byte at `offset` - 1.

    Only bytes from `lowest` on are searched: `lowest`, itself the start of a line, is the result if no newline lies
    between.
    """
    end = offset - 1
    while end > lowest:
        start = max(lowest, end - WINDOW_BYTES)
        newline = storage.read_range(source.path, start, end).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return lowest


def _parts(source_index: int, source: InputFile, start: int, end: int, rules: ChunkingRules) -> Parts:
    """Return the parts of one long line, each with its bytes. Raises OSError.

    Return () if `rules` forbid cuts, if the line is longer than rules.max_document_bytes (it will be rejected), or if
    no text in it can be cut. source_index: the index of the file. start: the offset of the line in the file. end: the
    offset after it. rules: the size of a part (chunk_bytes) and the keys of the text.
    """
    if not rules.may_cut or end - start > rules.max_document_bytes:
        return ()

    def read(first: int, last: int) -> bytes:
        """Return the bytes of the file from offset `first` to before offset `last`."""
        return storage.read_range(source.path, first, last)

    text_range = text_parts.text_range(read, start, end, LineReader(rules.keys, rules.max_document_bytes))
    if text_range is None:
        return ()
    offsets = text_parts.cut_offsets(read, *text_range, rules.chunk_bytes)
    if not offsets:
        return ()
    borders = [start, *offsets, end]
    return [
        (
            Piece(source_index, borders[position], borders[position + 1]),
            TextPart(position, len(borders) - 1, *text_range),
        )
        for position in range(len(borders) - 1)
    ]
