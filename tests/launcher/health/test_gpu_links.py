"""The links between GPUs and their switchbox: which are broken, and when a node is."""

import pytest

from turnout.launcher.errors import ProbeFailed
from turnout.launcher.health.model import Box, NodeChecks, judge_links
from turnout.launcher.health.probes.measure import PeerCopy, bandwidths

USUAL = NodeChecks()


class Wires:
    """A link probe of another maker: links have the bandwidths that they are given, or fail."""

    def __init__(self, **mb_per_s):
        self._mb_per_s = {tuple(map(int, name[1:].split("_"))): value for name, value in mb_per_s.items()}
        self.asked = []

    def mb_per_s(self, one, other):
        self.asked.append((one, other))
        if (found := self._mb_per_s.get((one, other), 20_000)) is None:
            raise ProbeFailed("nothing comes through")
        return found


def verdict_of(wires, checks=USUAL):
    return judge_links(bandwidths(checks.box_pairs, wires), checks.min_bandwidth_mb_per_s, checks.min_channels)


@pytest.mark.contract("DL-34", "DL-35", "DL-96")
def test_the_pairs_of_the_guide_are_measured_one_by_one():
    """DL-96, DL-33"""
    wires = Wires()
    assert verdict_of(wires) == Box()
    assert wires.asked == [(0, 1), (2, 4), (3, 5), (6, 7)]


@pytest.mark.contract("DL-34", "DL-35", "DL-96")
@pytest.mark.parametrize(
    ("wires", "broken", "faulty"),
    [
        pytest.param(Wires(l0_1=10_000), (), False, id="just enough, DL-34"),
        pytest.param(Wires(l0_1=9_999), ((0, 1),), False, id="a little less is broken, DL-34"),
        pytest.param(Wires(l2_4=None), ((2, 4),), False, id="one that fails is broken, DL-99"),
        pytest.param(Wires(l0_1=1, l2_4=1), ((0, 1), (2, 4)), False, id="two of four work: the node passes, DL-35"),
        pytest.param(Wires(l0_1=1, l2_4=1, l6_7=None), ((0, 1), (2, 4), (6, 7)), True, id="one of four: faulty, DL-35"),
    ],
)
def test_links(wires, broken, faulty):
    box = verdict_of(wires)
    assert (box.broken, box.faulty) == (broken, faulty)
    assert all(f"{one}:{other}" in box.why for one, other in broken)


def test_other_limits():
    checks = NodeChecks(
        network=True, switchbox=True, box_pairs=((0, 1), (2, 3)), min_bandwidth_mb_per_s=5, min_channels=1
    )
    assert not verdict_of(Wires(l0_1=4), checks).faulty
    assert verdict_of(Wires(l0_1=4, l2_3=4.9), checks).faulty


def test_without_gpus_the_copy_finds_no_link():
    """With them it is the one that runs. DL-99"""
    assert bandwidths(((100, 101),), PeerCopy(copy_bytes=1 << 20)) == (((100, 101), None),)
