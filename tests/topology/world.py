"""Small fabrics for tests, and strategies that draw any fabric, room and ask."""

import numpy as np
from hypothesis import strategies as st

from turnout.topology.fabric import build, with_unmapped_hosts
from turnout.topology.model import DistanceRule, MapEntry, PlacementRequest

GUIDE_LINES = 10


def guide_table():
    """The DLRover guide's shape: ten nodes dealt over four access switches, blanks around, blank lines between."""
    lines = [f"  asw{at % 4}   psw{at % 4 // 2} 10.0.0.{at + 1}  " for at in range(GUIDE_LINES)]
    return "\n\n".join(lines) + "\n"


def fabric(*leaves, under="spine"):
    """A fabric from leaves of so many hosts each: fabric([2, 2], [3]) has two spines, the first with two leaves."""
    entries = []
    for spine, sizes in enumerate(leaves):
        for leaf, size in enumerate(sizes):
            for _ in range(size):
                entries.append(
                    MapEntry(f"gpu{len(entries)}", (f"{under}{spine}", f"leaf{spine}-{leaf}"), len(entries) + 1)
                )
    return build(entries)


def room(*counts):
    return np.array(counts, np.int32)


def paths():
    """Paths of one to four switches from few names, so that branches are shared, short, deep and mixed."""
    return st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=4).map(tuple)


@st.composite
def fabrics(draw, max_hosts=24):
    """Any fabric: irregular, of 1 to 5 tiers, with or without hosts off the map."""
    drawn = draw(st.lists(paths(), min_size=0, max_size=max_hosts))
    built = build(MapEntry(f"h{at}", path, at + 1) for at, path in enumerate(drawn))
    return with_unmapped_hosts(built, [f"x{at}" for at in range(draw(st.integers(0 if drawn else 1, 3)))])


@st.composite
def scenes(draw, anchored=True, max_room=5):
    """A fabric, the room of its hosts, and an ask."""
    built = draw(fabrics())
    hosts = len(built.hosts)
    rooms = np.array(draw(st.lists(st.integers(0, max_room), min_size=hosts, max_size=hosts)), np.int32)
    return built, rooms, draw(asks(hosts, anchored))


@st.composite
def asks(draw, hosts, anchored=True):
    pods = draw(st.integers(1, 20))
    pods_by_host = draw(st.dictionaries(st.integers(0, hosts - 1), st.integers(1, 3), max_size=3)) if anchored else {}
    return PlacementRequest(
        pods=pods,
        min_pods=draw(st.integers(0, pods)),
        max_pods=pods + draw(st.integers(0, 6)),
        multiple=draw(st.sampled_from([1, 1, 1, 2, 3])),
        widest_tier=draw(st.sampled_from([None, None, 1, 2, 3])),
        anchors=tuple(sorted(pods_by_host.items())),
        rule=draw(st.sampled_from([DistanceRule.ALL_TIERS, DistanceRule.ALL_TIERS, DistanceRule.LEAF_ONLY])),
    )
