"""A decision log decided again: are the plans the same to the last word?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import Step
from turnout.autoscaler.reporting.decision_log import Reader
from turnout.autoscaler.reporting.log_codec import BadLog, Told, digest, words

_CONTRADICTIONS = (LookupError, ValueError, TypeError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Replayed:
    """One line, decided again. fault: why it could not be. differs: the first decision that is another one, as text."""

    line: int
    decisions: int = 0
    fault: str = ""
    differs: str = ""
    program: str = ""


def replay(lines: Iterable[bytes]) -> Iterator[Replayed]:
    """Decide each line again. Lines are counted from 1; one that cannot be read is told and passed over."""
    reader = Reader()
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            told = reader.read(text)
        except BadLog as error:
            yield Replayed(number, fault=str(error))
            continue
        try:
            steps = decide(told.seen, told.policy, told.now_s)
        except _CONTRADICTIONS as error:  # whatever the autoscaler has decided was whole
            yield Replayed(number, fault=f"its parts contradict one another: {error!r:.200}")
            continue
        yield Replayed(number, len(steps), differs=difference(told, steps), program=told.program)


def difference(told: Told, steps: list[Step]) -> str:
    """The first decision that is another one by now, "" for none."""
    now = words(steps)
    for key in sorted(told.words.keys() | now.keys()):
        was, is_ = told.words.get(key), now.get(key)
        if was != is_:
            return f"{key}: the log has {_word(was)}, now it is {_word(is_)}"
    if digest(steps) != told.digest:
        return "reasons and sizes are the same, but not all details"
    return ""


def _word(word: tuple[str, int] | None) -> str:
    return "nothing" if word is None else f"{word[0]}, {word[1]} workers"
