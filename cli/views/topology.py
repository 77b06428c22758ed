"""Draws the map of switches as a tree, with the GPUs under each: `turnout topology`.

Which pods are where is given; where a gang would go is told in explain.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from turnout.autoscaler.model import Gpus
from turnout.cli.views.listing import Column, Listing
from turnout.cli.views.top import closed
from turnout.kube.objects import Node
from turnout.kube.pod_shape import amount
from turnout.topology.switch_paths import Path, natural_key, tiers_of_switches

OFF_MAP = "(not on the map)"
_NAMED = 3  # nodes that one line names


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One node."""

    node: str
    keys: frozenset[str]  # names that a map may use for it
    gpus: int
    used_gpus: int
    why: str = ""  # why no new pod may go there, "" if one may

    @property
    def free_gpus(self) -> int:
        """The GPUs that a new pod may have."""
        return 0 if self.why else max(0, self.gpus - self.used_gpus)


@dataclass(frozen=True, slots=True)
class Branch:
    """One switch, or one node."""

    path: str  # from the root, written as one text
    depth: int  # below the root, for the indent
    tier: int  # 0 of a node, 1 of a leaf switch
    hosts: int  # number of hosts of the map under it; 1 for a node
    missing: tuple[str, ...]  # hosts of the map of which there is no node
    gpus: int
    used_gpus: int
    free_gpus: int
    empty_nodes: int  # nodes whose GPUs are all free
    closed: tuple[str, ...]  # nodes that take no new pods


def tree_nodes(nodes: Iterable[Node], used: Mapping[str, int], gpus: Gpus) -> list[TreeNode]:
    """Return a TreeNode of every node, sorted by name. used: node -> GPUs of its pods. gpus: names of GPU resources."""
    found = []
    for node in nodes:
        name, room = node.metadata.name, node.status.allocatable or {}
        offered = sum(amount(each, room[each]) for each in gpus if each in room)
        keys = frozenset([name, *(each.address for each in node.status.addresses or ())])
        found.append(TreeNode(name, keys, offered, used.get(name, 0), closed(node)))
    return sorted(found, key=lambda each: natural_key(each.node))


def rows(paths: Mapping[str, Path], nodes: Sequence[TreeNode], with_nodes: bool) -> list[Branch]:
    """Return the tree from the root down, depth first; nodes that are not on the map come last.

    paths: host of the map -> its switches from the root down. with_nodes: with a row for each node.
    """
    by_key = {key: each for each in reversed(nodes) for key in each.keys}
    tier_of, below = tiers_of_switches(paths.values()), _hosts_below(paths)
    found = []
    for path in sorted(below, key=lambda each: [natural_key(name) for name in each]):
        found.append(_branch("/".join(path), len(path) - 1, tier_of[path], below[path], by_key))
        direct = sorted((host for host in below[path] if with_nodes and paths[host] == path), key=natural_key)
        found += [_branch(_leaf(path, host, by_key), len(path), 0, [host], by_key) for host in direct]
    on_map = {by_key[host].node for host in paths if host in by_key}
    return found + _unmapped([each for each in nodes if each.node not in on_map and each.gpus], with_nodes)


def _hosts_below(paths: Mapping[str, Path]) -> dict[Path, list[str]]:
    """Return the hosts under each switch, also indirectly, by the path of the switch, in the order of `paths`.

    paths: host of the map -> its switches from the root down.
    """
    below: dict[Path, list[str]] = {}
    for host, path in paths.items():
        for depth in range(1, len(path) + 1):
            below.setdefault(path[:depth], []).append(host)
    return below


def _unmapped(nodes: Sequence[TreeNode], with_nodes: bool) -> list[Branch]:
    """Return one branch for the nodes that are not on the map, with one for each of them if `with_nodes`.

    [] if none are.
    """
    by_name = {each.node: each for each in nodes}
    branches = [_branch(OFF_MAP, 0, 1, list(by_name), by_name)] if nodes else []
    return branches + [_branch(f"{OFF_MAP}/{name}", 1, 0, [name], by_name) for name in (by_name if with_nodes else ())]


def _leaf(path: Path, host: str, by_key: Mapping[str, TreeNode]) -> str:
    """Return the path of a host in the tree, ending with its node's name, or with the host if it is no node.

    path: its switches from the root down. by_key: nodes by name and address.
    """
    return "/".join([*path, by_key[host].node if host in by_key else host])


def _branch(path: str, depth: int, tier: int, hosts: Sequence[str], by_key: Mapping[str, TreeNode]) -> Branch:
    """Return one row of the tree: a switch or host with the sums over its nodes.

    path: its name in the tree. depth: of the row, for the indent. tier: 0 for a node. hosts: of the map, under it.
    by_key: nodes by name and address.
    """
    nodes = [by_key[host] for host in hosts if host in by_key]
    return Branch(
        path,
        depth,
        tier,
        len(hosts),
        tuple(sorted((host for host in hosts if host not in by_key), key=natural_key)),
        sum(each.gpus for each in nodes),
        sum(each.used_gpus for each in nodes),
        sum(each.free_gpus for each in nodes),
        sum(each.gpus > 0 and each.free_gpus == each.gpus for each in nodes),
        tuple(each.node for each in nodes if each.why),
    )


def listing(branches: Sequence[Branch], notes: Sequence[str] = ()) -> Listing[Branch]:
    """Return the tree as a listing for all output formats.

    branches: as `rows` returns them, depth first. notes: lines under the table.
    """
    drawn = dict(zip((each.path for each in branches), _tree_texts(branches), strict=True))
    return Listing(
        (
            Column("SWITCH", lambda row: drawn[row.path]),
            Column("TIER", lambda row: str(row.tier) if row.tier else "node", wide=True, number=True),
            Column("NODES", lambda row: str(row.hosts - len(row.missing)), number=True),
            Column("GPUS", lambda row: str(row.gpus), number=True),
            Column("USED", lambda row: str(row.used_gpus), number=True),
            Column("FREE", lambda row: str(row.free_gpus), number=True),
            Column("WHOLE", lambda row: str(row.empty_nodes), number=True),
            Column("", _bar),
            Column("CLOSED", lambda row: _some(row.closed)),
            Column("MISSING", lambda row: _some(row.missing)),
        ),
        branches,
        lambda row: f"{'switch' if row.tier else 'node'}/{row.path}",
        "there is no map, and no node offers GPUs",
        tuple(notes),
    )


def _tree_texts(branches: Sequence[Branch]) -> Iterator[str]:
    """Yield the text of each line of the tree: the branches drawn as lines, then the name.

    branches: depth first.
    """
    for at, each in enumerate(branches):
        name = each.path.rsplit("/", 1)[-1]
        if not each.depth:
            yield name
            continue
        lines = []
        for depth in range(1, each.depth + 1):
            after = next((other.depth for other in branches[at + 1 :] if other.depth <= depth), 0)
            corner = "├─ " if after == depth else "└─ "
            upright = "│  " if after == depth else "   "
            lines.append(corner if depth == each.depth else upright)
        yield "".join(lines) + name


def _bar(row: Branch) -> str:
    """Return the use of a switch or node as eight characters: used, closed to new pods, and free. "" without GPUs."""
    if not row.gpus:
        return ""
    used = min(8, -(-8 * min(row.used_gpus, row.gpus) // row.gpus))
    free = min(8 - used, 8 * row.free_gpus // row.gpus)
    return f"{'█' * used}{'░' * (8 - used - free)}{'·' * free}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ",".join(names[:_NAMED]) + (f" +{more}" if more > 0 else "")
