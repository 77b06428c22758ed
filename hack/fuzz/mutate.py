"""Change bytes at random: flips, cuts, copies and numbers at the edge of what a reader takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

MAX_BYTES = 64 << 10  # of one input; longer ones are cut
_EDGES = (
    *(b"\0", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"),
    *(b"-1", b"1e999", b"NaN", b"99999999999999999999", "²".encode(), "٣".encode(), b"\\u0000", b'"', b"{", b"[", b"}"),
    *(b"[" * 2_000, b'{"a":' * 2_000, b"\x91" * 2_000, b"&a", b"*a", b"!!python/object", b"\r\n", b"/", b"\xc0\x80"),
)


def changed(corpus: Sequence[bytes], rng: Random) -> bytes:
    """Return one input of the corpus after one to eight changes."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, 8)):
        rng.choice(_CHANGES)(data, corpus, rng)
    return bytes(data[:MAX_BYTES])


def _flip(data: bytearray, corpus: Sequence[bytes], rng: Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(data: bytearray, corpus: Sequence[bytes], rng: Random) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _cut(data: bytearray, corpus: Sequence[bytes], rng: Random) -> None:
    at = rng.randint(0, len(data))
    del data[at : at + rng.randint(0, 32)]


def _repeat(data: bytearray, corpus: Sequence[bytes], rng: Random) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = bytes(data[at : at + rng.randint(1, 32)]) * rng.randint(1, 64)


def _edge(data: bytearray, corpus: Sequence[bytes], rng: Random) -> None:
    at = rng.randint(0, len(data))
    data[at : at + rng.choice((0, 0, 1, 4))] = rng.choice(_EDGES)


def _splice(data: bytearray, corpus: Sequence[bytes], rng: Random) -> None:
    other = rng.choice(corpus)
    begin = rng.randint(0, len(other))
    at = rng.randint(0, len(data))
    data[at : at + rng.randint(0, 64)] = other[begin : begin + rng.randint(0, 64)]


_Change = Callable[[bytearray, Sequence[bytes], Random], None]
_CHANGES: tuple[_Change, ...] = (_flip, _set, _cut, _repeat, _edge, _splice)
