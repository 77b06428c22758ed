"""Captions of the second part: a line for each thing that a person should see, and nothing for the rest."""

from __future__ import annotations

from turnout.autoscaler.model import Reason
from turnout.cli.demo.lending.model import LoggedDecision, Moment, MomentKind, Player, Story, held_gpus, running_gpus
from turnout.cli.demo.lending.summary import wait_of, waited

# Of jobs that are left alone: what somebody would ask about. Changes of size are told whatever their reason.
_WAITS = frozenset([Reason.WAITS_FOR_ROOM, Reason.NEEDS_MORE])
_STAYS = frozenset([Reason.COOLDOWN, Reason.REFUSED])

_PAST = {MomentKind.ARRIVES: "arrived", MomentKind.LEAVES: "left"}


def line(story: Story, moment: Moment) -> str:
    """Give the caption of a moment; "" for one without. story: up to this moment."""
    match moment.word:
        case MomentKind.ARRIVES:
            return f"{moment.letter} arrives: {_asks(story.player(moment.letter))}"
        case MomentKind.LEAVES:
            return f"{moment.letter} is done and leaves"
        case MomentKind.SAYS:
            return _decided(moment.decision) if moment.decision else ""
        case MomentKind.RUNS:
            return _runs(story, moment)
        case MomentKind.RESTS:
            return _rests(story, moment)
        case MomentKind.MOVES:
            return ""


def _asks(player: Player) -> str:
    if not player.elastic:
        return f"{_workers(player.least)}, no fewer"
    text = f"{player.least} to {_workers(player.most)}"
    return f"{text}; its owner wants it restarted whenever a pod is evicted" if player.restarts else text


def _workers(count: int) -> str:
    return f"{count} worker{'s' if count > 1 else ''}"


def _decided(decision: LoggedDecision) -> str:
    if decision.is_written:
        verb = "grows" if decision.workers > decision.workers_before else "shrinks"
        text = f"{decision.letter} {verb} from {decision.workers_before} to {decision.workers}"
    elif decision.reason in _WAITS:
        text = f"{decision.letter} waits"
    elif decision.reason in _STAYS:
        text = f"{decision.letter} stays at {decision.workers}"
    else:
        return ""
    return f"{text}: {decision.detail}" if decision.detail else text


def _runs(story: Story, moment: Moment) -> str:
    letter, changes = moment.letter, story.changes(moment.letter)
    text = f"{letter} runs with {_workers(running_gpus(moment.seats, letter))}"
    wait = wait_of(story, letter)
    if wait is not None and story.first(MomentKind.RUNS, letter) is moment:
        return f"{text}, {waited(wait)}"
    last_change = next(m for m in reversed(story.moments) if m.word in _PAST)
    who = "it" if last_change.letter == letter else last_change.letter
    text += f", {moment.at_s - last_change.at_s:.2f} s after {who} {_PAST[last_change.word]}"
    if len(changes) > 1 and last_change.word is MomentKind.LEAVES:
        since_s = changes[-1].at_s - changes[-2].at_s
        text += f"; its size changed {since_s:.1f} s after the last time, and {story.cooldown_s:g} s is its cooldown"
    return text


def _rests(story: Story, moment: Moment) -> str:
    """Say how all jobs stand since the autoscaler's last decision on this one."""
    words = [m for m in story.moments if m.decision and m.decision.letter == moment.letter]
    present = [p.letter for p in story.players if held_gpus(moment.seats, p.letter)]
    now = {letter: held_gpus(moment.seats, letter) for letter in present}
    same = bool(words) and all(held_gpus(words[-1].seats, letter) == has for letter, has in now.items())
    has = ", ".join(f"{letter} has {count}" for letter, count in now.items())
    idle = story.gpus - len(moment.seats)
    what = "nothing has changed" if same else "this has changed"
    since_s = moment.at_s - words[-1].at_s if words else moment.at_s
    return f"{since_s:.1f} s later {what}: {has}, {idle or 'no'} GPU{'' if idle == 1 else 's'} idle"
