"""Lines of JSON become documents, and what is no document gets its line and its reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.preprocess.documents import LineReader, read_text
from turnout.preprocess.model import FaultReason


def read(raw: bytes, *keys: str, limit: int = 1000):
    documents = LineReader(keys or ("text",), limit).read(raw)
    faults = [(rejected.fault.line, rejected.fault.reason) for rejected in documents.rejected]
    return [list(column) for column in documents.texts], faults, list(documents.line_numbers)


@pytest.mark.contract("DL-78")
@pytest.mark.parametrize(
    ("raw", "texts", "faults"),
    [
        pytest.param(b'{"text":"a"}\n{"text":"b"}\n', ["a", "b"], [], id="each line is a document"),
        pytest.param(b'{"text":"a"}\n{"text":"b"}', ["a", "b"], [], id="the last line needs no newline"),
        pytest.param(
            b'{"text":"a"}\r\n\n  \n{"text":"b"}\n', ["a", "b"], [], id="empty lines are skipped without error"
        ),
        pytest.param(
            b'{"text":["a","b"]}\n', ["a\n\nb"], [], id="a list of paragraphs is joined, as lm_dataformat does"
        ),
        pytest.param(b'{"text":"a","text":"b"}\n', ["b"], [], id="of a key twice the last counts, as in Python"),
        pytest.param(b'{"x":NaN,"text":"a"}\n', ["a"], [], id="NaN elsewhere is taken, as in Python"),
        pytest.param(b'{"te\\u0078t":"a"}\n', ["a"], [], id="a key may be escaped"),
        pytest.param(b'{"text":"\\ud83d\\ude42"}\n', ["🙂"], [], id="an escaped pair is one character"),
        pytest.param(b'{"text":"a\\u0000b"}\n', ["a\0b"], [], id="NUL is a character"),
        pytest.param(b'{"text":""}\n', [""], [], id="an empty text is a document without tokens"),
        pytest.param(b'{"text":"a"\n{"text":"b"}\n', ["b"], [(1, FaultReason.BAD_JSON)], id="a broken line"),
        pytest.param(b'{"text":"a"} {}\n{"text":"b"}\n', ["b"], [(1, FaultReason.BAD_JSON)], id="two values in a line"),
        pytest.param(
            b'{"text":"a"} {"text":"b"}\n{"text":"c"}\n',
            ["c"],
            [(1, FaultReason.BAD_JSON)],
            id="two documents in a line",
        ),
        pytest.param(
            b'{"text":\n"a"}\n{"text":"b"}\n',
            ["b"],
            [(1, FaultReason.BAD_JSON), (2, FaultReason.BAD_JSON)],
            id="a document on two lines",
        ),
        pytest.param(
            b'{"text":"a"}\n{"txt":1}\n', ["a"], [(2, FaultReason.MISSING_KEY)], id="a record without the key"
        ),
        pytest.param(
            b'{"text":5}\n{"text":null}\n', [], [(1, FaultReason.NOT_TEXT), (2, FaultReason.NOT_TEXT)], id="no text"
        ),
        pytest.param(b'{"text":["a",5]}\n', [], [(1, FaultReason.NOT_TEXT)], id="a list with something else"),
        pytest.param(b'"a"\n["text"]\n', [], [(1, FaultReason.NOT_TEXT), (2, FaultReason.NOT_TEXT)], id="no object"),
        pytest.param(b'\n{"text":"\xff"}\n', [], [(2, FaultReason.BAD_UTF8)], id="invalid UTF-8"),
        pytest.param(b'{"text":"\\ud800"}\n', [], [(1, FaultReason.BAD_UNICODE)], id="half of a surrogate pair"),
        pytest.param(b"[" * 5000 + b"\n", [], [(1, FaultReason.DOCUMENT_TOO_LONG)], id="a line beyond the limit"),
        pytest.param(b"[" * 900 + b"\n", [], [(1, FaultReason.BAD_JSON)], id="brackets without end"),
    ],
)
def test_a_line_is_read(raw, texts, faults):
    assert read(raw)[:2] == ([texts], faults)


def test_keys_have_their_own_texts():
    raw = b'{"title":"t","text":"a"}\n{"title":"u"}\n{"text":"b","title":"v"}\n'
    assert read(raw, "title", "text") == ([["t", "v"], ["a", "b"]], [(2, FaultReason.MISSING_KEY)], [1, 3])


def test_a_document_keeps_the_number_of_its_line():
    assert read(b'\n{"text":"a"}\n\n{"text":"b"}\n')[2] == [2, 4]


def test_the_raw_line_of_a_fault_is_kept():
    (rejected,) = LineReader(("text",), 1000).read(b'{"text":"a"}\n{"tex\n').rejected
    assert rejected.raw == b'{"tex'


@pytest.mark.parametrize(
    ("raw", "texts", "reasons"),
    [
        pytest.param("größe".encode(), ["größe"], [], id="the whole block is one document"),
        pytest.param(b"\xff", [], [FaultReason.BAD_UTF8], id="invalid UTF-8"),
    ],
)
def test_a_text_is_read(raw, texts, reasons):
    documents = read_text(raw, piece=0, number=3)
    assert (list(documents.texts[0]), [rejected.fault.reason for rejected in documents.rejected]) == (texts, reasons)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(2**70), 2**70) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "x"]) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.lists(json_values | st.dictionaries(st.just("text"), st.text()), max_size=6), st.booleans())
def test_we_read_what_python_reads(values, ascii_only):
    """Whatever Python's json has written, the texts are those that it reads, in their order."""
    raw = "\n".join(json.dumps(value, ensure_ascii=ascii_only) for value in values).encode("utf-8", "surrogatepass")
    expected_texts = []
    for line in raw.split(b"\n"):
        try:
            text = json.loads(line)["text"]
            text = "\n\n".join(text) if isinstance(text, list) else text
            text.encode()
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
        expected_texts.append(text)
    assert read(raw, limit=10**6)[0] == [expected_texts]


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=5))
def test_any_bytes_are_documents_or_faults(raw_lines):
    raw = b"\n".join([*raw_lines, b'{"text":"good"}'])
    texts, faults, numbers = read(raw)
    filled = [line for line in raw_lines if line.strip()]
    assert len(texts[0]) + len(faults) == len(filled) + 1
    assert texts[0][-1] == "good"
    assert numbers[-1] == len(raw_lines) + 1
