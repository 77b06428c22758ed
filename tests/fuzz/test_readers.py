"""Whatever bytes come, a reader takes them or refuses them in its own words: nothing else happens."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.readers import READERS
from tests.kit.hypothesis_examples import scaled
from turnout.launcher.errors import LauncherError
from turnout.launcher.rendezvous import arbiter

MAX_BYTES = 64 << 10  # of one input; longer ones are cut
EDGES = (
    *(b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"),
    *(b"-1", b"1e999", b"NaN", b"99999999999999999999", "²".encode(), "٣".encode(), b"\\u0000", b'"', b"{", b"[", b"}"),
    *(b"[" * 2_000, b'{"a":' * 2_000, b"\x91" * 2_000, b"&a", b"*a", b"!!python/object", b"\r\n", b"/", b"\xc0\x80"),
)


PLACES = st.integers(0, 2_000)
# A change replaces so many bytes at a place by an edge, by bytes of another input, or by any bytes, once or repeatedly.
CHANGES = st.tuples(
    PLACES,
    st.integers(0, 64),
    st.sampled_from(EDGES) | st.tuples(PLACES, st.integers(1, 64)) | st.binary(max_size=4),
    st.sampled_from((1, 1, 1, 64)),
)


def changed(corpus):
    """Draw an input of the corpus after one to eight changes."""

    def change(data, other, changes):
        for at, removed, piece, times in changes:
            at %= len(data) + 1
            if isinstance(piece, tuple):
                start, size = piece
                start %= len(other)
                piece = other[start : start + size]
            data = data[:at] + piece * times + data[at + removed :]
        return data[:MAX_BYTES]

    inputs = st.sampled_from(corpus)
    return st.builds(change, inputs, inputs, st.lists(CHANGES, min_size=1, max_size=8))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_what_a_reader_takes_is_taken(reader):
    for data in reader.corpus:
        reader.read(data)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_no_input_does_harm(reader):
    @settings(max_examples=scaled(500), deadline=None)
    @given(changed(reader.corpus))
    def read(data):
        with suppress(*reader.refuses):
            reader.read(data)

    read()


def test_a_record_that_is_nested_deeper_than_a_reader_goes_is_refused():
    nested = json.dumps({"sum": "s", "beat": 0, "record": []}).replace("[]", "[" * 1_000 + "]" * 1_000)
    with pytest.raises(LauncherError):
        arbiter.unseal(nested.encode())
