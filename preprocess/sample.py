"""Documents from all over the input, for the comparison of two engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from turnout.preprocess import archives, storage
from turnout.preprocess.documents import LineReader, read_text
from turnout.preprocess.model import Form, InputFile, Piece, TextChunk

PLACES = 64  # of the input, evenly spaced
PLACE_BYTES = 1 << 18  # that are read at each place
ARCHIVE_LIMITS = archives.ArchiveLimits(block_bytes=PLACE_BYTES, max_document_bytes=1 << 24, max_expansion=1000)


def sample_texts(sources: Sequence[InputFile], chunks: Sequence[TextChunk], reader: LineReader, most: int) -> list[str]:
    """Return up to `most` texts of the input, all keys mixed. The same input gives the same sample.

    Each place gives up to an even share; where documents are long the share of a place is what PLACE_BYTES hold.
    """
    pieces = [piece for chunk in chunks if chunk.part is None for piece in chunk.pieces]
    stride = max(PLACE_BYTES, sum(piece.end - piece.start for piece in pieces) // PLACES)
    places = [
        (piece, start)
        for piece in pieces
        for start in range(piece.start, piece.end if _has_lines(sources, piece) else piece.start + 1, stride)
    ]
    chosen = places[:: max(1, len(places) // PLACES)]
    return _evenly([_texts(sources, piece, start, reader) for piece, start in chosen], most)


def _has_lines(sources: Sequence[InputFile], piece: Piece) -> bool:
    """Return True if reading may begin anywhere in a piece."""
    return sources[piece.source].form is Form.JSON_LINES


def _evenly(samples: Sequence[list[str]], most: int) -> list[str]:
    """Return the first texts of all samples in turn, then their second ones, and so on."""
    longest = max(map(len, samples), default=0)
    return [sample[rank] for rank in range(longest) for sample in samples if rank < len(sample)][:most]


def _texts(sources: Sequence[InputFile], piece: Piece, start: int, reader: LineReader) -> list[str]:
    """Return some texts of a piece as a sample.

    start: byte from which whole lines are read. An archive is read from its beginning.
    """
    source = sources[piece.source]
    if _has_lines(sources, piece):
        end = min(piece.end, start + PLACE_BYTES)
        raw = storage.read_range(source.path, start, end)
        first = 0 if start == piece.start else raw.find(b"\n") + 1
        last = len(raw) if end == piece.end else raw.rfind(b"\n") + 1
        return list(reader.read(raw[first:last]).texts[0])
    result: list[str] = []
    for raw, is_text in _archive_blocks(source):
        result += read_text(raw, 0, 1).texts[0] if is_text else reader.read(raw).texts[0]
        if len(result) * PLACES >= 2000 or not is_text:
            break
    return result


def _archive_blocks(source: InputFile) -> Iterator[archives.Block]:
    """Yield an archive's blocks as far as it can be read. What is wrong with it is found when it is processed."""
    with storage.open_input(source.path) as file:
        try:
            yield from archives.blocks(file, source.form, source.size_bytes, ARCHIVE_LIMITS)
        except archives.ArchiveFault:
            return
