"""The map texts that are read, and the names of their faults."""

import pytest

from tests.topology.world import GUIDE_LINES, guide_table
from turnout.topology.fabric import build
from turnout.topology.map_formats import read_map, read_text, read_yaml
from turnout.topology.model import BadFabric, MapEntry
from turnout.topology.names import MAX_HOSTS, MAX_TEXT_BYTES


def messages_of(reading):
    return [(fault.line, fault.text) for fault in reading.faults]


@pytest.mark.contract("DL-105")
def test_the_guide_s_table_is_read_whole():
    reading = read_text(guide_table())
    assert reading.faults == ()
    assert len(reading.entries) == GUIDE_LINES
    assert reading.entries[1] == MapEntry("10.0.0.2", ("psw0", "asw1"), 3)


@pytest.mark.contract("DL-105")
@pytest.mark.parametrize(
    ("text", "hosts", "faults"),
    [
        pytest.param("", 0, [], id="an empty map is a valid map of no hosts"),
        pytest.param("\n \t\n# only a comment\n", 0, [], id="blank lines and comments are nothing"),
        pytest.param("\ufeffa p 10.0.0.1\r\na p 10.0.0.2\r\n", 2, [], id="a mark and line ends of Windows are free"),
        pytest.param("\ta  p\t 10.0.0.1   # rack 7", 1, [], id="blanks around and a comment behind"),
        pytest.param("a#1 p#2 gpu-1.example", 1, [], id="a # inside a name is no comment; node names are hosts"),
        pytest.param("a p 10.0.0.1\na q 10.0.0.2", 2, [], id="one asw under two psw is two switches"),
        pytest.param("a p fe80::1", 1, [], id="IPv6"),
        pytest.param(
            "a p 10.0.0.1\nb p\n\nb p 10.0.0.2 x",
            1,
            [(2, "holds 2"), (4, "holds 4")],
            id="every line with a wrong number of fields is told",
        ),
        pytest.param(
            "a p h1\nb p h2\nb p h1\na p h1",
            4,
            [(3, "host h1 is named 3 times, on lines 1, 3, 4")],
            id="a host named thrice is told once",
        ),
        pytest.param("a p h1\na p h1", 2, [(2, "named 2 times")], id="also where both lines agree"),
        pytest.param("a p \x00\x01\x02", 0, [(1, "neither a node name nor an IP")], id="garbage for a host"),
        pytest.param("a\x07 p h1", 0, [(1, "cannot be printed")], id="a bell in a switch name"),
        pytest.param(f"{'a' * 253} {'p' * 253} {'h' * 253}", 1, [], id="names as long as Kubernetes allows"),
        pytest.param("a p " + "h" * 254, 0, [(1, "254 characters")], id="a name longer than Kubernetes allows"),
        pytest.param("a" * 254 + " p h", 0, [(1, "254 characters")], id="a switch with a longer one"),
        pytest.param("a p _" + "h" * 59, 0, [(1, f"'_{'h' * 59}' is")], id="sixty characters are shown"),
        pytest.param("a p _" + "h" * 60, 0, [(1, f"'_{'h' * 56}...' is")], id="more are cut short"),
        pytest.param("x" * 1_048_577, 0, [(0, "larger than 1048576 bytes")], id="more than 1 MiB is not looked at"),
    ],
)
def test_text_form(text, hosts, faults):
    reading = read_text(text)
    assert len(reading.entries) == hosts
    assert [line for line, _ in messages_of(reading)] == [line for line, _ in faults]
    assert all(words in text for (_, text), (_, words) in zip(messages_of(reading), faults, strict=True))


@pytest.mark.parametrize(("read", "text"), [
    pytest.param(read_text, "a p h\n", id="lines"),
    pytest.param(read_yaml, "fabric: {p: {a: h}}\n#", id="a tree"),
])  # fmt: skip
def test_a_text_of_a_whole_mebibyte_is_read_and_a_byte_more_is_not(read, text):
    full = text.ljust(MAX_TEXT_BYTES)
    assert [entry.host for entry in read(full).entries] == ["h"]
    assert [words for _, words in messages_of(read(f"{full} "))] == [f"text is larger than {MAX_TEXT_BYTES} bytes"]


def test_no_text_that_is_short_enough_names_more_hosts_than_a_map_may_have():
    assert MAX_TEXT_BYTES // len("a p h\n") < MAX_HOSTS


@pytest.mark.parametrize(
    ("times", "where"),
    [
        pytest.param(8, "1, 2, 3, 4, 5, 6, 7, 8", id="eight are told"),
        pytest.param(9, "1, 2, 3, 4, 5, 6, 7, 8, ...", id="of more the first eight"),
    ],
)
def test_the_lines_of_a_host_that_is_named_again_and_again(times, where):
    assert messages_of(read_text("a p h\n" * times)) == [(2, f"host h is named {times} times, on lines {where}")]


def test_a_text_of_garbage_up_to_1_mib_is_told_line_by_line():
    reading = read_text("%\n" * 524_288)
    assert len(reading.faults) == 524_288
    assert reading.entries == ()


NESTED = """
# our cluster
fabric:
  core-1:
    spine-1:
      leaf-1: gpu[001-003], gpu[010,012-013]   # blanks or commas
      leaf-2:
        - 10.0.0.[9-11]
        - solo
    spine-2:
      leaf-1: r[1-2]n[01-02]
      leaf-9:
"""

LISTED = """
switches:
  core-1: {switches: "spine-[1-2]"}
  spine-1: {switches: [leaf-1, leaf-2]}
  spine-2: {switches: leaf-3}
  leaf-1: {hosts: "gpu[001-003], gpu[010,012-013]"}
  leaf-2: {hosts: ["10.0.0.[9-11]", solo]}
  leaf-3: {hosts: "r[1-2]n[01-02]"}
"""

HOSTS = [
    *("gpu001", "gpu002", "gpu003", "gpu010", "gpu012", "gpu013"),
    *("10.0.0.9", "10.0.0.10", "10.0.0.11", "solo"),
    *("r1n01", "r1n02", "r2n01", "r2n02"),
]


@pytest.mark.parametrize("text", [NESTED, LISTED], ids=["the tree form", "the list form"])
def test_ranges_are_expanded(text):
    reading = read_yaml(text)
    assert messages_of(reading) == []
    assert [entry.host for entry in reading.entries] == HOSTS
    assert reading.entries[0].path == ("core-1", "spine-1", "leaf-1")
    assert len({entry.path for entry in reading.entries}) == 3


def bomb(levels):
    lines = ["l0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" for at in range(1, levels)]
    return "\n".join(lines)


def tree(tiers):
    """One host under so many switches."""
    lines = ["fabric:", *(f"{'  ' * (at + 1)}s{at}:" for at in range(tiers))]
    return "\n".join(lines) + " h"


def listing(tiers):
    return "\n".join(
        ["switches:", *(f"  s{at}: {{switches: s{at + 1}}}" for at in range(tiers - 1)), f"  s{tiers - 1}:"]
    )


def ring(switches):
    return "\n".join(["switches:", *(f"  s{at}: {{switches: s{(at + 1) % switches}}}" for at in range(switches))])


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        pytest.param("fabric:", [], id="an empty tree is a map of no hosts"),
        pytest.param("", [], id="so is an empty text"),
        pytest.param("fabric: {s: {l: h1}}\n---\nfabric: {}", [(3, "second YAML document")], id="two documents"),
        pytest.param(bomb(9), [(1, "anchor &a0")], id="an alias bomb is refused at its first anchor"),
        pytest.param("fabric: *a", [(1, "alias *a")], id="an alias"),
        pytest.param("fabric:\n  <<: {l: h}", [(2, "merge key")], id="a merge"),
        pytest.param("fabric: !!python/object:os.system x", [(1, "tag")], id="a tag"),
        pytest.param("fabric:\n  s: [h1\n", [(3, "invalid YAML")], id="no YAML at all"),
        pytest.param("fabric: " + "[" * 100_000, [(1, "nested deeper")], id="a hundred thousand brackets"),
        pytest.param("fabric:\n  ? [a]\n  : h", [(2, "a name was expected")], id="a list for a name"),
        pytest.param("just words", [(1, "starts with `fabric:`")], id="a text that is no mapping"),
        pytest.param("fabrics: {}", [(1, "unknown key 'fabrics'")], id="a key misspelt"),
        pytest.param("fabric: {}\nswitches: {}", [(2, "only one of them")], id="both forms in one text"),
        pytest.param(
            "fabric:\n  s:\n    l1: a\n    l1: b",
            [(4, "'l1' occurs twice here, first on line 3")],
            id="a switch twice under one",
        ),
        pytest.param(
            "fabric:\n  s:\n    l1: gpu[1-4]\n    l2: gpu[4-5]",
            [(4, "host gpu4 is named 2 times, on lines 3, 4")],
            id="a host twice, through ranges",
        ),
        pytest.param(
            "fabric:\n  l: gpu[4-1]", [(2, "the first number is larger than the last")], id="a range backwards"
        ),
        pytest.param(
            'switches:\n  l: {"": a}', [(2, "the key has 0 characters")], id="a key of a switch without a name"
        ),
        pytest.param(
            "fabric:\n  l: gpu[\u0661-\u0663]",
            [(2, "is no range")],
            id="digits of another script",
        ),
        pytest.param("fabric:\n  l: gpu[1-", [(2, "no opening or no closing bracket")], id="a range left open"),
        pytest.param("fabric:\n  l: gpu[a-c]", [(2, "is no range")], id="a range of letters"),
        pytest.param(
            "fabric:\n  l: n[0-99999]\n  m: x[0-99999] y[1-2]\n  o: z[1-2]",
            [(3, "more than 200000 names")],
            id="more hosts than a map may have, told once",
        ),
        pytest.param("fabric:\n  l: n[1-99999][1-99999][1-99999]", [(2, "more than 200000")], id="a range bomb"),
        pytest.param("fabric:\n  l: _bad_ good", [(2, "'_bad_' is neither")], id="a host name that Kubernetes lacks"),
        pytest.param("fabric:\n  l: [[a]]", [(2, "name or a range was expected")], id="a list in a list of hosts"),
        pytest.param("fabric: [a]", [(1, "expected switches")], id="hosts without a switch"),
        pytest.param(
            "fabric:\n  l: " + "h" * 500_000 + "[1-199999]",
            [(2, "longer than 253")],
            id="a bomb of long names in a range",
        ),
        pytest.param(
            "switches:\n" + "".join(f"  s{at}: {{switches: s{at + 1}}}\n" for at in range(20_000)) + "  s20000:",
            [(17, "more than 15 tiers")],
            id="a chain of twenty thousand switches",
        ),
        pytest.param("fabric:\n  l: _n[1-200000]", [(2, "'_n1' is neither")], id="as many names as are looked at"),
        pytest.param("fabric:\n  l: _n[1-200001]", [(2, "more than 200000 names, from '_n[1-200001]'")], id="one more"),
        pytest.param("fabric:\n  l: " + "h" * 252 + "[1-9]", [], id="a range of the longest names"),
        pytest.param("fabric:\n  l: " + "h" * 253 + "[1-9]", [(2, "longer than 253")], id="of longer ones"),
        pytest.param("fabric:\n  l: a-[8-11] b[08-11] c[0,1]", [], id="ranges of any width"),
        pytest.param(
            "fabric: " + "[" * 23 + "]" * 23,
            [(1, "expected switches")],
            id="nested as deep as a text is read: 24 levels",
        ),
        pytest.param("fabric: " + "[" * 24 + "]" * 24, [(1, "nested deeper")], id="one level deeper"),
        pytest.param(tree(15), [], id="as many tiers as fit"),
        pytest.param(listing(15), [], id="and in a list"),
        pytest.param(listing(16), [(17, "more than 15 tiers")], id="one tier too many in a list"),
        pytest.param(ring(5), [(2, "cycle: 's0', 's1', 's2', 's3', 's4' are")], id="a cycle of five, told whole"),
        pytest.param(ring(6), [(2, "cycle: 's0', 's1', 's2', 's3', 's4', ... are")], id="of six, the first five"),
        pytest.param(
            "fabric:\n" + "".join("  " * (at + 1) + f"s{at}:\n" for at in range(17)),
            [(17, "more than 15 tiers")],
            id="more tiers than fit",
        ),
        pytest.param(
            "switches:\n  a: {switches: b}\n  b: {switches: c}\n  c: {switches: a}\n  d: {hosts: h}",
            [(2, "cycle: 'a', 'b', 'c'")],
            id="a cycle of three",
        ),
        pytest.param("switches:\n  a: {switches: a}", [(2, "cycle: 'a'")], id="a switch under itself"),
        pytest.param(ring(2), [(2, "cycle: 's0', 's1' are")], id="two under one another"),
        pytest.param(
            "switches:\n  a: {switches: c}\n  b: {switches: c}\n  c: {hosts: h}",
            [(4, "is under 2 switches: 'a', 'b'")],
            id="a switch under two others",
        ),
        pytest.param(
            "switches:\n  a: {switches: b c}\n  c: {hosts: h}",
            [(2, "'b' under 'a' is not in the list")],
            id="a switch that nobody declared",
        ),
        pytest.param("switches:\n  a: {switch: b}", [(2, "unknown key 'switch'")], id="a key of a switch misspelt"),
        pytest.param("switches:\n  a: h1", [(2, "needs `switches:` or `hosts:`")], id="a list with no keys"),
        pytest.param("\x00\x01\x02", [(0, "invalid YAML")], id="bytes that no text has"),
        pytest.param("#" * 1_048_577, [(0, "larger than 1048576")], id="more than 1 MiB is not looked at"),
    ],
)
def test_yaml_form_faults(text, faults):
    found = messages_of(read_yaml(text))
    assert [line for line, _ in found] == [line for line, _ in faults]
    assert all(words in text for (_, text), (_, words) in zip(found, faults, strict=True))


def test_every_fault_of_a_text_is_gathered():
    found = messages_of(read_yaml("fabric:\n  a: gpu[2-1]\n  b: _\n  b: c\n  d: x x\nmore: 1"))
    assert [line for line, _ in found] == [2, 3, 4, 5, 6]


@pytest.mark.slow
def test_fifty_thousand_hosts_fit_well_into_a_configmap():
    leaves = [f"      leaf-{at:04d}: gpu[{8 * at + 1:05d}-{8 * at + 8:05d}]" for at in range(6250)]
    spines = [[f"    spine-{at:03d}:", *leaves[25 * at : 25 * at + 25]] for at in range(250)]
    text = "\n".join(["fabric:", "  core:", *(line for spine in spines for line in spine)])
    assert len(text) < 300_000
    reading = read_yaml(text)
    assert messages_of(reading) == []
    fabric = build(reading.entries)
    assert (len(fabric.hosts), len(fabric.starts[1]), len(fabric.starts[2]), fabric.tiers) == (50_000, 6250, 250, 3)


@pytest.mark.parametrize(
    ("data", "hosts", "faults"),
    [
        pytest.param({}, 0, [], id="no key: a map of no hosts"),
        pytest.param({"other": "x"}, 0, [], id="a key that is not ours is passed over"),
        pytest.param({"topology_config": "a p h"}, 1, [], id="the guide's key"),
        pytest.param({"topology_config": " \n", "topology.yaml": "fabric: {l: h}"}, 1, [], id="a blank key is absent"),
        pytest.param({"topology_config": "a p h", "topology.yaml": "fabric: {l: h}"}, 0, [0], id="both is a fault"),
    ],
)
def test_a_configmap_s_keys(data, hosts, faults):
    reading = read_map(data)
    assert len(reading.entries) == hosts
    assert [fault.line for fault in reading.faults] == faults


def test_a_reading_with_a_host_twice_builds_no_fabric():
    with pytest.raises(BadFabric) as caught:
        build([MapEntry("h", ("a",), 1), MapEntry("h", ("b",), 2), MapEntry("i", (), 3)])
    assert [fault.line for fault in caught.value.faults] == [2, 3]


def test_an_error_names_the_first_five_faults():
    with pytest.raises(BadFabric) as caught:
        build([MapEntry(f"h{at}", (), at) for at in range(1, 8)])
    assert len(caught.value.faults) == 7
    assert str(caught.value) == "; ".join(f"line {at}: host h{at} has no switch above it" for at in range(1, 6))
