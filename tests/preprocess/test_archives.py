"""Archives are streamed: each form gives its documents, and one that breaks or grows too far ends with its reason."""

from __future__ import annotations

import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import pytest

from tests.preprocess import corpus
from turnout.preprocess.archives import FREE_EXPANSION_BYTES, ArchiveFault, ArchiveLimits, blocks
from turnout.preprocess.model import FaultReason, InputFormat
from turnout.preprocess.storage import open_input

LIMITS = ArchiveLimits(block_bytes=400, max_document_bytes=10_000, max_expansion=200)
DOCUMENTS = corpus.texts(40)
LINES = corpus.lines(DOCUMENTS)
MEMBERS = [(f"{number}.txt", text.encode()) for number, text in enumerate(DOCUMENTS)]
JSON_ARRAY = b"[" + b",".join(b'"%d"' % number for number in range(40)) + b"]"


def read(form: InputFormat, content: bytes, limits: ArchiveLimits = LIMITS) -> tuple[list[bytes], FaultReason | None]:
    documents = []
    try:
        documents.extend(block.raw for block in blocks(BytesIO(content), form, len(content), limits))
    except ArchiveFault as fault:
        return documents, fault.reason
    return documents, None


@pytest.mark.contract("DL-69")
@pytest.mark.parametrize(
    ("form", "content"),
    [
        pytest.param(InputFormat.GZIP_JSON_LINES, corpus.gz(LINES), id="gzip"),
        pytest.param(InputFormat.GZIP_JSON_LINES, corpus.gz(LINES[:3000]) + corpus.gz(LINES[3000:]), id="two members"),
        pytest.param(InputFormat.ZSTD_JSON_LINES, corpus.zst(LINES), id="Zstandard"),
        pytest.param(InputFormat.ZSTD_JSON_LINES, corpus.zst(LINES[:3000]) + corpus.zst(LINES[3000:]), id="two frames"),
        pytest.param(
            InputFormat.TAR_ZSTD_JSON_LINES,
            corpus.tar([("a", corpus.zst(corpus.lines(DOCUMENTS)))]),
            id="a tar of Zstandard",
        ),
    ],
)
def test_lines_come_whole_and_in_blocks(form, content):
    documents, fault = read(form, content)
    assert (b"".join(documents), fault) == (LINES, None)
    assert len(documents) > 1
    assert all(block.endswith(b"\n") for block in documents)


@pytest.mark.contract("DL-69")
@pytest.mark.parametrize(
    ("form", "content", "documents"),
    [
        pytest.param(InputFormat.TEXT, b"one\ntwo", [b"one\ntwo"], id="a text file is one document"),
        pytest.param(InputFormat.ZIP_TEXT, corpus.zipped(MEMBERS), [text for _, text in MEMBERS], id="files of a zip"),
        pytest.param(
            InputFormat.TAR_GZIP_TEXT,
            corpus.gz(corpus.tar(MEMBERS)),
            [text for _, text in MEMBERS],
            id="members of a tar.gz",
        ),
        pytest.param(
            InputFormat.ZSTD_TEXTS, corpus.dat(DOCUMENTS), [text.encode() for text in DOCUMENTS], id="lengths and texts"
        ),
        pytest.param(
            InputFormat.ZSTD_JSON_ARRAY, corpus.zst(JSON_ARRAY), [b"%d" % number for number in range(40)], id="an array"
        ),
    ],
)
def test_texts_come_one_by_one(form, content, documents):
    assert read(form, content) == (documents, None)


BOM = b"\xef\xbb\xbf"
LINE = b'{"text": "a"}\n'


@pytest.mark.parametrize(
    ("form", "content", "documents"),
    [
        pytest.param(InputFormat.GZIP_JSON_LINES, corpus.gz(BOM + LINE), [LINE], id="gzip"),
        pytest.param(InputFormat.ZSTD_JSON_LINES, corpus.zst(BOM + LINE), [LINE], id="Zstandard"),
        pytest.param(InputFormat.ZSTD_JSON_LINES, corpus.zst(b"\n"), [b"\n"], id="one byte and no mark"),
        pytest.param(InputFormat.ZSTD_JSON_LINES, corpus.zst(BOM), [], id="nothing but the mark"),
        pytest.param(
            InputFormat.TAR_ZSTD_JSON_LINES,
            corpus.tar([("a", corpus.zst(BOM + LINE)), ("b", corpus.zst(BOM + LINE))]),
            [LINE, LINE],
            id="each file of a tar of Zstandard",
        ),
        pytest.param(InputFormat.ZSTD_JSON_ARRAY, corpus.zst(BOM + b'["a"]'), [b"a"], id="an array"),
        pytest.param(InputFormat.TEXT, BOM + b"a" + BOM, [b"a" + BOM], id="a text file"),
        pytest.param(
            InputFormat.ZIP_TEXT,
            corpus.zipped([("a", BOM + b"a"), ("b", BOM + b"b")]),
            [b"a", b"b"],
            id="files of a zip",
        ),
        pytest.param(
            InputFormat.TAR_GZIP_TEXT,
            corpus.gz(corpus.tar([("a", BOM + b"a"), ("b", b"b")])),
            [b"a", b"b"],
            id="a tar.gz",
        ),
    ],
)
def test_a_byte_order_mark_at_the_start_of_a_file_is_left_out(form, content, documents):
    assert read(form, content) == (documents, None)


WHOLE = {
    InputFormat.GZIP_JSON_LINES: corpus.gz(LINES),
    InputFormat.ZSTD_JSON_LINES: corpus.zst(LINES),
    InputFormat.TAR_GZIP_TEXT: corpus.gz(corpus.tar(MEMBERS)),
    InputFormat.ZSTD_TEXTS: corpus.dat(DOCUMENTS),
}


@pytest.mark.parametrize("form", [pytest.param(form, id=form.value) for form in WHOLE])
@pytest.mark.parametrize("part", [pytest.param(share, id=f"{share:.0%} of it") for share in (0.2, 0.6, 0.99)])
def test_a_cut_archive_is_reported_after_its_documents(form, part):
    content = WHOLE[form]
    documents, fault = read(form, content[: int(len(content) * part)])
    assert fault is FaultReason.TRUNCATED_ARCHIVE
    assert b"".join(read(form, content)[0]).startswith(b"".join(documents))
    if form.has_fields:
        assert all(block.endswith(b"\n") for block in documents)


TAR_OF_ZSTANDARD = corpus.tar([(name, corpus.zst(corpus.lines([text.decode()]))) for name, text in MEMBERS[:5]])
TAR_OF_TEXTS = corpus.tar([(f"{number}.txt", b"a text") for number in range(5)])
THIRD_HEADER = 2 * 1024  # its offset in a tar of files of less than 512 bytes


def with_other_byte(content: bytes, offset: int) -> bytes:
    return content[:offset] + bytes([content[offset] ^ 0xFF]) + content[offset + 1 :]


@pytest.mark.parametrize(
    ("tar", "reason"),
    [
        pytest.param(
            with_other_byte(TAR_OF_TEXTS, THIRD_HEADER + 5), FaultReason.BAD_ARCHIVE, id="a header has a wrong byte"
        ),
        pytest.param(TAR_OF_TEXTS[: THIRD_HEADER + 100], FaultReason.TRUNCATED_ARCHIVE, id="it ends within a header"),
        pytest.param(TAR_OF_TEXTS[:THIRD_HEADER], FaultReason.TRUNCATED_ARCHIVE, id="it ends before a header"),
        pytest.param(
            TAR_OF_TEXTS[:THIRD_HEADER] + bytes(512) + TAR_OF_TEXTS[THIRD_HEADER + 512 :],
            FaultReason.BAD_ARCHIVE,
            id="a header is overwritten by zeros",
        ),
        pytest.param(
            TAR_OF_TEXTS[:THIRD_HEADER] + bytes(1024) + TAR_OF_TEXTS,
            FaultReason.BAD_ARCHIVE,
            id="a second tar follows",
        ),
    ],
)
def test_a_damaged_tar_gives_its_first_files_and_a_fault(tar, reason):
    assert read(InputFormat.TAR_GZIP_TEXT, corpus.gz(tar)) == ([b"a text"] * 2, reason)


def test_a_damaged_header_in_a_tar_of_zstandard_files_is_reported():
    whole, _ = read(InputFormat.TAR_ZSTD_JSON_LINES, TAR_OF_ZSTANDARD)
    damaged = with_other_byte(TAR_OF_ZSTANDARD, THIRD_HEADER + 5)
    documents, fault = read(InputFormat.TAR_ZSTD_JSON_LINES, damaged)
    assert (documents, fault) == (whole[: len(documents)], FaultReason.BAD_ARCHIVE)
    assert documents


@pytest.mark.parametrize(
    ("form", "content"),
    [
        pytest.param(InputFormat.TAR_GZIP_TEXT, corpus.gz(TAR_OF_TEXTS), id="a tar"),
        pytest.param(InputFormat.GZIP_JSON_LINES, corpus.gz(LINES), id="lines"),
    ],
)
def test_a_wrong_checksum_of_gzip_is_damage_not_an_early_end(form, content):
    assert read(form, with_other_byte(content, -6 + len(content)))[1] is FaultReason.BAD_ARCHIVE


UNPACKED = (InputFormat.TEXT, InputFormat.JSON_LINES)


@pytest.mark.parametrize("form", [pytest.param(form, id=form.value) for form in InputFormat if form not in UNPACKED])
def test_garbage_is_no_archive(form):
    documents, fault = read(form, b"no archive at all, whatever its name says" * 30)
    assert documents == []
    assert fault in (FaultReason.BAD_ARCHIVE, FaultReason.TRUNCATED_ARCHIVE)


def test_a_zip_with_damaged_lzma_data_is_reported():
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.txt", os.urandom(100))
    content = bytearray(buffer.getvalue())
    start = content.index(b"a.txt") + len(b"a.txt") + 9  # after the properties of LZMA
    content[start : start + 40] = b"\xff" * 40
    assert read(InputFormat.ZIP_TEXT, bytes(content)) == ([], FaultReason.BAD_ARCHIVE)


def test_a_zip_with_damaged_bzip2_data_is_reported():
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.txt", os.urandom(100))
    content = bytearray(buffer.getvalue())
    start = content.index(b"a.txt") + len(b"a.txt") + 12
    content[start : start + 20] = b"\xff" * 20
    assert read(InputFormat.ZIP_TEXT, bytes(content)) == ([], FaultReason.BAD_ARCHIVE)


def zip_of(name: str) -> bytes:
    return corpus.zipped([(name, b"a text")])


CENTRAL, END = b"PK\1\2", b"PK\5\6"  # the records at the end of a zip


def patched(content: bytes, record: bytes, offset: int, value: bytes) -> bytes:
    """The zip with other bytes at an offset in its first record of that kind."""
    start = content.index(record) + offset
    return content[:start] + value + content[start + len(value) :]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(zip_of("ä.txt").replace("ä".encode(), b"\xa1\xa1"), id="a name is no UTF-8"),
        pytest.param(patched(zip_of("a.txt"), CENTRAL, 6, b"\xd2\0"), id="a version of 21.0"),
        pytest.param(patched(zip_of("a.txt"), END, 16, b"\0\1\0\0"), id="an offset before the start of the file"),
        pytest.param(patched(zip_of("a.txt"), CENTRAL, 10, b"\x63\0"), id="an unknown compression"),
        pytest.param(patched(zip_of("a.txt"), CENTRAL, 8, b"\1\0"), id="an encrypted file"),
    ],
)
@pytest.mark.parametrize("is_local", [pytest.param(True, id="on disk"), pytest.param(False, id="in memory")])
def test_a_damaged_directory_of_a_zip_is_reported(content, is_local, tmp_path):
    (tmp_path / "a.zip").write_bytes(content)
    file = open_input(str(tmp_path / "a.zip")) if is_local else BytesIO(content)
    with file, pytest.raises(ArchiveFault) as fault:
        list(blocks(file, InputFormat.ZIP_TEXT, len(content), LIMITS))
    assert fault.value.reason is FaultReason.BAD_ARCHIVE


class UnreadableFile(BytesIO):
    """A file of which the first `unreadable_bytes` bytes cannot be read."""

    def __init__(self, content: bytes, unreadable_bytes: int) -> None:
        super().__init__(content)
        self.unreadable_bytes = unreadable_bytes

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() < self.unreadable_bytes:
            raise OSError("the storage does not answer")
        return super().read(size)


def test_a_storage_that_fails_within_bzip2_data_is_no_damaged_archive():
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("a.txt", os.urandom(100))
    content = buffer.getvalue()
    file = UnreadableFile(content, content.index(b"PK\x01\x02"))
    with pytest.raises(OSError, match="does not answer"):
        list(blocks(file, InputFormat.ZIP_TEXT, len(content), LIMITS))


BOMB = b"\0" * (FREE_EXPANSION_BYTES + (1 << 20))


@pytest.mark.parametrize(
    ("form", "content", "reason"),
    [
        pytest.param(InputFormat.GZIP_JSON_LINES, corpus.gz(BOMB), FaultReason.EXPANSION_LIMIT, id="gzip"),
        pytest.param(InputFormat.ZSTD_JSON_LINES, corpus.zst(BOMB), FaultReason.EXPANSION_LIMIT, id="Zstandard"),
        pytest.param(
            InputFormat.ZIP_TEXT, corpus.zipped([("a", BOMB)]), FaultReason.DOCUMENT_TOO_LONG, id="one member of a zip"
        ),
    ],
)
def test_a_bomb_is_bounded(form, content, reason):
    unlimited_documents = ArchiveLimits(block_bytes=1 << 20, max_document_bytes=FREE_EXPANSION_BYTES, max_expansion=200)
    assert read(form, content, unlimited_documents)[1] is reason


def test_a_zip_of_many_members_is_bounded():
    members = [(str(number), b"\0" * (FREE_EXPANSION_BYTES // 8)) for number in range(9)]
    documents, fault = read(
        InputFormat.ZIP_TEXT, corpus.zipped(members), LIMITS._replace(max_document_bytes=FREE_EXPANSION_BYTES // 8)
    )
    assert (len(documents), fault) == (8, FaultReason.EXPANSION_LIMIT)


def test_a_line_without_end_is_bounded():
    documents, fault = read(InputFormat.GZIP_JSON_LINES, corpus.gz(b'{"text":"a"}\n' + b"x" * 2_000_000))
    assert (documents, fault) == ([b'{"text":"a"}\n'], FaultReason.DOCUMENT_TOO_LONG)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"%016d" % 20_000 + b"x", FaultReason.DOCUMENT_TOO_LONG, id="a length beyond the limit"),
        pytest.param(b"not sixteen digits", FaultReason.BAD_ARCHIVE, id="no length"),
        pytest.param(b"%016d" % 9 + b"x", FaultReason.TRUNCATED_ARCHIVE, id="fewer bytes than the length says"),
    ],
)
def test_a_wrong_length_is_reported(content, reason):
    assert read(InputFormat.ZSTD_TEXTS, corpus.zst(content)) == ([], reason)


def test_a_file_that_gives_few_bytes_at_once_is_read_to_its_end():
    """A pipe gives at most 64 KiB for one read(), as a file on disk gives less than 2 GiB."""
    text = b"0123456789" * 20_000
    reading_end, writing_end = os.pipe()
    with ThreadPoolExecutor() as writers, open(reading_end, "rb", buffering=0) as pipe:
        writers.submit(_write, writing_end, text)
        limits = LIMITS._replace(max_document_bytes=len(text))
        assert [block.raw for block in blocks(pipe, InputFormat.TEXT, len(text), limits)] == [text]


def _write(descriptor: int, content: bytes) -> None:
    with open(descriptor, "wb") as file:
        file.write(content)


def test_the_largest_limit_needs_no_memory_of_its_size(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"short")
    with open_input(str(tmp_path / "a.txt")) as file:
        limits = LIMITS._replace(max_document_bytes=1 << 40)
        assert [block.raw for block in blocks(file, InputFormat.TEXT, 5, limits)] == [b"short"]
