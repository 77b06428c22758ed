"""Read a flat list of switches, each with the switches below it, and make paths from the root.

Names are unique in the list. So a list can hold a cycle, a switch with two parents, or a switch that is not declared;
networkx finds them. Other formats that list switches in this way can use this module, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from turnout.topology.model import Fault
from turnout.topology.sources.names import MAX_TIERS, shown

if TYPE_CHECKING:
    import networkx as nx


@dataclass(frozen=True, slots=True)
class Listed:
    """One line of the list: a switch, the switches below it and its hosts, each with its line number."""

    name: str
    line: int
    switches: tuple[tuple[int, str], ...] = ()
    hosts: tuple[tuple[int, str], ...] = ()


def paths(listed: list[Listed]) -> tuple[dict[str, tuple[str, ...]], list[Fault]]:
    """Return each switch's path from its root, and the faults. Where there are faults, no path is returned.

    listed: the names are distinct.
    """
    import networkx as nx  # which takes a tenth of a second, for programs that never see such a list

    lines = {switch.name: switch.line for switch in listed}
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(lines)
    faults = []
    for switch in listed:
        for line, child in switch.switches:
            if child not in lines:
                faults.append(Fault(line, f"switch {shown(child)} under {shown(switch.name)} is not in the list"))
            elif graph.has_edge(switch.name, child):
                faults.append(Fault(line, f"switch {shown(child)} stands twice under {shown(switch.name)}"))
            else:
                graph.add_edge(switch.name, child)
    for ring in nx.strongly_connected_components(graph):
        names = sorted(ring, key=lambda name: lines[name])
        if len(ring) > 1 or graph.has_edge(names[0], names[0]):
            listing = ", ".join(map(shown, names[:5])) + (", ..." if len(names) > 5 else "")
            faults.append(Fault(lines[names[0]], f"cycle: {listing} stand under themselves"))
    for name, parents in graph.in_degree():
        if parents > 1:
            above = ", ".join(sorted(map(shown, graph.predecessors(name))))
            faults.append(Fault(lines[name], f"switch {shown(name)} stands under {parents} switches: {above}"))
    if faults:
        return {}, faults
    found: dict[str, tuple[str, ...]] = {}
    for name in nx.topological_sort(graph):
        parents_path = [found[parent] for parent in graph.predecessors(name)]
        found[name] = (*parents_path[0], name) if parents_path else (name,)
        if len(found[name]) > MAX_TIERS:
            return {}, [Fault(lines[name], f"more than {MAX_TIERS} tiers of switches, down to {shown(name)}")]
    return found, []
