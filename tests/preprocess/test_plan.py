"""The input is divided by bytes: every byte once, in order, at the borders of lines, in chunks of about one size."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.preprocess import corpus
from turnout.preprocess.documents import LineReader
from turnout.preprocess.errors import BadOption
from turnout.preprocess.plan import ChunkingRules, find_input_files, make_chunks
from turnout.preprocess.text_parts import text_range


def division(chunk_bytes: int, **changes: object) -> ChunkingRules:
    return ChunkingRules(
        **({"chunk_bytes": chunk_bytes, "max_document_bytes": 1 << 20, "may_cut": False, "keys": ("text",)} | changes)
    )


def planned(folder, contents: dict[str, bytes], of: ChunkingRules):
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    sources = find_input_files(corpus.options(folder, *contents))
    return sources, make_chunks(sources, of)


def read(sources, chunk) -> bytes:
    return b"".join(Path(sources[piece.source].path).read_bytes()[piece.start : piece.end] for piece in chunk.pieces)


@given(
    files=st.lists(st.lists(st.integers(0, 3000), max_size=12), min_size=1, max_size=5),
    chunk_bytes=st.integers(1, 2000),
    ends_with_newline=st.booleans(),
)
def test_every_byte_is_in_one_chunk_in_order(files, chunk_bytes, ends_with_newline, tmp_path_factory):
    contents = {
        f"{number}.jsonl": b"\n".join(b"x" * length for length in lengths) + b"\n" * ends_with_newline
        for number, lengths in enumerate(files)
    }
    sources, plan = planned(tmp_path_factory.mktemp("plan"), contents, division(chunk_bytes))
    assert b"".join(read(sources, chunk) for chunk in plan) == b"".join(contents.values())
    assert [chunk.index for chunk in plan] == list(range(len(plan)))
    for chunk in plan:
        for piece in chunk.pieces:
            content = contents[f"{piece.source}.jsonl"]
            assert piece.start == 0 or content[piece.start - 1 : piece.start] == b"\n"
            assert piece.end == len(content) or content[piece.end - 1 : piece.end] == b"\n"


def test_small_archives_share_a_chunk_and_large_files_have_many(tmp_path):
    archive, text = corpus.gz(corpus.lines(corpus.texts(3))), corpus.lines(corpus.texts(400))
    contents = {f"{number:04}.jsonl.gz": archive for number in range(200)} | {"big.jsonl": text}
    _, plan = planned(tmp_path, contents, division(10_000))
    assert max(chunk.size_bytes for chunk in plan) < 15_000
    assert len(plan) < 100
    assert {piece.source for chunk in plan for piece in chunk.pieces} == set(range(201))


LONG = "the quick brown fox " * 2000


@pytest.mark.parametrize(
    ("line", "may_cut", "is_cut"),
    [
        pytest.param(corpus.lines([LONG]), True, True, id="a long text is cut into parts"),
        pytest.param(corpus.lines([LONG]), False, False, id="not where a cut could change its tokens"),
        pytest.param(corpus.lines(["x" * 40_000]), True, False, id="not where no word begins"),
        pytest.param(corpus.lines([LONG], key="other"), True, False, id="not if another field is the long one"),
        pytest.param(b'{"text":"' + LONG.encode() + b'"\n', True, False, id="not if the line is broken"),
        pytest.param(b'{"text":["' + LONG.encode() + b'","b"]}\n', True, False, id="not several paragraphs"),
        pytest.param(b'{"text":["' + LONG.encode() + b'"]}\n', True, True, id="but a single paragraph"),
    ],
)
def test_a_long_document_is_cut(line, may_cut, is_cut, tmp_path):
    before, after = corpus.lines(["before"]), corpus.lines(["after"])
    sources, plan = planned(tmp_path, {"a.jsonl": before + line + after}, division(4000, may_cut=may_cut))
    first, *of_document, last = plan
    assert [read(sources, first), read(sources, last)] == [before, after]
    assert b"".join(read(sources, chunk) for chunk in of_document) == line
    if is_cut:
        assert [chunk.part.position for chunk in of_document] == list(range(len(of_document)))
        assert all(3900 < chunk.size_bytes < 4200 for chunk in of_document[:-1])
    else:
        assert [chunk.part for chunk in of_document] == [None]


@given(
    text=st.lists(
        st.sampled_from(["word", "two words", "\n", '"', "\\", "ü", "\x07", " ", "n x", "u00e9 b"]),
        min_size=60,
        max_size=400,
    ),
    ascii_only=st.booleans(),
    chunk_bytes=st.integers(10, 60),
)
def test_parts_make_the_text_again(text, ascii_only, chunk_bytes, tmp_path_factory):
    """A cut never breaks an escape, and the pieces of text, decoded one by one, are the text."""
    text = "".join(text)
    raw = json.dumps({"id": 'with "quotes" \\', "text": text, "z": 1}, ensure_ascii=ascii_only).encode() + b"\n"
    _, plan = planned(tmp_path_factory.mktemp("parts"), {"a.jsonl": raw}, division(chunk_bytes, may_cut=True))
    parts = [chunk for chunk in plan if chunk.part is not None]
    if not parts:
        return
    decoded = []
    for chunk in parts:
        (piece,) = chunk.pieces
        start, end = max(piece.start, chunk.part.text_start), min(piece.end, chunk.part.text_end)
        decoded.append(json.loads(b'"' + raw[start:end] + b'"'))
    assert "".join(decoded) == text
    assert all(one[-1:].isalpha() and two[:1] == " " for one, two in pairwise(decoded))


@pytest.mark.contract("DL-69")
def test_inputs_are_files_globs_and_folders_in_their_order(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "c.jsonl.zst", "notes.md"):
        (tmp_path / name).write_bytes(b"")
    of = corpus.options(tmp_path, "c.jsonl.zst", "*.jsonl", "")
    names = [source.path.rsplit("/", 1)[-1] for source in find_input_files(of)]
    assert names == ["c.jsonl.zst", "a.jsonl", "b.jsonl", "a.jsonl", "b.jsonl", "c.jsonl.zst"]


def test_a_folder_with_the_suffix_of_a_file_is_no_input(tmp_path):
    (tmp_path / "in/dir.jsonl").mkdir(parents=True)
    (tmp_path / "in/dir.jsonl/x.jsonl").write_bytes(b"{}")
    (tmp_path / "in/a.jsonl").write_bytes(b"{}")
    for pattern in ("in/*", "in", f"file://{tmp_path}/in/*", f"file://{tmp_path}/in"):
        sources = find_input_files(corpus.options(tmp_path, pattern))
        assert [source.path.rsplit("/", 2)[-2:] for source in sources] == [["in", "a.jsonl"]]


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        pytest.param(["missing.jsonl"], {}, "missing.jsonl: No such file", id="a file that is not there"),
        pytest.param(["*.zip"], {}, "no file matches", id="a glob without a match"),
        pytest.param(["notes.md"], {}, "unknown suffix", id="a suffix that is not known"),
        pytest.param(["a.txt"], {"keys": ("a", "b")}, "its documents have no fields", id="two keys of plain texts"),
    ],
)
def test_a_wrong_input_is_named(names, changes, message, tmp_path):
    for name in ("notes.md", "a.txt"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(BadOption, match=message):
        find_input_files(corpus.options(tmp_path, *names, **changes))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('a "quote" in the text ', id="quotes"),
        pytest.param("a path C:\\ and \\\\", id="backslashes, one of them at the end"),
        pytest.param('\\"', id="a backslash before a quote"),
        pytest.param("\\" * 7, id="only backslashes"),
        pytest.param("北京 \u0001\n\t", id="other escapes"),
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_long_text_of_a_line_is_what_stands_between_its_quotes(text, ascii_only):
    inner = json.dumps(text * 500, ensure_ascii=ascii_only).encode()[1:-1]
    head, tail = b'{"id": "\\\\", "text": "', b'", "last": "\\""}\n'
    line = head + inner + tail
    reader = LineReader(("text",), 1 << 20)
    found = text_range(lambda first, last: line[first:last], 0, len(line), reader)
    assert found == (len(head), len(head) + len(inner))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param('{"text": "", "meta": "%s"}', id="the long string is the value of another key"),
        pytest.param('{"text": "x", "meta": "%s"}', id="the text is one letter"),
        pytest.param('{"text": [], "meta": "%s"}', id="the text is an empty list"),
        pytest.param('{"text": "%s", "text": ""}', id="the key occurs twice"),
        pytest.param('{"text": ["%s", "more"]}', id="the string is a part of the text"),
    ],
)
def test_a_long_string_that_is_not_the_text_is_not_cut(line):
    raw = (line % ("word " * 500)).encode()
    reader = LineReader(("text",), 1 << 20)
    assert text_range(lambda first, last: raw[first:last], 0, len(raw), reader) is None
