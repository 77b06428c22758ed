"""Users of the guides find each promise told in both languages."""

import re
from collections import Counter

import pytest
import yaml

from hack.codegen import guide_index
from hack.codegen.guide_index import DOCS, ROOT, BadRange, ids, places

TABLE = (ROOT / DOCS / "guide-index.yaml").read_text()
PROMISED = [row["id"] for row in yaml.safe_load((ROOT / DOCS / "contract.yaml").read_text())]
PLACES = places(TABLE)


def test_the_page_is_as_the_table_says():
    assert (ROOT / guide_index.PAGE).read_text() == guide_index.generate_page()


@pytest.mark.contract("XD-12")
def test_each_promise_is_told_in_one_place_of_each_language():
    assert Counter({each: len(of_each) for each, of_each in PLACES.items()}) == Counter(PROMISED)


def test_the_chinese_place_is_a_page_in_chinese():
    """tests/test_docs.py holds that each section that is linked is there."""
    for file in {of_each[0].zh.partition("#")[0] for of_each in PLACES.values()}:
        text = (ROOT / DOCS / file).read_text()
        assert len(re.findall(r"[\u4e00-\u9fff]", text)) > 400, file


@pytest.mark.parametrize(
    ("words", "found"),
    [
        pytest.param(["CS-01"], ["CS-01"], id="an id"),
        pytest.param(["CS-09..CS-11"], ["CS-09", "CS-10", "CS-11"], id="a range"),
        pytest.param(["DL-99..DL-100", "CS-01"], ["DL-99", "DL-100", "CS-01"], id="of three digits, and another"),
    ],
)
def test_ranges_are_read(words, found):
    assert list(ids(words)) == found


@pytest.mark.parametrize("word", ["", "CS", "CS-02..CS-01", "CS-01..DL-02", "CS-01..", "CS-1x"])
def test_what_is_no_range_is_refused(word):
    with pytest.raises(BadRange):
        list(ids([word] if word != "CS-01.." else ["CS-01..CS"]))
