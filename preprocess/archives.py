"""The documents of archives, read as a stream, with bounds on memory and on the decompressed size.

A reader yields blocks: either whole lines of JSON, or one text. A UTF-8 byte order mark (BOM) at the start of the
decompressed archive, or of a file in it, is left out. If an archive is damaged, the blocks before the damage
are yielded, then ArchiveFault is raised. Source of the formats: lm_dataformat 0.0.20, `Reader`
"""

from __future__ import annotations

import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple, Self

import msgspec

from turnout.preprocess.documents import BYTE_ORDER_MARK, without_byte_order_mark
from turnout.preprocess.model import UNREADABLE, FaultReason, InputFormat

# Zstandard bytes that are decompressed at once. 4 bytes may become 128 kB, so these become 128 MiB at most.
FEED_BYTES = 4096
FREE_EXPANSION_BYTES = 64 << 20  # decompressed bytes that every archive may have, whatever its size
MAX_ZSTD_WINDOW_BYTES = 1 << 27  # of a frame, as in the reference decompressor
DAT_LENGTH_DIGITS = 16  # decimal digits of a length in a .dat.zst file
READ_BYTES = 1 << 20  # decompressed bytes that are read at once
GZIP_FEED_BYTES = 1 << 16  # gzip bytes that are read at once
BZ2_DAMAGED = "Invalid data stream"  # the message of bz2's OSError for damaged data
TAR_ENDS_EARLY = "unexpected end of data"  # in the message of tarfile's ReadError for a tar that ends within a file
MAX_READ_BYTES = 1 << 30  # bytes of a text that are read at once: Python allocates as much for one read


class ArchiveLimits(NamedTuple):
    """The bounds for reading one archive."""

    block_bytes: int  # the approximate size of a block of lines, in bytes, >= 1
    max_document_bytes: int  # bytes of one document, >= 1
    # The most decompressed bytes for each compressed byte, >= 1; FREE_EXPANSION_BYTES are always allowed.
    max_expansion: int


class Block(NamedTuple):
    """One or several documents of an archive."""

    raw: bytes  # decompressed bytes
    is_text: bool  # True for one document that is the text itself, False for whole lines of JSON


class ArchiveFault(Exception):
    """The rest of an archive cannot be read. The blocks before are good."""

    def __init__(self, reason: FaultReason, detail: str) -> None:
        """Take the reason, and a sentence for a person."""
        super().__init__(detail)
        self.reason = reason


class _BoundedStream(io.RawIOBase):
    """A stream of decompressed bytes that raises ArchiveFault above a limit."""

    def __init__(self, source: Iterator[bytes], limit: int) -> None:
        """Take the decompressed bytes, and the largest number of them."""
        self._source, self._limit, self._total, self._rest = source, limit, 0, b""

    def readable(self) -> bool:
        """Return True: the stream can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill the buffer with decompressed bytes and return their number, 0 at the end.

        Raises ArchiveFault if more bytes than the limit are decompressed.
        """
        while not self._rest:
            self._rest = next(self._source, b"")
            if not self._rest:
                return 0
            self._total += len(self._rest)
            if self._total > self._limit:
                raise ArchiveFault(FaultReason.EXPANSION_LIMIT, f"more than {self._limit} bytes decompressed")
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


class _TarMember(tarfile.TarInfo):
    """An entry of a tar whose damaged or missing header is an error, where tarfile would end without a word."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Return the entry of a header. Raises ArchiveFault if it is damaged, and EOFError if the tar ends within it.

        Raises tarfile.HeaderError for zeros, which end a tar.
        """
        if len(buf) < tarfile.BLOCKSIZE:
            raise EOFError("the tar ends within a header, or before the zeros that end it")
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if buf.count(0) == len(buf):
                raise
            raise ArchiveFault(FaultReason.BAD_ARCHIVE, f"a header of the tar is damaged: {error}") from error


def blocks(file: IO[bytes], input_format: InputFormat, size_bytes: int, limits: ArchiveLimits) -> Iterator[Block]:
    """Yield the documents of an archive in their order, in blocks: one text, or whole lines of JSON.

    Raises ArchiveFault where the archive is damaged or exceeds a limit; the blocks before are good. Raises OSError if
    the file cannot be read. file: the archive, open at its start. input_format: any but JSON_LINES. size_bytes: of the
    archive; with limits.max_expansion it bounds the decompressed size. Each reader below has the same arguments.
    """
    try:
        yield from _READERS[input_format](file, size_bytes, limits)
    except EOFError as error:
        raise ArchiveFault(FaultReason.TRUNCATED_ARCHIVE, str(error) or "the archive ends early") from error
    except tarfile.ReadError as error:
        is_truncated = TAR_ENDS_EARLY in str(error)
        reason = FaultReason.TRUNCATED_ARCHIVE if is_truncated else FaultReason.BAD_ARCHIVE
        raise ArchiveFault(reason, str(error)) from error
    except (zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise ArchiveFault(FaultReason.BAD_ARCHIVE, str(error)) from error


def _gzip_lines(file: IO[bytes], size_bytes: int, limits: ArchiveLimits) -> Iterator[Block]:
    """Yield the blocks of whole lines in a gzip file."""
    return _lines(_gunzip(file, size_bytes, limits), limits)


def _zstd_lines(file: IO[bytes], size_bytes: int, limits: ArchiveLimits) -> Iterator[Block]:
    """Yield the blocks of whole lines in a Zstandard file."""
    return _lines(_unzstd(file, size_bytes, limits), limits)


def _zstd_array(file: IO[bytes], size_bytes: int, limits: ArchiveLimits) -> Iterator[Block]:
    """Yield the texts of a Zstandard file with one JSON array of texts.

    Raises ArchiveFault if the whole array has more than max_document_bytes, or is no array of texts.
    """
    raw = _read_at_most(_unzstd(file, size_bytes, limits), limits.max_document_bytes)
    try:
        texts = msgspec.json.decode(raw, type=list[str])
    except UNREADABLE as error:
        raise ArchiveFault(FaultReason.BAD_JSON, f"expected an array of texts: {error}") from error
    for text in texts:
        yield Block(text.encode(), is_text=True)


def _tar_of_zstd_lines(file: IO[bytes], size_bytes: int, limits: ArchiveLimits) -> Iterator[Block]:
    """Yield the blocks of whole lines in a tar of Zstandard files. Entries of the tar that are no files are skipped.

    The decompressed size is bounded for each file by its own size, not by that of the tar.
    """
    for size, content in _tar_files(file):
        yield from _lines(_unzstd(content, size, limits), limits)


def _tar_files(file: IO[bytes]) -> Iterator[tuple[int, IO[bytes]]]:
    """Yield each regular file of a tar, with its size in bytes. Other entries of the tar are skipped.

    Each file must be read before the next one is taken. Raises ArchiveFault for a damaged header, and for bytes other
    than zeros after the end of the tar, such as a second tar; EOFError and tarfile.ReadError for a tar that ends early.
    """
    with tarfile.open(fileobj=file, mode="r|", tarinfo=_TarMember) as archive:
        for member in archive:
            if member.isreg() and (content := archive.extractfile(member)) is not None:
                yield member.size, content
        while rest := archive.fileobj.read(READ_BYTES):
            if rest.count(0) < len(rest):
                raise ArchiveFault(FaultReason.BAD_ARCHIVE, "more data follows the end of the tar")


def _text(file: IO[bytes], _size_bytes: int, limits: ArchiveLimits) -> Iterator[Block]:
    """Yield a plain text file as one text."""
    yield Block(_read_at_most(file, limits.max_document_bytes), is_text=True)


def _zip_texts(file: IO[bytes], size_bytes: int, limits: ArchiveLimits) -> Iterator[Block]:
    """Yield each file of a zip as one text.

    Raises ArchiveFault for an encrypted file, an unknown compression or version, a damaged name or offset, damaged
    bzip2 data, a text above the limit, or too many decompressed bytes. For other damage raises the errors that blocks()
    converts.
    """
    total, limit = 0, _max_decompressed_bytes(size_bytes, limits)
    with _zip_damage():
        archive = zipfile.ZipFile(file)
    with archive:
        for member in archive.infolist():
            if member.is_dir():
                continue
            if member.header_offset < 0:
                raise ArchiveFault(FaultReason.BAD_ARCHIVE, f"{member.filename[:100]}: its offset is negative")
            with _zip_damage():
                content = archive.open(member)
            with content:
                raw = _read_zip_member(content, min(limits.max_document_bytes, limit - total) + 1)
            total += len(raw)
            if len(raw) > limits.max_document_bytes:
                raise ArchiveFault(FaultReason.DOCUMENT_TOO_LONG, f"{member.filename[:100]}: {len(raw)} bytes or more")
            if total > limit:
                raise ArchiveFault(FaultReason.EXPANSION_LIMIT, f"more than {limit} bytes decompressed")
            yield Block(without_byte_order_mark(raw), is_text=True)


@contextmanager
def _zip_damage() -> Iterator[None]:
    """Convert the errors of zipfile for damage that is no BadZipFile to ArchiveFault.

    RuntimeError: an encrypted file, an unknown compression (NotImplementedError) or version. ValueError: a name that is
    no UTF-8 (UnicodeDecodeError), or a wrong offset.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        raise ArchiveFault(FaultReason.BAD_ARCHIVE, str(error)) from error


def _read_zip_member(content: IO[bytes], limit: int) -> bytes:
    """Return at most `limit` bytes of a file in a zip. Raises ArchiveFault for damaged bzip2 data or a wrong offset.

    bz2 reports damaged data by an OSError, as a storage reports its failures.
    """
    try:
        with _zip_damage():
            return content.read(limit)
    except OSError as error:
        if str(error) != BZ2_DAMAGED:
            raise
        raise ArchiveFault(FaultReason.BAD_ARCHIVE, f"bzip2: {error}") from error


def _tar_gzip_texts(file: IO[bytes], size_bytes: int, limits: ArchiveLimits) -> Iterator[Block]:
    """Yield each regular file in a gzipped tar as one text. Other entries of the tar are skipped.

    Raises ArchiveFault for a text above the limit, too many decompressed bytes, or a damaged header. For other damage
    raises the errors that blocks() converts.
    """
    for _, content in _tar_files(_gunzip(file, size_bytes, limits)):
        yield Block(_read_at_most(content, limits.max_document_bytes), is_text=True)


def _zstd_texts(file: IO[bytes], size_bytes: int, limits: ArchiveLimits) -> Iterator[Block]:
    """Yield the texts of a Zstandard file in which each text follows its length in DAT_LENGTH_DIGITS digits.

    Raises ArchiveFault for a length that is no number, a text above max_document_bytes, and an end within a length or a
    text.
    """
    stream = _unzstd(file, size_bytes, limits)
    while head := stream.read(DAT_LENGTH_DIGITS):
        if len(head) < DAT_LENGTH_DIGITS:
            raise ArchiveFault(FaultReason.TRUNCATED_ARCHIVE, "the archive ends within a length")
        if not head.isdigit():
            raise ArchiveFault(FaultReason.BAD_ARCHIVE, f"expected {DAT_LENGTH_DIGITS} digits, got {head!r}")
        if (length := int(head)) > limits.max_document_bytes:
            raise ArchiveFault(FaultReason.DOCUMENT_TOO_LONG, f"a document of {length} bytes")
        raw = stream.read(length)
        if len(raw) < length:
            raise ArchiveFault(FaultReason.TRUNCATED_ARCHIVE, f"the last document has {len(raw)} of {length} bytes")
        yield Block(raw, is_text=True)


# Each reader takes (file, its size in bytes, limits). It raises ArchiveFault above a limit; for a damaged archive also
# EOFError and the errors of tarfile, zipfile and zlib, which blocks() converts.
_READERS: dict[InputFormat, Callable[[IO[bytes], int, ArchiveLimits], Iterator[Block]]] = {
    InputFormat.GZIP_JSON_LINES: _gzip_lines,
    InputFormat.ZSTD_JSON_LINES: _zstd_lines,
    InputFormat.ZSTD_JSON_ARRAY: _zstd_array,
    InputFormat.TAR_ZSTD_JSON_LINES: _tar_of_zstd_lines,
    InputFormat.TEXT: _text,
    InputFormat.ZIP_TEXT: _zip_texts,
    InputFormat.TAR_GZIP_TEXT: _tar_gzip_texts,
    InputFormat.ZSTD_TEXTS: _zstd_texts,
}


def _lines(stream: io.BufferedReader, limits: ArchiveLimits) -> Iterator[Block]:
    """Yield blocks of whole lines, about limits.block_bytes each.

    stream: decompressed bytes. Raises ArchiveFault for an incomplete line above block_bytes and max_document_bytes. A
    complete line is yielded whatever its length. If reading fails, the whole lines before the failure are yielded
    first.
    """
    rest = bytearray(without_byte_order_mark(stream.read(len(BYTE_ORDER_MARK))))  # bytes that are not yielded yet
    complete_bytes = rest.rfind(b"\n") + 1  # the number of them that are whole lines
    while True:
        try:
            output = stream.read1(min(READ_BYTES, limits.block_bytes))
        except Exception:
            if complete_bytes:
                yield Block(bytes(rest[:complete_bytes]), is_text=False)
            raise
        if newline := output.rfind(b"\n") + 1:
            complete_bytes = len(rest) + newline
        rest += output
        if not output:
            complete_bytes = len(rest)
        elif len(rest) < limits.block_bytes:
            continue
        if complete_bytes:
            yield Block(bytes(rest[:complete_bytes]), is_text=False)
            del rest[:complete_bytes]
            complete_bytes = 0
        if not output:
            return
        if len(rest) > limits.max_document_bytes:
            raise ArchiveFault(FaultReason.DOCUMENT_TOO_LONG, f"a line of more than {limits.max_document_bytes} bytes")


def _read_at_most(stream: IO[bytes], limit: int) -> bytes:
    """Return a whole file without its byte order mark. Raises ArchiveFault if it has more than `limit` bytes."""
    parts, bytes_left = [], limit + 1
    while bytes_left and (part := stream.read(min(bytes_left, MAX_READ_BYTES))):
        parts.append(part)
        bytes_left -= len(part)
    if not bytes_left:
        raise ArchiveFault(FaultReason.DOCUMENT_TOO_LONG, f"a document of more than {limit} bytes")
    return without_byte_order_mark(parts[0] if len(parts) == 1 else b"".join(parts))


def _max_decompressed_bytes(size_bytes: int, limits: ArchiveLimits) -> int:
    """Return the largest number of decompressed bytes of an archive of this size."""
    return max(FREE_EXPANSION_BYTES, size_bytes * limits.max_expansion)


def _bounded_stream(source: Iterator[bytes], size_bytes: int, limits: ArchiveLimits) -> io.BufferedReader:
    """Return decompressed bytes as a stream that raises ArchiveFault if there are too many of them."""
    return io.BufferedReader(_BoundedStream(source, _max_decompressed_bytes(size_bytes, limits)), READ_BYTES)


def _gunzip(file: IO[bytes], size_bytes: int, limits: ArchiveLimits) -> io.BufferedReader:
    """Return the decompressed bytes of a gzip file as a stream."""
    return _bounded_stream(_gzip_output(file), size_bytes, limits)


def _gzip_output(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the decompressed bytes of all members of a gzip file, at most READ_BYTES at once.

    If the file ends within a member, the bytes before the end are yielded, then EOFError is raised. Python's GzipFile
    would not return these bytes.
    """
    member, feed, is_first = None, b"", True
    while feed := feed or file.read(GZIP_FEED_BYTES):
        if member is None:
            feed = feed.lstrip(b"\0") if not is_first else feed  # zeros may follow a member
            if not feed:
                continue
            member, is_first = zlib.decompressobj(wbits=31), False
        output = member.decompress(feed, READ_BYTES)
        feed = member.unconsumed_tail
        if member.eof:
            feed, member = member.unused_data, None
        if output:
            yield output
    while member is not None and (output := member.decompress(b"", READ_BYTES)):  # output beyond READ_BYTES
        yield output
    if member is not None and not member.eof:
        raise EOFError("the archive ends within a gzip member")


def _unzstd(file: IO[bytes], size_bytes: int, limits: ArchiveLimits) -> io.BufferedReader:
    """Return the decompressed bytes of a Zstandard file as a stream."""
    return _bounded_stream(_zstd_output(file), size_bytes, limits)


def _zstd_output(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the decompressed bytes of all frames of a Zstandard file.

    Raises EOFError if it ends within a frame, which the stream reader of the library would not report, and ArchiveFault
    if it cannot be decompressed.
    """
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
    frame = None
    feed = b""
    while True:
        feed = feed or file.read(FEED_BYTES)
        if not feed:
            break
        frame = frame or decompressor.decompressobj()
        try:
            output = frame.decompress(feed)
        except zstandard.ZstdError as error:
            raise ArchiveFault(FaultReason.BAD_ARCHIVE, str(error)) from error
        feed = b""
        if frame.eof:
            feed, frame = frame.unused_data, None
        if output:
            yield output
    if frame is not None:
        raise EOFError("the archive ends within a Zstandard frame")
