"""Cut one long document into parts that several workers tokenize, so that its tokens stay the same.

A part ends before a blank between two ASCII letters, where every split rule that `is_splittable` accepts begins a new
token. The bytes are those of the JSON line: a letter that belongs to an escape is no place for a cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from turnout.preprocess.documents import LineReader

# Six bytes without a backslash: an escape is at most six bytes long, and the letter may be its last.
_CUT = re.compile(rb"[^\\]{6}[A-Za-z] [A-Za-z]")
_BEFORE_CUT, _PATTERN_BYTES = 7, 9
_QUOTE, _BACKSLASH = b'"', ord("\\")
WINDOW_BYTES = 1 << 22

ReadRange = Callable[[int, int], bytes]


def text_range(read: ReadRange, start: int, end: int, reader: LineReader) -> tuple[int, int] | None:
    """Return where the longest string of a JSON line lies, without its quotes, if it is the text of the reader's key.

    None where the line is better read as a whole: another field is the long one, or the line has a fault.
    """
    longest = max(_strings(read, start, end), key=lambda place: place[1] - place[0], default=(start, start))
    first, last = longest
    if last - first < (end - start) // 2 or end - start - (last - first) > WINDOW_BYTES:
        return None
    skeleton = read(start, first) + read(last, end)
    documents = reader.read(skeleton)
    return (first, last) if [*documents.texts[0]] == [""] else None


def cut_offsets(read: ReadRange, start: int, end: int, part_bytes: int) -> list[int]:
    """Return the offsets at which a JSON string is cut into parts, without its start.

    start, end: of the string in the file. part_bytes: about the size of a part.
    """
    places: list[int] = []
    at = start + part_bytes
    while at < end - _PATTERN_BYTES:
        window_end = min(end, at + WINDOW_BYTES)
        if (match := _CUT.search(read(at, window_end))) is not None:
            places.append(at + match.start() + _BEFORE_CUT)
            at = max(at, places[-1]) + part_bytes
        elif window_end == end:
            break
        else:
            at = window_end - _PATTERN_BYTES
    return places


def _strings(read: ReadRange, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where each string of a JSON line lies, keys included, window by window."""
    at, opened = start, -1  # opened: where the string began whose end is sought
    while at < end:
        window = read(at, min(end, at + WINDOW_BYTES))
        position = 0
        while position < len(window):
            if opened < 0:
                quote = window.find(b'"', position)
                if quote < 0:
                    break
                opened, position = at + quote + 1, quote + 1
                continue
            end_of_string = _string_end(window, position)
            if end_of_string < 0:
                break
            yield opened, at + end_of_string
            opened, position = -1, end_of_string + 1
        at += len(window) - (_open_escape(window, position) if opened >= 0 else 0)


def _string_end(window: bytes, start: int) -> int:
    """Return where the quote is that ends a string, -1 if the string does not end in the window.

    start: a place in the string, outside of an escape. A quote behind an odd number of backslashes is escaped. Strings
    may have hundreds of megabytes, so each step is one search for a byte.
    """
    quote = window.find(_QUOTE, start)
    while quote >= 0:
        first = quote
        while first > start and window[first - 1] == _BACKSLASH:
            first -= 1
        if (quote - first) % 2 == 0:
            return quote
        quote = window.find(_QUOTE, quote + 1)
    return -1


def _open_escape(window: bytes, position: int) -> int:
    """Return 1 if the window ends within an escape, behind its backslash."""
    tail = window[position:]
    return (len(tail) - len(tail.rstrip(b"\\"))) % 2
