"""Log lines: every field kept, no secret, one line an event, whoever wrote it."""

import io
import json
import logging

import pytest

from turnout.kube.client.logs import setup


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def log_lines():
    """Set up logging on a stream and give back what a record becomes; the old set-up returns afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level

    def say(stream, extra=None, message="worker_evicted", at="INFO", **more):
        setup(at, stream)
        logging.getLogger("autoscaler.loop").info(message, extra=extra or {}, **more)
        return stream.getvalue()

    yield say
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_machine_gets_one_json_object_a_line(log_lines):
    text = log_lines(
        io.StringIO(), {"job": "bert\n", "gpus": 3, "ratio": 0.5, "ok": True, "none": None, "nan": float("nan")}
    )
    assert text.count("\n") == 1
    line = json.loads(text, parse_constant=pytest.fail)
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "logger": "autoscaler.loop",
        "event": "worker_evicted",
        "job": "bert\n",
        "gpus": 3,
        "ratio": 0.5,
        "ok": True,
        "none": None,
        "nan": "nan",
    }


def test_a_person_gets_a_plain_line_that_cannot_move_the_cursor(log_lines):
    text = log_lines(Terminal(), {"job": "bert\x1b[2J", "gpus": 3})
    assert text.endswith(" info    worker_evicted job=bert\\x1b[2J gpus=3\n")


@pytest.mark.parametrize(
    "extra",
    [
        {"token": "abc123secret"},
        {"Authorization": "Bearer abc123secret"},
        {"clientSecret": "abc123secret"},
        {"why": "sent Bearer abc123secret to it"},
        {"why": "eyJhbGci.abc123secret.sig"},
        {"why": "-----BEGIN EC PRIVATE KEY-----\nabc123secret\n-----END EC PRIVATE KEY-----"},
        {"headers": {"x": "bearer abc123secret"}},
    ],
    ids=["token", "header", "camel case", "in a sentence", "JSON web token", "key", "inside a dict"],
)
@pytest.mark.parametrize("stream", [io.StringIO, Terminal], ids=["json", "plain"])
def test_no_secret_leaves(log_lines, extra, stream):
    text = log_lines(stream(), extra)
    assert "abc123secret" not in text
    assert "[hidden]" in text


def test_fields_never_replace_the_lines_own(log_lines):
    line = json.loads(log_lines(io.StringIO(), {"level": "mine", "event": "mine"}))
    assert (line["level"], line["event"], line["level_"], line["event_"]) == ("info", "worker_evicted", "mine", "mine")


def test_what_cannot_be_shown_does_not_break_the_line(log_lines):
    class Rude:
        def __str__(self):
            raise RuntimeError("no")

    assert "cannot be shown" in json.loads(log_lines(io.StringIO(), {"job": Rude()}))["job"]


def test_an_error_keeps_the_end_of_its_trace(log_lines):
    def deep(n):
        return deep(n - 1) if n else 1 / 0

    try:
        deep(300)
    except ZeroDivisionError:
        line = json.loads(log_lines(io.StringIO(), {"trace": "mine"}, exc_info=True))
    assert line["trace"].endswith("ZeroDivisionError: division by zero")
    assert line["trace_"] == "mine"


@pytest.mark.parametrize("stream", [io.StringIO, Terminal], ids=["json", "plain"])
@pytest.mark.parametrize(
    ("start", "secret"),
    [
        pytest.param("Authorization: Bearer ", "abc123secret", id="token"),
        pytest.param("-----BEGIN PRIVATE KEY-----\n", "abc123secret\n-----END PRIVATE KEY-----", id="key"),
    ],
)
def test_a_cut_through_a_secret_of_a_trace_does_not_show_it(log_lines, start, secret, stream):
    for filler_chars in range(16_384 - len(secret) - len(start), 16_384 - len(secret) + 1):
        try:
            raise ValueError(f"{start}{secret} {'x' * (filler_chars - 1)}")
        except ValueError:
            assert "abc123secret" not in log_lines(stream(), exc_info=True)


def test_a_cut_through_a_token_of_a_field_does_not_show_it(log_lines):
    line = json.loads(log_lines(io.StringIO(), {"why": f"{'x ' * 2042} Bearer abc123secret"}))
    assert "abc" not in line["why"]


def test_a_text_of_many_beginnings_of_tokens_is_searched_quickly(log_lines):
    text = "eyJ-" * 250_000
    assert json.loads(log_lines(io.StringIO(), {"why": text}))["why"] == text[:4096]


def test_what_is_below_the_level_is_not_written(log_lines):
    assert log_lines(io.StringIO(), at="warning") == ""
