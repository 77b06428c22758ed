"""Whatever bytes come, a reader takes them or refuses them in its own words: nothing else happens.

`python -m hack.fuzz` does the same for longer. What it has ever found lies in cases/ and is read here.
"""

import base64
import time
from pathlib import Path
from random import Random

import pytest

from hack.fuzz.mutate import MAX_BYTES, changed
from hack.fuzz.run import feed
from hack.fuzz.target import Target
from hack.fuzz.targets import TARGETS

pytestmark = pytest.mark.slow

CASES = Path(__file__).with_name("cases")
SHORT_S, LONG_S = 60.0 / len(TARGETS), 1_200.0 / len(TARGETS)  # a minute for all of them, twenty in the long run
READERS = pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)


def file_of(target):
    return CASES / f"{target.name.replace(' ', '-').replace(chr(39), '')}.txt"


def fuzzed(target, seconds, seed):
    until_s = time.monotonic() + seconds
    found = feed(target, seed, lambda inputs: time.monotonic() < until_s)
    assert found.inputs > 100, "it was hardly asked"
    assert found.culprit is None, f"{base64.b64encode(found.culprit or b'').decode()}\n{found.why}"


@READERS
def test_no_input_does_harm(target):
    fuzzed(target, SHORT_S, seed=1)


@pytest.mark.long
@READERS
def test_no_input_does_harm_in_a_long_run(target):
    fuzzed(target, LONG_S, seed=time.time_ns())


def cases():
    for target in TARGETS:
        for line in file_of(target).read_text().splitlines() if file_of(target).exists() else ():
            what, _, text = line.partition(": ")
            yield pytest.param(target, base64.b64decode(text), id=f"{target.name}: {what}")


@pytest.mark.parametrize(("target", "data"), [*cases()])
def test_what_was_once_found_is_refused(target, data):
    with pytest.raises(target.refuses):
        target.read(data)


def test_every_file_of_cases_has_its_reader():
    assert {path.name for path in CASES.iterdir()} <= {file_of(target).name for target in TARGETS}


def test_a_defect_is_found_and_shown_again_by_its_seed():
    def odd(data):
        if b"\xff" in data:
            raise KeyError("a defect")

    target = Target("odd", (b"abc",), odd)
    found, again = (feed(target, 1, lambda inputs: inputs < 10_000) for _ in range(2))
    assert b"\xff" in found.culprit
    assert "a defect" in found.why
    assert (found.inputs, found.culprit) == (again.inputs, again.culprit)


def test_an_input_stays_within_its_bound():
    rng = Random(1)
    assert max(len(changed((b"x" * MAX_BYTES,), rng)) for _ in range(200)) <= MAX_BYTES
