"""Whether the story happened as it is told: every claim is held against what was seen, and named when it fails."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.autoscaler.model import Reason
from turnout.cli.demo.lending.model import MomentKind, Story, StoryMoment, held_gpus, running_gpus
from turnout.cli.demo.lending.summary import wait_of

_STAMP_S = 1.0  # the moment of a change stands on the job in whole seconds


def missing(story: Story, lends: str, served: str, too_large: str, refused: str) -> tuple[str, ...]:
    """Sentences on what did not happen; none for the story as it is told. The arguments are signs of jobs."""
    claims = (
        _grew(story, lends),
        _just_enough(story, served),
        _undisturbed(story, too_large),
        _just_enough(story, too_large),
        _grew_again(story, lends),
        _left_alone(story, refused),
        _in_bounds(story),
    )
    return tuple(fault for claim in claims for fault in claim)


def _grew(story: Story, letter: str) -> Iterator[str]:
    """Before it gives anything, it has all that it can use."""
    less = _shrinks(story, letter)
    if less:
        yield from _uses_all_room(story, letter, 0.0, less[0].at_s)
    else:
        yield f"{letter} never gave anything back"


def _uses_all_room(story: Story, letter: str, after_s: float, before_s: float) -> Iterator[str]:
    most = story.player(letter).most
    grown = (m.decision for m in story.changes(letter) if after_s < m.at_s < before_s and m.decision)
    if not any(decision.reason is Reason.IDLE_ROOM and decision.workers == most for decision in grown):
        when = "at first" if after_s == 0.0 else "once it could again"
        yield f"{letter} did not grow to {most} {when}, with the reason {Reason.IDLE_ROOM.value}"


def _just_enough(story: Story, letter: str) -> Iterator[str]:
    """Check that workers gave what was short, once those had gone that were on their way out already."""
    changes = [m for m in story.changes() if m.decision and m.decision.for_ == letter]
    if wait_of(story, letter) is None:
        yield f"nobody made room for {letter}, or it does not run"
        return
    left = {m.letter for m in story.moments if m.word is MomentKind.LEAVES and m.at_s <= changes[0].at_s}
    staying = sum(seat.letter not in left for seat in changes[0].seats)
    short = story.player(letter).least - (story.gpus - staying)
    given = sum(m.decision.workers_before - m.decision.workers for m in changes if m.decision)
    if given != short:
        yield f"{given} workers left for {letter}, which was short of {short}"


def _undisturbed(story: Story, letter: str) -> Iterator[str]:
    """While a job needs more than could be given, nobody is changed for it."""
    moment = _decision_moment(story, letter, Reason.NEEDS_MORE)
    rests = story.first(MomentKind.RESTS, letter)
    if moment is None or rests is None:
        yield f"{letter} was not told {Reason.NEEDS_MORE.value}"
        return
    if any(moment.at_s <= m.at_s <= rests.at_s for m in story.changes()):
        yield f"somebody was resized while {letter} could not have been helped by it"
    if any(held_gpus(moment.seats, p.letter) != held_gpus(rests.seats, p.letter) for p in story.players):
        yield f"somebody lost or got GPUs while {letter} waited in vain"


def _grew_again(story: Story, letter: str) -> Iterator[str]:
    """After it has given, it grows to its most once more, and no sooner than it may."""
    if not (less := _shrinks(story, letter)):
        return
    yield from _uses_all_room(story, letter, less[-1].at_s, float("inf"))
    waited = [m.at_s - less[-1].at_s for m in story.changes(letter) if m.at_s > less[-1].at_s]
    if waited and waited[0] < story.cooldown_s - _STAMP_S:
        yield f"{letter} grew {waited[0]:.1f} s after its last change, within its cooldown of {story.cooldown_s:g} s"


def _left_alone(story: Story, letter: str) -> Iterator[str]:
    """A job that must not be resized keeps its size beside idle GPUs, and is told why."""
    moment = _decision_moment(story, letter, Reason.REFUSED)
    if moment is None or moment.decision is None or not moment.decision.detail:
        yield f"{letter} was not told {Reason.REFUSED.value} with a sentence"
    rests = story.first(MomentKind.RESTS, letter)
    if rests is None or held_gpus(rests.seats, letter) != story.player(letter).least or story.changes(letter):
        yield f"{letter} was resized, although that would restart it"
    elif len(rests.seats) == story.gpus:
        yield f"no GPU was idle beside {letter}"


def _in_bounds(story: Story) -> Iterator[str]:
    """Nobody has more than its most, nor, once it has run, less than its least."""
    ran: set[str] = set()
    for moment in story.moments:
        if moment.word is MomentKind.LEAVES:
            ran.discard(moment.letter)
        for player in story.players:
            has = running_gpus(moment.seats, player.letter)
            if held_gpus(moment.seats, player.letter) > player.most:
                yield f"{player.letter} had more than {player.most} workers"
                return
            if has >= player.least and not _left(story, player.letter, moment):
                ran.add(player.letter)
            elif player.letter in ran:
                yield f"{player.letter} had {has} workers, fewer than {player.least}"
                return


def _shrinks(story: Story, letter: str) -> list[StoryMoment]:
    return [m for m in story.changes(letter) if m.decision and m.decision.workers < m.decision.workers_before]


def _left(story: Story, letter: str, now: StoryMoment) -> bool:
    left = story.first(MomentKind.LEAVES, letter)
    return left is not None and left.at_s <= now.at_s


def _decision_moment(story: Story, letter: str, reason: Reason) -> StoryMoment | None:
    words = (m for m in story.moments if m.decision and m.decision.letter == letter)
    return next((m for m in words if m.decision and m.decision.reason is reason), None)
