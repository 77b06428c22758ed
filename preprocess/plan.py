"""Divide the inputs by bytes: into chunks of about equal size, whatever files and documents are large or small."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turnout.preprocess import storage, text_parts
from turnout.preprocess.documents import LineReader
from turnout.preprocess.errors import BadOption
from turnout.preprocess.model import Form, InputFile, Piece, TextChunk, TextPart
from turnout.preprocess.options import Options

# The longest suffix that fits counts. Source: lm_dataformat 0.0.20, `Reader._stream_data`; `.jsonl.gz` is ours.
FORMS = (
    (".jsonl.zst.tar", Form.TAR_ZSTD_JSON_LINES),
    (".jsonl.zst", Form.ZSTD_JSON_LINES),
    (".json.zst", Form.ZSTD_JSON_ARRAY),
    (".dat.zst", Form.ZSTD_TEXTS),
    (".jsonl.gz", Form.GZIP_JSON_LINES),
    (".json.gz", Form.GZIP_JSON_LINES),
    (".tar.gz", Form.TAR_GZIP_TEXT),
    (".jsonl", Form.JSON_LINES),
    (".json", Form.JSON_LINES),
    (".zip", Form.ZIP_TEXT),
    (".txt", Form.TEXT),
    (".gz", Form.GZIP_JSON_LINES),
)
# How many bytes of text a compressed byte stands for when chunks are sized. It decides nothing else.
ARCHIVE_EXPANSION = 4
# A line beyond this many chunks is cut into parts, if its tokens allow it.
LONG_LINE_CHUNKS = 2
WINDOW_BYTES = 1 << 16
MAX_SOURCES = 10_000_000


def find_sources(options: Options) -> tuple[InputFile, ...]:
    """Return the input files in the order of the output. Raises BadOption, which names the input at fault."""
    paths = [path for part in options.inputs for path in _paths(part)]
    if len(paths) > MAX_SOURCES:
        raise BadOption(f"--input names {len(paths)} files, at most {MAX_SOURCES} are read")
    sources = tuple(_source(path) for path in paths)
    for source in sources:
        if len(options.keys) > 1 and not source.form.has_fields:
            raise BadOption(f"--input {source.path}: its documents have no fields, so only one key can be read")
    return sources


def _paths(part: str) -> list[str]:
    """Return the files of one part of --input: a file, a folder or a glob.

    Raises BadOption if a folder or glob has no file.
    """
    if storage.is_folder(part):
        # A .json file in a folder is more often a description than lines of JSON.
        names = [name for name in storage.names_in(part) if _form(name) is not None and not name.endswith(".json")]
        if not names:
            raise BadOption(f"--input {part}: the folder holds no file of a known suffix")
        return [f"{part.rstrip('/')}/{name}" for name in names]
    if any(character in part for character in "*?[") and not storage.exists(part):
        if not (paths := storage.matches(part)):
            raise BadOption(f"--input {part}: no file matches")
        return paths
    return [part]


def _source(path: str) -> InputFile:
    """Return an input file with its format and size. Raises BadOption for an unknown suffix or a missing file."""
    if (form := _form(path)) is None:
        known = ", ".join(suffix for suffix, _ in FORMS)
        raise BadOption(f"--input {path}: unknown suffix, there are {known}")
    try:
        return InputFile(path, form, storage.size_of(path))
    except OSError as error:
        raise BadOption(f"--input {path}: {error.strerror or error}") from error


def _form(path: str) -> Form | None:
    name = posixpath.basename(path)
    return next((form for suffix, form in FORMS if name.endswith(suffix)), None)


@dataclass(frozen=True, slots=True)
class Division:
    """How inputs are divided."""

    chunk_bytes: int  # about the size of a chunk, >= 1
    max_document_bytes: int  # longer documents are not cut but refused
    may_cut: bool  # a long document may be cut into parts
    keys: tuple[str, ...]


def chunks(sources: Sequence[InputFile], division: Division) -> tuple[TextChunk, ...]:
    """Return the chunks of the inputs in their order. Small files share a chunk, large ones have many."""
    result: list[TextChunk] = []
    pieces: list[Piece] = []
    weight = 0

    def close() -> None:
        """Complete the chunk that is being filled, and begin an empty one."""
        nonlocal weight
        if pieces:
            result.append(TextChunk(len(result), tuple(pieces)))
        pieces.clear()
        weight = 0

    for number, source in enumerate(sources):
        for piece, parts in _pieces(number, source, division):
            size = (piece.end - piece.start) * (1 if source.form.is_splittable else ARCHIVE_EXPANSION)
            if parts or weight + size > division.chunk_bytes:
                close()
            for piece_of_part, part in parts:
                result.append(TextChunk(len(result), (piece_of_part,), part))
            if not parts:
                pieces.append(piece)
                weight += size
    close()
    return tuple(result)


Parts = Sequence[tuple[Piece, TextPart]]


def _pieces(number: int, source: InputFile, division: Division) -> Iterator[tuple[Piece, Parts]]:
    """Yield the pieces of an input file, cut at ends of lines.

    A piece with one very long line comes with the parts into which its text may be split. number: of the file.
    """
    if not source.size_bytes:
        return
    if not source.form.is_splittable or source.size_bytes <= division.chunk_bytes:
        yield Piece(number, 0, source.size_bytes), ()
        return
    start = 0
    while start < source.size_bytes:
        end = _line_end(source, start + division.chunk_bytes)
        if end - start > (LONG_LINE_CHUNKS + 1) * division.chunk_bytes:
            line_start = _line_start(source, start + division.chunk_bytes, start)
            if line_start > start:
                yield Piece(number, start, line_start), ()
            yield Piece(number, line_start, end), _parts(number, source, line_start, end, division)
        else:
            yield Piece(number, start, end), ()
        start = end


def _line_end(source: InputFile, at: int) -> int:
    """Return where the line ends that holds the byte before `at`, its newline included."""
    at -= 1
    with storage.open_input(source.path) as file:
        file.seek(at)
        window_bytes = WINDOW_BYTES
        while at < source.size_bytes and (window := file.read(window_bytes)):
            if (newline := window.find(b"\n")) >= 0:
                return at + newline + 1
            at += len(window)
            window_bytes = min(2 * window_bytes, text_parts.WINDOW_BYTES)
    return source.size_bytes


def _line_start(source: InputFile, at: int, least: int) -> int:
    """Return where the line begins that holds the byte before `at`, or `least` if no newline lies between."""
    end = at - 1
    while end > least:
        start = max(least, end - WINDOW_BYTES)
        newline = storage.read_range(source.path, start, end).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return least


def _parts(number: int, source: InputFile, start: int, end: int, division: Division) -> Parts:
    """Return the parts of one long line, none if it has to stay whole."""
    if not division.may_cut or end - start > division.max_document_bytes:
        return ()

    def read(first: int, last: int) -> bytes:
        return storage.read_range(source.path, first, last)

    place = text_parts.text_range(read, start, end, LineReader(division.keys, division.max_document_bytes))
    if place is None:
        return ()
    places = text_parts.cut_offsets(read, *place, division.chunk_bytes)
    if not places:
        return ()
    borders = [start, *places, end]
    return [
        (Piece(number, borders[position], borders[position + 1]), TextPart(position, len(borders) - 1, *place))
        for position in range(len(borders) - 1)
    ]
