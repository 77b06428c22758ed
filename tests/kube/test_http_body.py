"""Bodies of HTTP answers, whatever the pieces in which their bytes come."""

import pytest

from turnout.kube.client.minimal_transport import body_of

CHUNKS = b"4\r\nabcd\r\n5;note=1\r\n\r\nfg\r\r\n0\r\nTrailer: x\r\n\r\n"
CHUNKED = {"transfer-encoding": "chunked"}


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(CHUNKS)])
def test_chunks_are_joined(size):
    body = body_of(200, CHUNKED)
    read = b""
    for at in range(0, len(CHUNKS), size):
        assert not body.is_complete
        read += body.feed(CHUNKS[at : at + size])
    assert (read, body.is_complete) == (b"abcd\r\nfg\r", True)


@pytest.mark.parametrize(
    ("status", "headers", "raw", "read", "over"),
    [
        pytest.param(200, {"content-length": "3"}, [b"ab", b"c"], b"abc", True, id="a length"),
        pytest.param(200, {"content-length": "0"}, [], b"", True, id="nothing"),
        pytest.param(204, CHUNKED, [], b"", True, id="an answer that never has a body"),
        pytest.param(200, {}, [b"ab"], b"ab", False, id="up to the end of the connection"),
    ],
)
def test_other_bodies_are_taken_as_they_are(status, headers, raw, read, over):
    body = body_of(status, headers)
    assert (b"".join(map(body.feed, raw)), body.is_complete) == (read, over)


@pytest.mark.parametrize(
    ("headers", "raw"),
    [
        pytest.param({"content-length": "1"}, b"ab", id="more than its length"),
        pytest.param(CHUNKED, b"x\r\n", id="a size that is no number"),
        pytest.param(CHUNKED, b"-1\r\n", id="a negative size"),
        pytest.param(CHUNKED, b"1\r\nabc\r\n", id="a chunk longer than its size"),
        pytest.param(CHUNKED, b"0\r\n\r\nmore", id="bytes after the last chunk"),
        pytest.param(CHUNKED, b"0" * 5000, id="a line without an end"),
        pytest.param({"content-length": "-1"}, b"", id="a negative length"),
    ],
)
def test_bytes_that_cannot_be_are_refused(headers, raw):
    with pytest.raises(ValueError):
        body_of(200, headers).feed(raw)
