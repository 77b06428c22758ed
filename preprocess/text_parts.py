"""Cut one long document into parts that several workers tokenize, so that its tokens stay the same.

A part ends before a blank between two ASCII letters, where every split rule that `is_splittable` accepts begins a new
token. The bytes are those of the JSON line, so a letter that belongs to an escape is no place for a cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from turnout.preprocess.documents import LineReader

# Six bytes without a backslash: an escape is at most six bytes long, and the letter may be its last.
_CUT = re.compile(rb"[^\\]{6}[A-Za-z] [A-Za-z]")
_BEFORE_CUT, _PATTERN_BYTES = 7, 9  # bytes of a match before the cut, and of the whole match
_QUOTE, _BACKSLASH = b'"', ord("\\")
WINDOW_BYTES = 1 << 22  # bytes that are searched at once

ReadRange = Callable[[int, int], bytes]  # returns the bytes of a file from one offset to before another


def text_range(read: ReadRange, start: int, end: int, reader: LineReader) -> tuple[int, int] | None:
    """Return the offsets (start, end) of the text of a JSON line, without its quotes.

    read: returns the bytes between two offsets. start, end: offsets of the line. reader: for the one key. None if the
    line has a fault, or if its longest string is not the value of that key. None also if that string is less than half
    of the line, or has more than WINDOW_BYTES around it.
    """
    longest = max(_strings(read, start, end), key=lambda place: place[1] - place[0], default=(start, start))
    first, last = longest
    if last - first < (end - start) // 2 or end - start - (last - first) > WINDOW_BYTES:
        return None
    before, after = read(start, first), read(last, end)
    # The string is the text of the line if the text is always the content of that string: one content could also be
    # the value of the key by chance.
    is_text = all([*reader.read(before + content + after).texts[0]] == [content.decode()] for content in (b"", b"x"))
    return (first, last) if is_text else None


def cut_offsets(read: ReadRange, start: int, end: int, part_bytes: int) -> list[int]:
    """Return the offsets at which a JSON string is cut into parts, ascending; [] if it cannot be cut.

    read: reads the file. start, end: offsets of the string in the file. part_bytes: the approximate size of a part.
    """
    offsets: list[int] = []
    offset = start + part_bytes
    while offset < end - _PATTERN_BYTES:
        window_end = min(end, offset + WINDOW_BYTES)
        if (match := _CUT.search(read(offset, window_end))) is not None:
            offsets.append(offset + match.start() + _BEFORE_CUT)
            offset = max(offset, offsets[-1]) + part_bytes
        elif window_end == end:
            break
        else:
            offset = window_end - _PATTERN_BYTES
    return offsets


def _strings(read: ReadRange, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the offsets (start, end) of each string of a JSON line without its quotes, names of fields included.

    A string that does not end before `end` is left out. read: returns the bytes from one offset to before another.
    start, end: the offsets of the line.
    """
    offset = start
    string_start = -1  # the offset of the string whose end is not found yet, -1 outside of strings
    while offset < end:
        window = read(offset, min(end, offset + WINDOW_BYTES))
        position = 0
        while position < len(window):
            if string_start < 0:
                quote = window.find(b'"', position)
                if quote < 0:
                    break
                string_start, position = offset + quote + 1, quote + 1
                continue
            end_of_string = _string_end(window, position)
            if end_of_string < 0:
                break
            yield string_start, offset + end_of_string
            string_start, position = -1, end_of_string + 1
        offset += len(window) - (_open_escape(window, position) if string_start >= 0 else 0)


def _string_end(window: bytes, start: int) -> int:
    """Return the index in `window` of the quote that ends a JSON string; -1 if the window ends first.

    start: an index in `window` inside the string, not inside an escape sequence. A quote after an odd number of
    backslashes is escaped. Strings may be hundreds of megabytes long, so each step is one search for a byte.
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
    """Return 1 if the window ends inside an escape, after its backslash, else 0.

    position: the index in `window` from which backslashes count, not inside an escape.
    """
    tail = window[position:]
    return (len(tail) - len(tail.rstrip(b"\\"))) % 2
