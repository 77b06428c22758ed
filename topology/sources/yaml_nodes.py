"""Parse YAML into a tree of nodes with line numbers, and refuse everything that a map does not need.

Anchors, aliases, tags, merge keys, a second document and deep nesting are refused while the text is read. So a text of
a few hundred bytes cannot become a tree of millions of nodes. configmap_yaml.py knows what the nodes mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import yaml

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


def read(text: str) -> Node | None:
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
    try:
        yield from yaml.parse(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise BadYaml(mark.line + 1 if mark else 0, f"no YAML: {problem}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise BadYaml(0, f"no YAML: {' '.join(str(error).split())[:150]}") from error


def _node(event: yaml.Event, line: int) -> Node | None:
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
