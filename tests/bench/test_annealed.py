"""The search that stands beside our meshes counts as the traffic model does, and finds what trying all ways finds."""

from itertools import permutations
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.bench.placement.mesh import annealed
from turnout.topology import mesh as model

MESHES = (
    (("pp", 4), ("dp", 4), ("tp", 8)),
    (("dp", 4), ("pp", 2), ("cp", 2), ("tp", 8)),
    (("dp", 2), ("ep", 8), ("tp", 8)),
    (("dp", 2), ("ep", 4), ("tp", 4)),
)


@given(st.sampled_from(MESHES), st.data())
def test_it_counts_as_the_traffic_model_does(mesh, data):
    pods = prod(size for _, size in mesh) // 8
    leaves = data.draw(st.lists(st.integers(0, 3), min_size=pods, max_size=pods))
    ranks = [leaf for leaf in leaves for _ in range(8)]
    assert annealed.crossing_gb(annealed.traffic(mesh, 8), leaves) == pytest.approx(model.crossing_gb(mesh, ranks))


@pytest.mark.parametrize(("mesh", "places"), [
    pytest.param((("dp", 2), ("pp", 3), ("tp", 8)), (3, 3), id="two leaves that are filled"),
    pytest.param((("dp", 3), ("pp", 2), ("tp", 8)), (3, 4), id="a place is left"),
    pytest.param((("dp", 2), ("ep", 3), ("tp", 8)), (2, 2, 2), id="three leaves"),
])  # fmt: skip
def test_it_finds_the_least_of_all_ways(mesh, places):
    sent = annealed.traffic(mesh, 8)
    all_places = [leaf for leaf, count in enumerate(places) for _ in range(count)]
    minimum = min(annealed.crossing_gb(sent, way) for way in set(permutations(all_places, len(sent))))
    start = all_places[: len(sent)]
    spare = {leaf: count - start.count(leaf) for leaf, count in enumerate(places)}
    assert annealed.least_gb(sent, start, spare, 5_000, 1) == pytest.approx(minimum)
