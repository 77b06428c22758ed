"""A sample of the documents of the input, for the comparison of two engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turnout.preprocess import archives, storage
from turnout.preprocess.documents import LineReader, read_text
from turnout.preprocess.model import InputFile, InputFormat, Piece, TextChunk

PLACES = 64  # places of the input, evenly spaced, from which documents are taken
PLACE_BYTES = 1 << 18  # bytes that are read at each place
ARCHIVE_LIMITS = archives.ArchiveLimits(block_bytes=PLACE_BYTES, max_document_bytes=1 << 24, max_expansion=1000)


def sample_texts(
    sources: Sequence[InputFile], chunks: Sequence[TextChunk], reader: LineReader, max_texts: int
) -> list[str]:
    """Return up to `max_texts` texts of the reader's first key. The same input gives the same sample.

    sources: the input files. chunks: all chunks of the run. The texts are from at most about PLACES places, evenly
    spaced; each place gives an equal number of texts if it has enough of them within PLACE_BYTES. Faulty lines are
    skipped.
    """
    pieces = [piece for chunk in chunks if chunk.part is None for piece in chunk.pieces]
    stride = max(PLACE_BYTES, sum(piece.end - piece.start for piece in pieces) // PLACES)
    places = [
        (piece, start)
        for piece in pieces
        for start in range(piece.start, piece.end if _has_lines(sources, piece) else piece.start + 1, stride)
    ]
    selected = places[:: max(1, len(places) // PLACES)]
    return _interleave([_texts_at(sources, piece, start, reader) for piece, start in selected], max_texts)


def _has_lines(sources: Sequence[InputFile], piece: Piece) -> bool:
    """Return True if the piece is plain JSON lines, so that reading may begin at any byte of it."""
    return sources[piece.source].input_format is InputFormat.JSON_LINES


def _interleave(samples: Sequence[list[str]], max_texts: int) -> list[str]:
    """Return the first text of each sample, then the second text of each, and so on, up to `max_texts` texts."""
    longest = max(map(len, samples), default=0)
    return [sample[rank] for rank in range(longest) for sample in samples if rank < len(sample)][:max_texts]


def _texts_at(sources: Sequence[InputFile], piece: Piece, start: int, reader: LineReader) -> list[str]:
    """Return the texts of the reader's first key near one offset of a piece, without faulty documents.

    start: the offset in the file, within the piece. The lines that begin and end in the next PLACE_BYTES are read.
    Of an archive `start` is ignored: its first block is read, or its first texts.
    """
    source = sources[piece.source]
    if _has_lines(sources, piece):
        end = min(piece.end, start + PLACE_BYTES)
        raw = storage.read_range(source.path, start, end)
        first = 0 if start == piece.start else raw.find(b"\n") + 1 or len(raw)
        last = len(raw) if end == piece.end else raw.rfind(b"\n") + 1
        return list(reader.read(raw[first:last]).texts[0])
    result: list[str] = []
    for raw, is_text in _archive_blocks(source):
        result += read_text(raw, 0, 1).texts[0] if is_text else reader.read(raw).texts[0]
        if len(result) * PLACES >= 2000 or not is_text:
            break
    return result


def _archive_blocks(source: InputFile) -> Iterator[archives.Block]:
    """Yield the blocks of an archive up to its first fault. The fault is reported when the archive is processed."""
    with storage.open_input(source.path) as file:
        try:
            yield from archives.blocks(file, source.input_format, source.size_bytes, ARCHIVE_LIMITS)
        except archives.ArchiveFault:
            return
