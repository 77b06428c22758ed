"""The formats of the map: plain text with the lines of the DLRover guide, and our own YAML for any number of tiers.

A line of plain text is `asw psw host`: the leaf (access switch), the spine above it, and the host. `read_text` reads
it. Our own YAML has two forms. The first is the tree of switches, with ranges of hosts at its leaves:

    fabric:
      spine-1:
        leaf-1: gpu[001-008]
        leaf-2: gpu[009-012] gpu[020-023]     # blanks or commas between
      spine-2:
        leaf-1:                               # another switch than the leaf-1 above, because its path differs
          - 10.0.0.[1-8]
          - gpu[101-102]

The second is a list with one line for each switch, as in Slurm's topology.conf. Names of switches are unique:

    switches:
      spine-1: {switches: "leaf-[1-2]"}
      leaf-1: {hosts: "gpu[001-008]"}
      leaf-2: {hosts: "gpu[009-016]"}

A text has one of the two forms. A list can contain a cycle, a switch with two parents or an undeclared switch; the
reader finds them with networkx.

Anchors, aliases, tags, merge keys, a second document and deep nesting are refused while the text is read. So a text of
a few hundred bytes cannot become a tree of millions of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import yaml

from turnout.topology.model import MapEntry, MapFault, ParsedMap
from turnout.topology.names import (
    MAX_HOSTS,
    MAX_TEXT_BYTES,
    MAX_TIERS,
    TEXT_KEY,
    YAML_KEY,
    BadRange,
    count_names,
    expand_range,
    host_fault,
    quote_text,
    split_words,
    switch_fault,
)

MAX_DEPTH = 24  # nested lists and mappings of a text


@dataclass(slots=True)
class YamlScalar:
    """A YAML scalar, always as text."""

    line: int  # of the text, >= 1
    text: str
    is_unquoted: bool  # True if it is written without quotes


@dataclass(slots=True)
class YamlList:
    """A YAML list."""

    line: int  # of the text, >= 1
    items: list[YamlScalar | YamlList | YamlMapping] = field(default_factory=list)


@dataclass(slots=True)
class YamlMapping:
    """A YAML mapping. Its keys are in the order of the text, repeated keys included."""

    line: int  # of the text, >= 1
    pairs: list[tuple[YamlScalar, YamlScalar | YamlList | YamlMapping]] = field(default_factory=list)  # (key, value)
    key: YamlScalar | None = None  # the key whose value has not been read yet


Node: TypeAlias = YamlScalar | YamlList | YamlMapping


class BadYaml(ValueError):
    """A text that is invalid YAML, or uses a feature that a map may not use."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.line, self.text = line, text


def parse_yaml(text: str) -> Node | None:
    """Return the root node of the only document of a YAML text; None for a text without a document.

    Raises BadYaml if it is invalid YAML, uses a forbidden feature, has a second document or is nested deeper than
    MAX_DEPTH.
    """
    root: list[Node] = []
    stack: list[YamlList | YamlMapping] = []
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
            raise BadYaml(line, "a second YAML document; a map must be one document")
        else:
            root.append(node)
        if not isinstance(node, YamlScalar):
            stack.append(node)
            if len(stack) > MAX_DEPTH:
                raise BadYaml(line, f"nested deeper than {MAX_DEPTH} levels")
    return root[0] if root else None


def _events(text: str) -> Iterator[yaml.Event]:
    """Yield the events of a YAML text, such as the start of a mapping.

    Raises BadYaml with the line of the fault, 0 if it is unknown.
    """
    try:
        yield from yaml.parse(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise BadYaml(mark.line + 1 if mark else 0, f"invalid YAML: {problem}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise BadYaml(0, f"invalid YAML: {' '.join(str(error).split())[:150]}") from error


def _node(event: yaml.Event, line: int) -> Node | None:
    """Return the node that an event begins; None for an event that begins no node, such as the end of the document.

    line: of the event, >= 1. Raises BadYaml for aliases, anchors and tags, which a map must not have.
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
        return YamlScalar(line, event.value, event.implicit[0])
    return YamlList(line) if isinstance(event, yaml.SequenceStartEvent) else YamlMapping(line)


def _put(parent: YamlList | YamlMapping, node: Node) -> None:
    """Append a node to a list or a mapping. In a mapping nodes are a key, its value, the next key and so on.

    Raises BadYaml for a key that is a list or mapping, and for a merge key.
    """
    if isinstance(parent, YamlList):
        parent.items.append(node)
    elif parent.key is not None:
        parent.pairs.append((parent.key, node))
        parent.key = None
    elif not isinstance(node, YamlScalar):
        raise BadYaml(node.line, "a name was expected here, not a list or a mapping")
    elif node.text == "<<":
        raise BadYaml(node.line, "merge key <<; a map is written without merges")
    else:
        parent.key = node


if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True)
class ListedSwitch:
    """One switch of the list under `switches:`."""

    name: str
    line: int  # of the text, >= 1
    switches: tuple[tuple[int, str], ...] = ()  # (line, name) of each switch directly below it
    hosts: tuple[tuple[int, str], ...] = ()  # (line, name or range) of its hosts


def paths_of_switches(listed: list[ListedSwitch]) -> tuple[dict[str, tuple[str, ...]], list[MapFault]]:
    """Return (path from the root of each switch by name, faults). If there are faults, there are no paths.

    listed: the switches of a list, with distinct names. Faults are a switch that is not listed, a switch that is named
    twice under another one, a cycle, several parents, and too many tiers.
    """
    import networkx as nx  # its import takes a tenth of a second, which programs without such a list need not spend

    lines = {switch.name: switch.line for switch in listed}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(lines)
    if faults := [*_add_edges(graph, listed, lines), *_shape_faults(graph, lines)]:
        return {}, faults
    paths: dict[str, tuple[str, ...]] = {}
    for name in nx.topological_sort(graph):
        parents_path = [paths[parent] for parent in graph.predecessors(name)]
        paths[name] = (*parents_path[0], name) if parents_path else (name,)
        if len(paths[name]) > MAX_TIERS:
            return {}, [MapFault(lines[name], f"more than {MAX_TIERS} tiers of switches, down to {quote_text(name)}")]
    return paths, []


def _add_edges(graph: nx.DiGraph[str], listed: list[ListedSwitch], lines: Mapping[str, int]) -> Iterator[MapFault]:
    """Add to the graph an edge from each switch to each switch directly below it, and yield the faults of the list.

    lines: the line of each switch by name. A switch that is not listed, or that is named twice under another one, is a
    fault and adds no edge.
    """
    for switch in listed:
        for line, child in switch.switches:
            if child not in lines:
                yield MapFault(line, f"switch {quote_text(child)} under {quote_text(switch.name)} is not in the list")
            elif graph.has_edge(switch.name, child):
                yield MapFault(line, f"switch {quote_text(child)} is listed twice under {quote_text(switch.name)}")
            else:
                graph.add_edge(switch.name, child)


def _shape_faults(graph: nx.DiGraph[str], lines: Mapping[str, int]) -> Iterator[MapFault]:
    """Yield a fault for each cycle of the graph, and for each switch with several parents.

    lines: the line of each switch by name.
    """
    import networkx as nx

    for ring in nx.strongly_connected_components(graph):
        names = sorted(ring, key=lambda name: lines[name])
        if len(ring) > 1 or graph.has_edge(names[0], names[0]):
            listing = ", ".join(map(quote_text, names[:5])) + (", ..." if len(names) > 5 else "")
            yield MapFault(
                lines[names[0]],
                f"cycle: {listing} {'is below itself' if len(ring) == 1 else 'are above and below each other'}",
            )
    for name, parents in graph.in_degree():
        if parents > 1:
            parent_names = ", ".join(sorted(map(quote_text, graph.predecessors(name))))
            yield MapFault(lines[name], f"switch {quote_text(name)} is under {parents} switches: {parent_names}")


_FORMS = ("fabric", "switches")  # the keys of the two forms of YAML


def read_yaml(text: str) -> ParsedMap:
    """Read a whole YAML text. Raises nothing: every mistake is a fault of the ParsedMap, in line order.

    A blank text is a map of no hosts. A text above MAX_TEXT_BYTES is not read.
    """
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        return ParsedMap((), (MapFault(0, f"text is larger than {MAX_TEXT_BYTES} bytes"),))
    try:
        root = parse_yaml(text)
    except BadYaml as error:
        return ParsedMap((), (MapFault(error.line, error.text),))
    reader = _Reader()
    if root is not None and not _is_null(root):
        reader.read_document(root)
    faults = reader.faults + duplicate_faults(reader.lines)
    return ParsedMap(tuple(reader.entries), tuple(sorted(faults, key=lambda fault: fault.line)))


class _Reader:
    """The entries and faults that one walk through the nodes of a document has found so far."""

    def __init__(self) -> None:
        self.entries: list[MapEntry] = []
        self.faults: list[MapFault] = []
        self.lines: dict[str, list[int]] = {}  # the lines on which each host is named
        self._names_left = MAX_HOSTS  # names that may still be expanded; -1 once there were too many

    def read_document(self, root: Node) -> None:
        """Read a map from its root node: `fabric` as a tree, or `switches` as a list. Adds entries and faults."""
        if not isinstance(root, YamlMapping):
            self._add_fault(root.line, "a map starts with `fabric:` or `switches:`")
            return
        forms: list[str] = []
        for key, value in root.pairs:
            if key.text not in _FORMS:
                self._add_fault(key.line, f"unknown key {quote_text(key.text)}; a map has `fabric:` or `switches:`")
            elif forms:
                self._add_fault(
                    key.line,
                    f"{key.text} after {forms[0]}; a map has `fabric:` or `switches:`, only one of them and only once",
                )
            elif key.text == "fabric":
                self._read_tree(value)
            else:
                self._read_list(value)
            forms += [key.text] if key.text in _FORMS else []

    def _read_tree(self, value: Node) -> None:
        """Read the switches under `fabric:`. A null is no switches; any other value that is no mapping is a fault."""
        if isinstance(value, YamlMapping):
            self._read_switches(value, ())
        elif not _is_null(value):
            self._add_fault(value.line, "expected switches under `fabric:`, each with its switches or hosts")

    def _read_switches(self, node: YamlMapping, parent_path: tuple[str, ...]) -> None:
        """Read the switches below a switch, down to their hosts. Adds entries and faults.

        node: the mapping of the switches. parent_path: the names of the switches from the root down to it, () at the
        root.
        """
        if len(parent_path) >= MAX_TIERS:
            self._add_fault(node.line, f"more than {MAX_TIERS} tiers of switches")
            return
        for name, child_node in self._valid_pairs(node, "switch"):
            path = (*parent_path, name.text)
            if isinstance(child_node, YamlMapping):
                self._read_switches(child_node, path)
            else:
                for line, hosts in self._words(child_node):
                    self._add_hosts(line, hosts, path)

    def _read_list(self, value: Node) -> None:
        """Read the list under `switches:`, each switch with the switches or hosts below it. Adds entries and faults.

        If the list is no tree, no host is added.
        """
        if not isinstance(value, YamlMapping):
            if not _is_null(value):
                self._add_fault(value.line, "expected switches under `switches:`, each with its `switches` or `hosts`")
            return
        listed = [self._read_listed_switch(name, child_node) for name, child_node in self._valid_pairs(value, "switch")]
        paths, faults = paths_of_switches(listed)
        self.faults += faults
        for switch in listed:
            if switch.name in paths:
                for line, word in switch.hosts:
                    self._add_hosts(line, word, paths[switch.name])

    def _read_listed_switch(self, name: YamlScalar, child_node: Node) -> ListedSwitch:
        """Return one switch of the list under `switches:`. Mistakes become faults, and wrong parts are left out.

        name: of the switch. child_node: the value of this name.
        """
        parts: dict[str, list[tuple[int, str]]] = {"switches": [], "hosts": []}
        if not isinstance(child_node, YamlMapping):
            if not _is_null(child_node):
                self._add_fault(child_node.line, f"switch {quote_text(name.text)} needs `switches:` or `hosts:`")
            return ListedSwitch(name.text, name.line)
        for key, value in self._valid_pairs(child_node, "key"):
            if key.text not in parts:
                self._add_fault(key.line, f"unknown key {quote_text(key.text)}; a switch has `switches` and `hosts`")
            elif isinstance(value, YamlMapping):
                self._add_fault(value.line, f"{key.text} of {quote_text(name.text)} are names, not a mapping")
            else:
                parts[key.text] = self._words(value)
        children = [(line, child) for line, word in parts["switches"] for child in self._expand_word(line, word)]
        return ListedSwitch(name.text, name.line, tuple(children), tuple(parts["hosts"]))

    def _valid_pairs(self, node: YamlMapping, kind: str) -> list[tuple[YamlScalar, Node]]:
        """Return the (key, value) pairs whose key is a valid name; of a repeated key only the first pair.

        Each other key becomes a fault; the value of a repeated key is not read. kind: what the keys name for the
        sentence, "switch" or "key".
        """
        first_lines: dict[str, int] = {}
        valid_pairs = []
        for key, value in node.pairs:
            fault = switch_fault(key.text, kind if kind == "key" else f"{kind} name")
            if key.text in first_lines:
                fault = f"{kind} {quote_text(key.text)} occurs twice here, first on line {first_lines[key.text]}"
            if fault:
                self._add_fault(key.line, fault)
                continue
            first_lines[key.text] = key.line
            valid_pairs.append((key, value))
        return valid_pairs

    def _words(self, node: YamlScalar | YamlList) -> list[tuple[int, str]]:
        """Return (line, name or range) for each word of a scalar or list; [] for a null.

        Other items of a list become faults.
        """
        if _is_null(node):
            return []
        scalars = [node] if isinstance(node, YamlScalar) else node.items
        words_by_line: list[tuple[int, str]] = []
        for scalar in scalars:
            if isinstance(scalar, YamlScalar):
                words_by_line += [(scalar.line, word) for word in split_words(scalar.text)]
            else:
                self._add_fault(scalar.line, "a name or a range was expected here, not a list or a mapping")
        return words_by_line

    def _add_hosts(self, line: int, word: str, path: tuple[str, ...]) -> None:
        """Add the hosts that a word names, a name or a range, below the switch at `path`.

        line: of the word, from 1. A bad name becomes a fault, and the rest of its range is skipped.
        """
        for host in self._expand_word(line, word):
            fault = host_fault(host)
            if fault:
                self._add_fault(line, fault)
                return  # all names of a range have the same fault
            self.lines.setdefault(host, []).append(line)
            self.entries.append(MapEntry(host, path, line))

    def _expand_word(self, line: int, word: str) -> list[str]:
        """Return the names of a word, which is a name or a range; [] for a bad range, which becomes a fault.

        line: of the word, from 1. Also [] once the text has more than MAX_HOSTS names, which becomes one fault.
        """
        try:
            count = count_names(word)
            if count > self._names_left:
                if self._names_left >= 0:
                    self._add_fault(line, f"more than {MAX_HOSTS} names, from {quote_text(word)} on")
                self._names_left = -1
                return []
            self._names_left -= count
            return list(expand_range(word))
        except BadRange as error:
            self._add_fault(line, str(error))
            return []

    def _add_fault(self, line: int, text: str) -> None:
        """Add a fault. text: a sentence for a person."""
        self.faults.append(MapFault(line, text))


def _is_null(node: Node) -> bool:
    """Return True for a null: an unquoted scalar that is empty, `~` or `null`."""
    return isinstance(node, YamlScalar) and node.is_unquoted and node.text in ("", "~", "null")


def read_map(data: Mapping[str, str]) -> ParsedMap:
    """Read the map in a ConfigMap's data, of either format. Raises nothing: mistakes are faults of the ParsedMap.

    data: texts by key; TEXT_KEY has the plain text and YAML_KEY the YAML. A ConfigMap without any text is a valid map
    of no hosts. A blank text counts as absent, because a chart also renders the key that it does not use. Both texts
    together are a fault.
    """
    text, yaml_text = (data.get(key, "") for key in (TEXT_KEY, YAML_KEY))
    if text.strip() and yaml_text.strip():
        return ParsedMap((), (MapFault(0, f"both {TEXT_KEY} and {YAML_KEY} are set; keep one of the two"),))
    if yaml_text.strip():
        return read_yaml(yaml_text)
    return read_text(text)


def read_text(text: str) -> ParsedMap:
    """Read a whole plain text. A line is `asw psw host`: a leaf switch, the spine switch above it, and a host of the
    leaf.

    Raises nothing: every mistake is a fault of the ParsedMap, in line order. Empty lines and comments are skipped. A
    text above MAX_TEXT_BYTES is not read.
    """
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        return ParsedMap((), (MapFault(0, f"text is larger than {MAX_TEXT_BYTES} bytes"),))
    entries: list[MapEntry] = []
    faults: list[MapFault] = []
    lines_of: dict[str, list[int]] = {}
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        fields = _without_comment(raw).split()
        if not fields:
            continue
        fault = _line_fault(fields)
        if fault:
            faults.append(MapFault(number, fault))
            continue
        leaf, spine, host = fields
        lines_of.setdefault(host, []).append(number)
        entries.append(MapEntry(host, (spine, leaf), number))
    faults += duplicate_faults(lines_of)
    # MAX_HOSTS needs no check: so many lines of at least six bytes are more than MAX_TEXT_BYTES.
    return ParsedMap(tuple(entries), tuple(sorted(faults, key=lambda fault: fault.line)))


def duplicate_faults(lines_of: dict[str, list[int]]) -> list[MapFault]:
    """Return one fault for each host that is named more than once, at the line of the second time.

    lines_of: by the name of a host, the line of each time that it is named, ascending. A line may occur several times.
    """
    return [
        MapFault(lines[1], f"host {host} is named {len(lines)} times, on {_lines_text(lines)}")
        for host, lines in lines_of.items()
        if len(lines) > 1
    ]


def _lines_text(lines: list[int]) -> str:
    """Return the first eight different line numbers as a text such as "lines 3, 4", with dots if there are more."""
    distinct = list(dict.fromkeys(lines))
    shown = ", ".join(map(str, distinct[:8])) + (", ..." if len(distinct) > 8 else "")
    return f"lines {shown}" if len(distinct) > 1 else f"line {shown}"


def _without_comment(line: str) -> str:
    """Return a line without its comment, which begins with a `#` at the start of a word.

    Several blanks may become one space.
    """
    if "#" not in line:
        return line
    words = []
    for word in line.split():
        if word.startswith("#"):
            break
        words.append(word)
    return " ".join(words)


def _line_fault(fields: list[str]) -> str:
    """Return a sentence about the fault of a line, "" if there is none. fields: the words of the line."""
    if len(fields) != 3:
        return f"a line holds three fields, asw psw node-ip; this one holds {len(fields)}"
    return switch_fault(fields[0]) or switch_fault(fields[1]) or host_fault(fields[2])
