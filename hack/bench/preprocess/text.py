"""Generate JSON lines whose lengths, words and escapes are like those of web text. Equal seeds give equal bytes.

Word ranks follow two power laws (Gerlach and Altmann 2013: 1/r up to rank 7,873, then r to the power of -1.77). The
number of distinct words therefore grows with the text (Heaps' law), and a tokenizer's cache of words never is complete.
Blocks are independent of each other, so several processes can make one file.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.integer]

_SEED = 20261127
_DOCUMENTS = 2_000  # a block
_BLOCK_BYTES = 16_000_000  # about
_MEAN_WORDS, _SIGMA = 1_300, 1.3  # of the log-normal lengths: about 8 kB a document
_LONG_SHARE, _LONG_SHAPE = 0.002, 1.1  # documents whose length is multiplied by a Pareto variate
_MAX_WORDS = 600_000  # about 4 MB
_KNEE, _TAIL_EXPONENT = 7_873, 1.77
_KNEE_SHARE = 0.88  # of the words have a rank up to the knee: harmonic number of the knee, beside the tail's integral
_LISTED_WORDS = 60_000  # ranks above are composed of fragments
_FRAGMENTS = 4_096  # 12 bits each
_MAX_RANK = 1 << 36

_LATIN, _CYRILLIC, _ARABIC, _DEVANAGARI = (
    line.split(" ")
    for line in (
        "a e i o u ba be bi co con de di do en er es ex fa fi for ga ge ha he im in ing ion is it ka la le li lo ly"
        " ma me men mi mo na ne ni no nt on or ou pa per po pre pro qu ra re ri ro sa se sh si so st su ta te ter th"
        " ti tion to tr tu un ur ve vi wa we wi y za",
        "а б в го да де е за и ка ко ла ли ло ма на не но о по пра ра ре ро са ста сть та те то ть у хо че ше я",
        "ال ا ب ت ج د ر س ع ف ق ك ل م ن ه و ي",
        "का की के है में ने से पर और यह था को हो ना ता या रा ला",
    )
)
_HANGUL = [chr(0xAC00 + 28 * step) for step in range(0, 380, 3)]
_KANA = [chr(code) for code in range(0x3042, 0x3094)]
_HANZI = [chr(0x4E00 + 7 * step) for step in range(2_900)]


@dataclass(frozen=True, slots=True)
class WritingSystem:
    """A way to write words."""

    syllables: Sequence[str]
    share: float  # of the documents
    spaced: bool = True  # True where a space stands between two words


SCRIPTS = (
    WritingSystem(_LATIN, 0.80),
    WritingSystem(_HANZI, 0.08, spaced=False),
    WritingSystem(_CYRILLIC, 0.05),
    WritingSystem(_KANA + _HANZI[:600], 0.02, spaced=False),
    WritingSystem(_HANGUL, 0.02),
    WritingSystem(_ARABIC, 0.02),
    WritingSystem(_DEVANAGARI, 0.01),
)
_OPENINGS = (
    "The",
    "In",
    "Re:",
    "#",
    "A",
    "How",
    "1.",
    "“",
    "2026年",
    "Это",
    "<p>",
    "- ",
    "def ",
    "// ",
    "http://",
    "We",
)
_CLOSINGS = (
    ",",
    ",",
    ",",
    ".",
    ".",
    ".",
    "!",
    "?",
    ".\n",
    ".\n\n",
    ";",
    ":",
    ")",
    '"',
    "'s",
    "\t",
    "/",
    " —",
    "。",
    "…",
)
_BEFORE = ("(", '"', "“", "@", "$", "\\", "[", "é")
_EMOJI = tuple(chr(code) for code in (*range(0x1F600, 0x1F640), 0x2764, 0x1F680, 0x1F525, 0x1F4A9))
_TEXT_BEGINS, _TEXT_ENDS = b'"text":"', (b'","source"', b'", "source"')


@dataclass(frozen=True, slots=True)
class TextPieces:
    """Short strings back to back, in four forms each: plain or capital, written in UTF-8 or in ASCII with escapes.

    A form is a multiple of `count` that is added to the number of a piece. Piece 0 is the empty string.
    """

    letters: NDArray[np.uint8]
    starts: NDArray[np.int32]
    lengths: NDArray[np.int32]
    count: int
    words: Numbers  # for each script, where its words begin, each with a space; those without begin _LISTED_WORDS later
    fragments: Numbers  # the same for fragments
    digits: int  # where the numbers 0..999 with three digits begin
    spaced_digits: int
    closings: int
    before: int
    emoji: int
    parts: int  # where the fixed parts of a line begin: see _PARTS
    openings: int


# The fixed parts of a line, as JSON. Half of the lines begin with the identifier, the others with the text.
_PARTS = ('{"id":"', '","text":"', '","source":"web/2026-31"}\n', '{"text":"', '", "source": "web", "id": "', '"}\n')


def write(path: Path, size_bytes: int, processes: int = 1, first_block: int = 0) -> None:
    """Write whole lines until the file has at least `size_bytes`; the first line that reaches the size is the last.

    processes: that generate blocks in parallel. first_block: number of the first block; other numbers give other text.
    """
    blocks = range(first_block, first_block + size_bytes // (_BLOCK_BYTES // 2) + 2)
    partial = path.with_suffix(".partial")
    size = 0
    with partial.open("wb") as out:
        for block in _in_order(blocks, processes, size_bytes):
            rest = size_bytes - size
            if rest < len(block):
                block = block[: block.index(b"\n", max(rest - 1, 0)) + 1]
            size += out.write(block)
            if size >= size_bytes:
                break
    partial.rename(path)


def _in_order(blocks: Sequence[int], processes: int, size_bytes: int) -> Iterator[bytes]:
    """Yield the generated blocks in the order of their numbers.

    blocks: their numbers. processes: more than 1 generates blocks ahead in child processes, unless `size_bytes` fits in
    one block. size_bytes: that the caller needs.
    """
    if processes == 1 or size_bytes <= _BLOCK_BYTES:
        yield from map(block_of_lines, blocks)
        return
    _pieces()  # the children inherit them
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        pending = [pool.apply_async(block_of_lines, (block,)) for block in blocks[: 2 * processes]]
        for following in (*blocks[2 * processes :], *(None for _ in pending)):
            yield pending.pop(0).get()
            if following is not None:
                pending.append(pool.apply_async(block_of_lines, (following,)))


def text_within(line: bytes) -> bytes:
    """Return the text of a line of this module as it stands between the quotation marks, escapes included."""
    start = line.index(_TEXT_BEGINS) + len(_TEXT_BEGINS)
    return line[start : max(line.rfind(end, start) for end in _TEXT_ENDS)]


def block_of_lines(number: int) -> bytes:
    """Return the lines of block `number`, about 16 MB. The same number always gives the same bytes."""
    rng, pieces = np.random.default_rng((_SEED, number)), _pieces()
    counts = _document_words(rng)
    documents = len(counts)
    rows = counts + 2  # the line begins and ends with a row of its own
    begins = np.cumsum(rows) - rows
    total = int(rows.sum())
    scripts = rng.choice(len(SCRIPTS), documents, p=[script.share for script in SCRIPTS])
    escaped = rng.random(documents) < 0.5
    table = np.zeros((total, 5), np.int32)
    _fill_words(table, rng, pieces, np.repeat(scripts, rows))
    _capitalise(table, rng, pieces)
    table += np.repeat((2 * pieces.count * escaped).astype(np.int32), rows)[:, None]  # an empty piece stays empty
    _fill_frames(table, rng, pieces, begins, begins + rows - 1, number)
    return _join(table.ravel(), pieces)


def _document_words(rng: np.random.Generator) -> Numbers:
    """Draw the number of words of each of a block's _DOCUMENTS documents, 3 to _MAX_WORDS."""
    words = rng.lognormal(np.log(_MEAN_WORDS) - _SIGMA**2 / 2, _SIGMA, _DOCUMENTS)
    long = rng.random(_DOCUMENTS) < _LONG_SHARE
    words[long] *= 1 + rng.pareto(_LONG_SHAPE, int(long.sum()))
    return np.clip(words, 3, _MAX_WORDS).astype(np.int64)


def _ranks(rng: np.random.Generator, count: int) -> Numbers:
    """Draw `count` ranks of words, 0 to _MAX_RANK - 1, from the two power laws, by inverting their distribution
    functions.
    """
    share = rng.random(count)
    frequent = np.exp(share * (np.log(_KNEE + 1) / _KNEE_SHARE))
    rare = _KNEE * ((1 - share) / (1 - _KNEE_SHARE)) ** (-1 / (_TAIL_EXPONENT - 1))
    return np.minimum(np.where(share < _KNEE_SHARE, frequent, rare), _MAX_RANK).astype(np.int64) - 1


def _fill_words(table: Numbers, rng: np.random.Generator, pieces: TextPieces, scripts: Numbers) -> None:
    """Fill one row of `table` per word: a mark before it, up to three pieces, and punctuation after it.

    table: numbers of pieces, five per row, 0 for none; it is changed in place. scripts: index into SCRIPTS, of each
    row.
    """
    total = len(table)
    ranks = _ranks(rng, total)
    table[:, 1] = pieces.words[scripts] + ranks
    (rare,) = np.nonzero(ranks >= _LISTED_WORDS)
    mixed = (ranks[rare].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15 | 1)) >> np.uint64(28)
    parts = mixed.astype(np.int64)
    fragments = pieces.fragments[scripts[rare]]
    table[rare, 1] = fragments + parts % _FRAGMENTS
    table[rare, 2] = fragments + _FRAGMENTS + (parts >> 12) % _FRAGMENTS
    table[rare, 3] = np.where(ranks[rare] < 1 << 22, 0, fragments + _FRAGMENTS + (parts >> 24) % _FRAGMENTS)

    chance = rng.random(total)
    value = rng.integers(0, 1 << 30, total)
    (numbers,) = np.nonzero(chance < 0.02)
    table[numbers, 1] = pieces.spaced_digits + value[numbers] % 1_000
    table[numbers, 2] = np.where(value[numbers] & 1, pieces.digits + (value[numbers] >> 10) % 1_000, 0)
    table[numbers, 3] = 0
    (emoji,) = np.nonzero((chance >= 0.02) & (chance < 0.021))
    table[emoji, 4] = pieces.emoji + value[emoji] % len(_EMOJI)
    (suffixed,) = np.nonzero((chance >= 0.021) & (chance < 0.161))
    table[suffixed, 4] = pieces.closings + value[suffixed] % len(_CLOSINGS)
    (prefixed,) = np.nonzero((chance >= 0.161) & (chance < 0.181) & (ranks < _LISTED_WORDS))
    table[prefixed, 0] = pieces.before + value[prefixed] % len(_BEFORE)
    table[prefixed, 1] += _LISTED_WORDS  # without a space


def _capitalise(table: Numbers, rng: np.random.Generator, pieces: TextPieces) -> None:
    """Change `table` in place: capitalise the word after the end of a sentence, and 3 of 100 other words."""
    after = table[:-1, 4] - pieces.closings
    first = np.concatenate(([True], (after >= 3) & (after <= 9))) | (rng.random(len(table)) < 0.03)
    table[first, 1] += pieces.count


def _fill_frames(
    table: Numbers, rng: np.random.Generator, pieces: TextPieces, begins: Numbers, ends: Numbers, block: int
) -> None:
    """Fill the first and the last row of each document in `table`, which is changed in place, with the JSON around its
    text.

    begins, ends: rows of the documents. block: number of the block, a part of the documents' identifiers. pieces: have
    the parts of a line.
    """
    documents = len(begins)
    number = block * 1_000_000 + np.arange(documents)
    digits = pieces.digits + np.stack([number // 1_000_000 % 1_000, number // 1_000 % 1_000, number % 1_000], axis=1)
    part = pieces.parts + np.arange(len(_PARTS))
    front = rng.random(documents) < 0.5
    table[begins], table[ends] = 0, 0
    table[begins[front], 0] = part[0]
    table[begins[front], 1:4] = digits[front]
    table[begins[front], 4] = part[1]
    table[ends[front], 0] = part[2]
    table[begins[~front], 0] = part[3]
    table[ends[~front], 0] = part[4]
    table[ends[~front], 1:4] = digits[~front]
    table[ends[~front], 4] = part[5]
    table[begins + 1, 0] = pieces.openings + rng.integers(0, len(_OPENINGS), documents)


def _join(numbers: Numbers, pieces: TextPieces) -> bytes:
    """Return the bytes of the pieces, one after another.

    numbers: of pieces and forms, see `TextPieces`; 0 is the empty piece.
    """
    lengths = pieces.lengths[numbers]
    numbers, lengths = numbers[lengths != 0], lengths[lengths != 0]
    ends = np.cumsum(lengths, dtype=np.int32)
    shift = pieces.starts[numbers] - (ends - lengths)
    at = np.repeat(shift, lengths)
    at += np.arange(len(at), dtype=np.int32)
    joined: bytes = pieces.letters[at].tobytes()
    return joined


@cache
def _pieces() -> TextPieces:
    """Return all pieces. The first call takes about two seconds; later ones return the same object."""
    rng = np.random.default_rng(_SEED)
    strings, words, fragments = [""], [], []
    for script in SCRIPTS:
        space = " " if script.spaced else ""
        listed = _words(rng, script)
        words.append(len(strings))
        strings += [space + word for word in listed] + listed
        short = _distinct_strings(rng, script.syllables, _FRAGMENTS)
        fragments.append(len(strings))
        strings += [space + fragment for fragment in short] + short
    places = []
    numbers = [f"{number:03}" for number in range(1_000)]
    spaced = [f" {number}" for number in range(1_000)]
    emoji = [" " + each for each in _EMOJI]
    for group in (numbers, spaced, _CLOSINGS, [" " + each for each in _BEFORE], emoji, _PARTS, _OPENINGS):
        places.append(len(strings))
        strings += group
    parts = range(places[5], places[6])
    forms = [
        _encode_json_strings(strings, parts, capital, ascii_only)
        for ascii_only in (False, True)
        for capital in (False, True)
    ]
    encoded = [string for form in forms for string in form]
    lengths = np.array([len(string) for string in encoded], np.int32)
    starts = np.cumsum(lengths, dtype=np.int32) - lengths
    letters = np.frombuffer(b"".join(encoded), np.uint8)
    return TextPieces(letters, starts, lengths, len(strings), np.array(words), np.array(fragments), *places)


def _encode_json_strings(strings: Sequence[str], parts: range, capital: bool, ascii_only: bool) -> list[bytes]:
    """Return one form of all strings, as they stand between the quotation marks of JSON.

    parts: indexes of the strings that stay as they are. capital, ascii_only: the form.
    """
    encoder = json.JSONEncoder(ensure_ascii=ascii_only).encode
    return [
        (string if at in parts else encoder(_capital(string) if capital else string)[1:-1]).encode()
        for at, string in enumerate(strings)
    ]


def _capital(string: str) -> str:
    """Return a string with its first letter in upper case; a leading space stays."""
    return " " + string[1:].capitalize() if string.startswith(" ") else string.capitalize()


def _words(rng: np.random.Generator, script: WritingSystem) -> list[str]:
    """Draw the _LISTED_WORDS words of a script, by rank. Frequent words have fewer syllables, at most four."""
    syllables = np.array(script.syllables, dtype=object)
    ranks = np.arange(_LISTED_WORDS)
    longest = 1 + np.searchsorted([60, 2_000, 20_000], ranks, side="right")
    counts = np.maximum(1, longest - (rng.random(_LISTED_WORDS) < 0.25))
    drawn = rng.integers(0, len(syllables), (_LISTED_WORDS, 4))
    return ["".join(syllables[row[:count]]) for row, count in zip(drawn, counts, strict=True)]


def _distinct_strings(rng: np.random.Generator, syllables: Sequence[str], count: int) -> list[str]:
    """Draw `count` distinct strings of one to three syllables, those of fewer syllables first.

    syllables: each one is a string by itself.
    """
    strings = dict.fromkeys(syllables)
    while len(strings) < count:
        few = 2 if len(strings) < min(count, len(syllables) ** 2 // 2) else 3
        strings["".join(syllables[at] for at in rng.integers(0, len(syllables), few))] = None
    return list(strings)[:count]
