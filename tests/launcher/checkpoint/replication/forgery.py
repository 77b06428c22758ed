"""Other bytes of the same xxh3: what a relay can fit to a checksum that has no key."""

from __future__ import annotations

import struct

# The first words of the secret of xxh3, which is public: stripe n of a block begins at word n of it.
SECRET = struct.unpack("<5Q", bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578"
))  # fmt: skip
STRIPE_BYTES = 64
LOW, WORD = (1 << 32) - 1, (1 << 64) - 1


def forged(chunk):
    """Give {place: byte} that change the first word of each of five stripes, and not the chunk's xxh3.

    Of each word xxh3 adds up the word, and the product of both halves of the word ^ secret. Three words make the
    product what it was; two more, whose product is 0, make the sum of the words what it was.
    chunk: its first 1,024 bytes at least.
    """
    words = [struct.unpack_from("<Q", chunk, STRIPE_BYTES * at)[0] for at in range(5)]
    product = sum(((word ^ key) & LOW) * ((word ^ key) >> 32) for word, key in zip(words, SECRET, strict=True)) & WORD
    doubles, rest = divmod(product, 1 << 31)
    half = min(doubles, LOW)
    keyed = [half << 32 | 1 << 31, (doubles - half) << 32 | 1 << 31, rest << 32 | 1]
    others = [each ^ key for each, key in zip(keyed, SECRET[:3], strict=True)]
    missing = sum(words) - sum(others)
    low = (missing - SECRET[3]) & LOW  # of the last word, whose upper half is the secret's
    last = SECRET[4] >> 32 << 32 | low
    others += [(missing - last) & WORD, last]
    return {
        STRIPE_BYTES * at + byte: value
        for at, word in enumerate(others)
        for byte, value in enumerate(word.to_bytes(8, "little"))
    }
