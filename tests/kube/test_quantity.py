"""Quantities: every form of Kubernetes, exact, rounded away from zero."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.kube.errors import BadQuantity
from turnout.kube.pod_shape import base_units, milli

CAP = 2**63 - 1
POWERS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARIES = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


@pytest.mark.parametrize(
    ("text", "in_milli", "in_whole"),
    [
        pytest.param("0", 0, 0, id="nothing"),
        pytest.param("8", 8000, 8, id="eight GPUs"),
        pytest.param("100m", 100, 1, id="a tenth of a core takes a whole one when only whole ones are counted"),
        pytest.param("0.1", 100, 1, id="a fraction"),
        pytest.param(".5", 500, 1, id="a fraction without its nought"),
        pytest.param("5.", 5000, 5, id="a point without its fraction"),
        pytest.param("1.5Gi", 1_610_612_736_000, 1_610_612_736, id="a binary suffix on a fraction"),
        pytest.param("1k", 1_000_000, 1000, id="kilo is small"),
        pytest.param("1E", 10**21, 10**18, id="E alone is exa"),
        pytest.param("1E3", 1_000_000, 1000, id="E with digits is an exponent"),
        pytest.param("1e3", 1_000_000, 1000, id="e with digits is an exponent"),
        pytest.param("1E+2", 100_000, 100, id="an exponent with a plus"),
        pytest.param("25e-2", 250, 1, id="an exponent with a minus"),
        pytest.param("1Ei", 2**60 * 1000, 2**60, id="exbi"),
        pytest.param("1n", 1, 1, id="less than a thousandth counts as one"),
        pytest.param("1000001u", 1001, 2, id="a millionth too much rounds up"),
        pytest.param("-1.5", -1500, -2, id="below zero it rounds away from zero as well"),
        pytest.param("+2", 2000, 2, id="a plus"),
        pytest.param(3, 3000, 3, id="a JSON integer"),
        pytest.param(0.5, 500, 1, id="a JSON fraction"),
        pytest.param(1e16, 10**19, 10**16, id="a JSON number that Python writes with an exponent"),
        pytest.param("1e30", CAP * 1000, CAP, id="Kubernetes caps at 2^63-1"),
        pytest.param("1e999999999", CAP * 1000, CAP, id="an exponent meant to eat memory"),
        pytest.param("1e-999999999", 1, 1, id="one meant to eat time"),
        pytest.param("0." + "0" * 99 + "1e100", 1000, 1, id="a long text whose exponent undoes it"),
    ],
)
def test_reads(text, in_milli, in_whole):
    assert (milli(text), base_units(text)) == (in_milli, in_whole)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "1 ", " 1", "1\n", ".", "+", "m", "Gi", "1K", "1ki", "1i", "1e", "1ee3", "1e3k", "1.1.1", "0x10"),
        *("1,5", "1_0", "٣", "one", "1GiB", "1" * 129, float("inf"), float("nan"), True),
    ],
    ids=repr,
)
def test_refuses(text):
    with pytest.raises(BadQuantity):
        milli(text)


@given(
    whole_part=st.integers(0, 10**12),
    fraction=st.text("0123456789", max_size=12),
    suffix=st.sampled_from([*POWERS, *BINARIES]),
    negative=st.booleans(),
)
def test_agrees_with_exact_fractions(whole_part, fraction, suffix, negative):
    text = f"{whole_part}.{fraction}{suffix}"
    unit = Fraction(2) ** BINARIES[suffix] if suffix in BINARIES else Fraction(10) ** POWERS[suffix]
    exact = Fraction(int(f"{whole_part}{fraction}"), 10 ** len(fraction)) * unit
    for read, scale in ((milli, 1000), (base_units, 1)):
        up = min(-(-exact * scale // 1), CAP * scale)
        assert read(f"-{text}" if negative else text) == (-up if negative else up)


@given(st.text(max_size=20) | st.floats() | st.integers())
def test_any_input_is_read_within_the_cap_or_refused(anything):
    try:
        read = base_units(anything)
    except BadQuantity:
        return
    assert abs(read) <= CAP
