"""Our own form, for any number of tiers: the fabric written as the tree it is, with ranges of hosts at its leaves.

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

The first cannot hold a cycle; the second can, and switch_list.py finds it. A text holds one of the two.
"""

from __future__ import annotations

from turnout.topology.model import Entry, Fault, Reading
from turnout.topology.sources import switch_list, yaml_nodes
from turnout.topology.sources.configmap_text import duplicates
from turnout.topology.sources.names import (
    MAX_HOSTS,
    MAX_TEXT_BYTES,
    MAX_TIERS,
    BadRange,
    expand,
    host_fault,
    shown,
    size,
    switch_fault,
    words,
)
from turnout.topology.sources.switch_list import Listed
from turnout.topology.sources.yaml_nodes import Items, Node, Pairs, Scalar

_FORMS = ("fabric", "switches")


def read(text: str) -> Reading:
    """Read a whole text and gather every fault, in line order. Raises nothing."""
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        return Reading((), (Fault(0, f"text is larger than {MAX_TEXT_BYTES} bytes"),))
    try:
        root = yaml_nodes.read(text)
    except yaml_nodes.BadYaml as error:
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
        if isinstance(value, Pairs):
            self._switches(value, ())
        elif not _is_nothing(value):
            self._fault(value.line, "under `fabric:` stand switches, each with what hangs below it")

    def _switches(self, node: Pairs, above: tuple[str, ...]) -> None:
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
        if not isinstance(value, Pairs):
            if not _is_nothing(value):
                self._fault(value.line, "under `switches:` stand switches, each with its `switches` or `hosts`")
            return
        listed = [self._listed(name, below) for name, below in self._named(value, "switch")]
        paths, faults = switch_list.paths(listed)
        self.faults += faults
        for switch in listed:
            if switch.name in paths:
                for line, word in switch.hosts:
                    self._hosts(line, word, paths[switch.name])

    def _listed(self, name: Scalar, below: Node) -> Listed:
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
        for host in self._expanded(line, word):
            wrong = host_fault(host)
            if wrong:
                self._fault(line, wrong)
                return  # its siblings of one range have the same fault
            self.lines.setdefault(host, []).append(line)
            self.entries.append(Entry(host, path, line))

    def _expanded(self, line: int, word: str) -> list[str]:
        try:
            count = size(word)
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
