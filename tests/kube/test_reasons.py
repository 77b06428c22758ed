"""The texts of reasons: each word that a program writes has one, and each text belongs to such a word."""

import itertools
import re

import pytest

from turnout.autoscaler.controller.event_recorder import UNKNOWN
from turnout.autoscaler.model import GangReason
from turnout.autoscaler.model import Reason as OfJob
from turnout.autoscaler.node_faults.model import NodeReason
from turnout.controllers.model import Reason as Controlled
from turnout.kube import reasons
from turnout.scheduler_ext.model import EventReason
from turnout.scheduler_ext.model import LiftReason as Lifted
from turnout.scheduler_ext.planner.nominations import NominationReason as Nominated


@pytest.mark.parametrize(
    ("meanings", "words"),
    [
        pytest.param(
            reasons.AUTOSCALER,
            {*(each.value for each in itertools.chain(OfJob, GangReason)), UNKNOWN},
            id="the autoscaler, about jobs",
        ),
        pytest.param(reasons.NODES, {each.value for each in NodeReason}, id="the autoscaler, about nodes"),
        pytest.param(reasons.EXTENDER, {each.value for each in EventReason}, id="extender and nominator"),
        pytest.param(
            reasons.NOMINATOR,
            {each.value for each in itertools.chain(Nominated, Lifted)},
            id="nominations and scheduling gates",
        ),
        pytest.param(reasons.CONTROLLER, {each.value for each in Controlled}, id="the job controllers"),
    ],
)
def test_every_word_of_a_program_has_a_text(meanings, words):
    assert meanings.keys() == words


@pytest.mark.parametrize("group", reasons.GROUPS, ids=lambda group: group.program)
def test_a_text_is_whole_sentences_of_its_own(group):
    for word, meaning in group.meanings.items():
        for text in (meaning.means, meaning.next, meaning.look or group.look):
            assert re.fullmatch(r"[A-Za-z].*[.]", text), f"{word}: {text}"
    assert len({meaning.means for meaning in group.meanings.values()}) == len(group.meanings)


def test_an_anchor_is_of_one_word():
    assert len({word.lower() for word in reasons.WORDS}) == len(reasons.WORDS)


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        pytest.param("", "turnout explain NoRoom", id="no site"),
        pytest.param("https://docs.example.com", "https://docs.example.com/reference/reasons.html#noroom", id="a site"),
        pytest.param("http://docs/turnout/", "http://docs/turnout/reference/reasons.html#noroom", id="with a slash"),
    ],
)
def test_where_a_reason_is_explained(base_url, expected):
    assert reasons.pointer("NoRoom", base_url) == expected


@pytest.mark.parametrize("base_url", ["", "https://docs.example.com/turnout"], ids=["no site", "a site"])
def test_a_message_is_read_without_the_place_where_its_reason_is_explained(base_url):
    message = f"8 GPUs (of 16) short ({reasons.pointer('NoRoom', base_url)})"
    assert reasons.without_pointer(message, "NoRoom") == "8 GPUs (of 16) short"
    assert reasons.without_pointer("8 GPUs (of 16)", "NoRoom") == "8 GPUs (of 16)"


def test_a_word_of_two_programs_is_explained_twice():
    text = "\n".join(reasons.explain("clockjumped"))
    assert "ClockJumped (turnout-autoscaler)" in text
    assert "ClockJumped (turnout-controller)" in text
    assert reasons.explain("Nonsense") == []
