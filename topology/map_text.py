"""Read the map format of the DLRover guide: one line per node, `asw psw node-ip`, leaf switch first.

Blank lines and blanks around a field are ignored; `#` starts a comment. A switch is known by its path. So the same asw
under two psw is two switches: many sites number the leaves of every pod from one. A node that is named twice is a fault
even if both lines agree: one of the lines was meant for another node.
"""

from __future__ import annotations

from turnout.topology.model import Entry, Fault, Reading
from turnout.topology.names import MAX_TEXT_BYTES, host_fault, switch_fault


def read_text(text: str) -> Reading:
    """Read a whole text and gather every fault, in line order. Raises nothing."""
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        return Reading((), (Fault(0, f"text is larger than {MAX_TEXT_BYTES} bytes"),))
    entries: list[Entry] = []
    faults: list[Fault] = []
    lines_of: dict[str, list[int]] = {}
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        fields = _without_comment(raw).split()
        if not fields:
            continue
        wrong = _fault(fields)
        if wrong:
            faults.append(Fault(number, wrong))
            continue
        asw, psw, host = fields
        lines_of.setdefault(host, []).append(number)
        entries.append(Entry(host, (psw, asw), number))
    faults += duplicates(lines_of)
    # MAX_HOSTS needs no look: so many lines, of six bytes at least, are more than MAX_TEXT_BYTES.
    return Reading(tuple(entries), tuple(sorted(faults, key=lambda fault: fault.line)))


def duplicates(lines_of: dict[str, list[int]]) -> list[Fault]:
    """Return one fault per host that stands on more than one line, with the line of the second mention.

    lines_of: host -> its lines, ascending.
    """
    return [
        Fault(lines[1], f"host {host} is named {len(lines)} times, on lines {_listed(lines)}")
        for host, lines in lines_of.items()
        if len(lines) > 1
    ]


def _listed(lines: list[int]) -> str:
    return ", ".join(map(str, lines[:8])) + (", ..." if len(lines) > 8 else "")


def _without_comment(line: str) -> str:
    """Remove a comment, which begins with a `#` at the start of a word."""
    if "#" not in line:
        return line
    words = []
    for word in line.split():
        if word.startswith("#"):
            break
        words.append(word)
    return " ".join(words)


def _fault(fields: list[str]) -> str:
    if len(fields) != 3:
        return f"a line holds three fields, asw psw node-ip; this one holds {len(fields)}"
    return switch_fault(fields[0]) or switch_fault(fields[1]) or host_fault(fields[2])
