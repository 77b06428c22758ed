"""The two forms of the map: the lines of the DLRover guide, and our own form for any number of tiers.

Our own form is the fabric written as the tree that it is, with ranges of hosts at its leaves.

    fabric:
      spine-1:
        leaf-1: gpu[001-008]
        leaf-2: gpu[009-012] gpu[020-023]     # blanks or commas between
      spine-2:
        leaf-1:                               # known by its path: another switch than the leaf-1 above
          - 10.0.0.[1-8]
          - gpu[101-102]

Or, where cabling lists come as one line per switch (as in Slurm's topology.conf), names being unique:

    switches:
      spine-1: {switches: "leaf-[1-2]"}
      leaf-1: {hosts: "gpu[001-008]"}
      leaf-2: {hosts: "gpu[009-016]"}

The first cannot hold a cycle; the second can, and the reader finds it. A text holds one of the two.

Anchors, aliases, tags, merge keys, a second document and deep nesting are refused while the text is read. So a text of
a few hundred bytes cannot become a tree of millions of nodes. Names in a list of switches are unique, so a list can
hold a cycle, a switch with two parents, or an undeclared switch; networkx finds them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import yaml

from turnout.topology.model import Entry, Fault, Reading
from turnout.topology.names import (
    MAX_HOSTS,
    MAX_TEXT_BYTES,
    MAX_TIERS,
    TEXT_KEY,
    YAML_KEY,
    BadRange,
    count_names,
    expand,
    host_fault,
    shown,
    switch_fault,
    words,
)

MAX_DEPTH = 24


@dataclass(slots=True)
class Scalar:
    """A word or a number, always as text."""

    line: int
    text: str
    plain: bool


@dataclass(slots=True)
class Items:
    """A list."""

    line: int
    items: list[Scalar | Items | Pairs] = field(default_factory=list)


@dataclass(slots=True)
class Pairs:
    """A mapping with its keys in the order written, repeated keys included."""

    line: int
    pairs: list[tuple[Scalar, Scalar | Items | Pairs]] = field(default_factory=list)
    key: Scalar | None = None  # waits for its value while the text is read


Node: TypeAlias = Scalar | Items | Pairs


class BadYaml(ValueError):
    """A text that is no YAML, or uses a feature that a map may not use."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line, self.text = line, text


def parse_yaml(text: str) -> Node | None:
    """Return the only document of a text, None when it holds none. Raises BadYaml."""
    root: list[Node] = []
    stack: list[Items | Pairs] = []
    for event in _events(text):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
            continue
        node = _node(event, line)
        if node is None:
            continue
        if stack:
            _put(stack[-1], node)
        elif root:
            raise BadYaml(line, "a second YAML document; a map is one")
        else:
            root.append(node)
        if not isinstance(node, Scalar):
            stack.append(node)
            if len(stack) > MAX_DEPTH:
                raise BadYaml(line, f"nested deeper than {MAX_DEPTH} levels")
    return root[0] if root else None


def _events(text: str) -> Iterator[yaml.Event]:
    """Yield the events of a YAML text. Raises BadYaml with the line of the fault."""
    try:
        yield from yaml.parse(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise BadYaml(mark.line + 1 if mark else 0, f"no YAML: {problem}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise BadYaml(0, f"no YAML: {' '.join(str(error).split())[:150]}") from error


def _node(event: yaml.Event, line: int) -> Node | None:
    """Return the node that an event begins; None for an event without one.

    Raises BadYaml for aliases, anchors and tags.
    """
    if isinstance(event, yaml.AliasEvent):
        raise BadYaml(line, f"alias *{event.anchor}; a map is written without aliases")
    if not isinstance(event, yaml.NodeEvent):
        return None  # start and end of stream and document
    if event.anchor is not None:
        raise BadYaml(line, f"anchor &{event.anchor}; a map is written without anchors")
    if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
        raise BadYaml(line, f"tag {event.tag}; a map is written without tags")
    if isinstance(event, yaml.ScalarEvent):
        return Scalar(line, event.value, event.implicit[0])
    return Items(line) if isinstance(event, yaml.SequenceStartEvent) else Pairs(line)


def _put(parent: Items | Pairs, node: Node) -> None:
    """Append the node to a list; in a mapping it is a key and a value in turn. Raises BadYaml for a bad key."""
    if isinstance(parent, Items):
        parent.items.append(node)
    elif parent.key is not None:
        parent.pairs.append((parent.key, node))
        parent.key = None
    elif not isinstance(node, Scalar):
        raise BadYaml(node.line, "a name was expected here, not a list or a mapping")
    elif node.text == "<<":
        raise BadYaml(node.line, "merge key <<; a map is written without merges")
    else:
        parent.key = node


if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of the list: a switch, the switches below it and its hosts, each with its line number."""

    name: str
    line: int
    switches: tuple[tuple[int, str], ...] = ()
    hosts: tuple[tuple[int, str], ...] = ()


def paths_of_switches(listed: list[Listed]) -> tuple[dict[str, tuple[str, ...]], list[Fault]]:
    """Return each switch's path from its root, and the faults. Where there are faults, no path is returned.

    listed: the names are distinct.
    """
    import networkx as nx  # which takes a tenth of a second, for programs that never see such a list

    lines = {switch.name: switch.line for switch in listed}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(lines)
    if faults := [*_add_edges(graph, listed, lines), *_shape_faults(graph, lines)]:
        return {}, faults
    found: dict[str, tuple[str, ...]] = {}
    for name in nx.topological_sort(graph):
        parents_path = [found[parent] for parent in graph.predecessors(name)]
        found[name] = (*parents_path[0], name) if parents_path else (name,)
        if len(found[name]) > MAX_TIERS:
            return {}, [Fault(lines[name], f"more than {MAX_TIERS} tiers of switches, down to {shown(name)}")]
    return found, []


def _add_edges(graph: nx.DiGraph[str], listed: list[Listed], lines: Mapping[str, int]) -> Iterator[Fault]:
    """Add an edge from each switch to each below it, and yield the faults of the list. lines: of each switch."""
    for switch in listed:
        for line, child in switch.switches:
            if child not in lines:
                yield Fault(line, f"switch {shown(child)} under {shown(switch.name)} is not in the list")
            elif graph.has_edge(switch.name, child):
                yield Fault(line, f"switch {shown(child)} stands twice under {shown(switch.name)}")
            else:
                graph.add_edge(switch.name, child)


def _shape_faults(graph: nx.DiGraph[str], lines: Mapping[str, int]) -> Iterator[Fault]:
    """Yield the cycles of a graph of switches, and the switches under several others."""
    import networkx as nx

    for ring in nx.strongly_connected_components(graph):
        names = sorted(ring, key=lambda name: lines[name])
        if len(ring) > 1 or graph.has_edge(names[0], names[0]):
            listing = ", ".join(map(shown, names[:5])) + (", ..." if len(names) > 5 else "")
            yield Fault(lines[names[0]], f"cycle: {listing} stand under themselves")
    for name, parents in graph.in_degree():
        if parents > 1:
            above = ", ".join(sorted(map(shown, graph.predecessors(name))))
            yield Fault(lines[name], f"switch {shown(name)} stands under {parents} switches: {above}")


_FORMS = ("fabric", "switches")


def read_yaml(text: str) -> Reading:
    """Read a whole text and gather every fault, in line order. Raises nothing."""
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        return Reading((), (Fault(0, f"text is larger than {MAX_TEXT_BYTES} bytes"),))
    try:
        root = parse_yaml(text)
    except BadYaml as error:
        return Reading((), (Fault(error.line, error.text),))
    reader = _Reader()
    if root is not None and not _is_nothing(root):
        reader.document(root)
    faults = reader.faults + duplicates(reader.lines)
    return Reading(tuple(reader.entries), tuple(sorted(faults, key=lambda fault: fault.line)))


class _Reader:
    """Gathers entries and faults on one walk through the nodes."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.faults: list[Fault] = []
        self.lines: dict[str, list[int]] = {}
        self._left = MAX_HOSTS

    def document(self, root: Node) -> None:
        """Read a map from its root: `fabric` as a tree, or `switches` as a list."""
        if not isinstance(root, Pairs):
            self._fault(root.line, "a map starts with `fabric:` or `switches:`")
            return
        found: list[str] = []
        for key, value in root.pairs:
            if key.text not in _FORMS:
                self._fault(key.line, f"unknown key {shown(key.text)}; a map has `fabric:` or `switches:`")
            elif found:
                self._fault(key.line, f"{key.text} after {found[0]}; a map has one of the two, once")
            elif key.text == "fabric":
                self._tree(value)
            else:
                self._list(value)
            found += [key.text] if key.text in _FORMS else []

    def _tree(self, value: Node) -> None:
        """Read the switches under `fabric:`. A value that is no mapping is a fault."""
        if isinstance(value, Pairs):
            self._switches(value, ())
        elif not _is_nothing(value):
            self._fault(value.line, "under `fabric:` stand switches, each with what hangs below it")

    def _switches(self, node: Pairs, above: tuple[str, ...]) -> None:
        """Read the switches below a path, down to their hosts."""
        if len(above) >= MAX_TIERS:
            self._fault(node.line, f"more than {MAX_TIERS} tiers of switches")
            return
        for name, below in self._named(node, "switch"):
            path = (*above, name.text)
            if isinstance(below, Pairs):
                self._switches(below, path)
            else:
                for line, hosts in self._words(below):
                    self._hosts(line, hosts, path)

    def _list(self, value: Node) -> None:
        """Read a list of switches, each with the switches or hosts below it."""
        if not isinstance(value, Pairs):
            if not _is_nothing(value):
                self._fault(value.line, "under `switches:` stand switches, each with its `switches` or `hosts`")
            return
        listed = [self._listed(name, below) for name, below in self._named(value, "switch")]
        paths, faults = paths_of_switches(listed)
        self.faults += faults
        for switch in listed:
            if switch.name in paths:
                for line, word in switch.hosts:
                    self._hosts(line, word, paths[switch.name])

    def _listed(self, name: Scalar, below: Node) -> Listed:
        """Return one switch of `switches:` with its child switches and hosts. Mistakes become faults."""
        parts: dict[str, list[tuple[int, str]]] = {"switches": [], "hosts": []}
        if not isinstance(below, Pairs):
            if not _is_nothing(below):
                self._fault(below.line, f"switch {shown(name.text)} needs `switches:` or `hosts:`")
            return Listed(name.text, name.line)
        for key, value in self._named(below, "key"):
            if key.text not in parts:
                self._fault(key.line, f"unknown key {shown(key.text)}; a switch has `switches` and `hosts`")
            elif isinstance(value, Pairs):
                self._fault(value.line, f"{key.text} of {shown(name.text)} are names, not a mapping")
            else:
                parts[key.text] = self._words(value)
        children = [(line, child) for line, word in parts["switches"] for child in self._expanded(line, word)]
        return Listed(name.text, name.line, tuple(children), tuple(parts["hosts"]))

    def _named(self, node: Pairs, what: str) -> list[tuple[Scalar, Node]]:
        """Return the pairs whose key is a valid name that this mapping has not used before."""
        first: dict[str, int] = {}
        valid_pairs = []
        for key, value in node.pairs:
            wrong = switch_fault(key.text)
            if key.text in first:
                wrong = f"{what} {shown(key.text)} stands twice here, first on line {first[key.text]}"
            if wrong:
                self._fault(key.line, wrong)
                continue
            first[key.text] = key.line
            valid_pairs.append((key, value))
        return valid_pairs

    def _words(self, node: Scalar | Items) -> list[tuple[int, str]]:
        """Return the names and ranges of a scalar or list, each with its line."""
        if _is_nothing(node):
            return []
        scalars = [node] if isinstance(node, Scalar) else node.items
        found: list[tuple[int, str]] = []
        for scalar in scalars:
            if isinstance(scalar, Scalar):
                found += [(scalar.line, word) for word in words(scalar.text)]
            else:
                self._fault(scalar.line, "a name or a range was expected here, not a list or a mapping")
        return found

    def _hosts(self, line: int, word: str, path: tuple[str, ...]) -> None:
        """Add the hosts that a word names, such as one host or a range, below the switch at `path`.

        A bad name is a fault.
        """
        for host in self._expanded(line, word):
            wrong = host_fault(host)
            if wrong:
                self._fault(line, wrong)
                return  # its siblings of one range have the same fault
            self.lines.setdefault(host, []).append(line)
            self.entries.append(Entry(host, path, line))

    def _expanded(self, line: int, word: str) -> list[str]:
        """Return the names of a range, as far as the budget of MAX_HOSTS names allows."""
        try:
            count = count_names(word)
            if count > self._left:
                if self._left >= 0:
                    self._fault(line, f"more than {MAX_HOSTS} names, from {shown(word)} on")
                self._left = -1
                return []
            self._left -= count
            return list(expand(word))
        except BadRange as error:
            self._fault(line, str(error))
            return []

    def _fault(self, line: int, text: str) -> None:
        self.faults.append(Fault(line, text))


def _is_nothing(node: Node) -> bool:
    return isinstance(node, Scalar) and node.plain and node.text in ("", "~", "null")


def read_map(data: Mapping[str, str]) -> Reading:
    """Read a ConfigMap's data. Raises nothing: mistakes are faults of the Reading.

    A ConfigMap without any text is a valid map of no hosts. A blank text counts as absent, since a chart renders the
    key that it does not use.
    """
    text, yaml_text = (data.get(key, "") for key in (TEXT_KEY, YAML_KEY))
    if text.strip() and yaml_text.strip():
        return Reading((), (Fault(0, f"both {TEXT_KEY} and {YAML_KEY} are set; keep one of the two"),))
    if yaml_text.strip():
        return read_yaml(yaml_text)
    return read_text(text)


def read_text(text: str) -> Reading:
    """Read a whole text and gather every fault, in line order. Raises nothing."""
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        return Reading((), (Fault(0, f"text is larger than {MAX_TEXT_BYTES} bytes"),))
    entries: list[Entry] = []
    faults: list[Fault] = []
    lines_of: dict[str, list[int]] = {}
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        fields = _without_comment(raw).split()
        if not fields:
            continue
        wrong = _fault(fields)
        if wrong:
            faults.append(Fault(number, wrong))
            continue
        asw, psw, host = fields
        lines_of.setdefault(host, []).append(number)
        entries.append(Entry(host, (psw, asw), number))
    faults += duplicates(lines_of)
    # MAX_HOSTS needs no look: so many lines, of six bytes at least, are more than MAX_TEXT_BYTES.
    return Reading(tuple(entries), tuple(sorted(faults, key=lambda fault: fault.line)))


def duplicates(lines_of: dict[str, list[int]]) -> list[Fault]:
    """Return one fault per host that stands on more than one line, with the line of the second mention.

    lines_of: host -> its lines, ascending.
    """
    return [
        Fault(lines[1], f"host {host} is named {len(lines)} times, on lines {_listed(lines)}")
        for host, lines in lines_of.items()
        if len(lines) > 1
    ]


def _listed(lines: list[int]) -> str:
    return ", ".join(map(str, lines[:8])) + (", ..." if len(lines) > 8 else "")


def _without_comment(line: str) -> str:
    """Remove a comment, which begins with a `#` at the start of a word."""
    if "#" not in line:
        return line
    words = []
    for word in line.split():
        if word.startswith("#"):
            break
        words.append(word)
    return " ".join(words)


def _fault(fields: list[str]) -> str:
    if len(fields) != 3:
        return f"a line holds three fields, asw psw node-ip; this one holds {len(fields)}"
    return switch_fault(fields[0]) or switch_fault(fields[1]) or host_fault(fields[2])
