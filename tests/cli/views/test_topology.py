"""`turnout topology`: the map as a tree, with the GPUs under each switch."""

from turnout.cli.views.listing import text
from turnout.cli.views.topology import OFF_MAP, TreeNode, listing, rows

PATHS = {
    "10.0.0.1": ("psw-1", "asw-1"),
    "10.0.0.2": ("psw-1", "asw-1"),
    "10.0.0.10": ("psw-1", "asw-2"),
    "10.0.0.11": ("psw-2", "asw-3"),
}


def place(name, ip, used=0, why=""):
    return TreeNode(name, frozenset([name, ip]), 8, used, why)


THERE = [place("n1", "10.0.0.1", 8), place("n2", "10.0.0.2", 3), place("n10", "10.0.0.10", 0, "cordoned")]


def topology_text(objects=THERE, paths=PATHS, nodes=False):
    return {row.path: row for row in rows(paths, objects, nodes)}


def test_each_switch_sums_up_what_is_under_it():
    found = topology_text()
    assert list(found) == ["psw-1", "psw-1/asw-1", "psw-1/asw-2", "psw-2", "psw-2/asw-3"]
    top, leaf = found["psw-1"], found["psw-1/asw-1"]
    assert (top.tier, top.hosts, top.gpus, top.used_gpus, top.free_gpus) == (2, 3, 24, 11, 5)
    assert (leaf.tier, leaf.gpus, leaf.used_gpus, leaf.free_gpus, leaf.empty_nodes) == (1, 16, 11, 5, 0)


def test_what_is_on_a_closed_node_is_not_free():
    assert topology_text()["psw-1/asw-2"].free_gpus == 0
    assert topology_text()["psw-1/asw-2"].closed == ("n10",)


def test_a_host_of_the_map_without_a_node_is_missing():
    found = topology_text()
    assert found["psw-2"].missing == found["psw-2/asw-3"].missing == ("10.0.0.11",)
    assert found["psw-1"].missing == ()


def test_a_gpu_node_that_is_not_on_the_map_stands_last():
    *_, last = rows(PATHS, [*THERE, place("n99", "10.0.0.99"), TreeNode("cpu", frozenset(["cpu"]), 0, 0)], False)
    assert (last.path, last.hosts, last.gpus) == (OFF_MAP, 1, 8)


def test_with_nodes_every_node_has_a_line_under_its_switch():
    paths = list(topology_text(nodes=True))
    assert paths[:4] == ["psw-1", "psw-1/asw-1", "psw-1/asw-1/n1", "psw-1/asw-1/n2"]
    assert paths[-1] == "psw-2/asw-3/10.0.0.11"


def test_it_is_drawn_as_a_tree():
    lines = text(listing(rows(PATHS, THERE, True)), "table").split("\n")
    assert [line[:12].rstrip() for line in lines[1:]] == [
        "psw-1",
        "├─ asw-1",
        "│  ├─ n1",
        "│  └─ n2",
        "└─ asw-2",
        "   └─ n10",
        "psw-2",
        "└─ asw-3",
        "   └─ 10.0.0",
    ]
    assert lines[3].split()[3:] == ["1", "8", "8", "0", "0", "████████"]
    assert lines[4].split()[3:] == ["1", "8", "3", "5", "0", "███·····"]
    assert lines[6].split()[2:] == ["1", "8", "0", "0", "0", "░░░░░░░░", "n10"]


def test_without_a_map_all_gpu_nodes_are_off_it():
    (only,) = rows({}, THERE, False)
    assert (only.path, only.gpus) == (OFF_MAP, 24)
    assert text(listing([], ["there is no ConfigMap a/b"]), "table").split("\n") == [
        "there is no map, and no node offers GPUs",
        "there is no ConfigMap a/b",
    ]
