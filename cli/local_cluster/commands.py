"""The verbs `turnout local up`, `down` and `status`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.cli.exit_codes import ExitCode
from turnout.cli.local_cluster.daemon import (
    KUBECONFIG,
    LOG,
    NO_NAMESPACES,
    LocalClusterFailed,
    failure_text,
    home,
    pods_and_nodes,
    running_cluster,
    start,
    status_lines,
    stop_cluster,
    welcome,
)
from turnout.cli.verb_support.cluster_flags import Verbs, add_verb

if TYPE_CHECKING:
    from turnout.topology.model import ParsedMap

_UP = (
    ("local up", "16 nodes of 8 GPUs under two leaf switches"),
    ("local up --nodes 64 --gpus 4", "a larger one"),
    ("local up --fabric map.txt", "one node for each host of your map"),
    ("local up --processes", "run the commands of pods as processes of your user"),
)
_DOWN = ("local down", "stop the local cluster and all its pods")
_STATUS = ("local status", "show whether a local cluster runs, and its pods")
_EXAMPLES = (*_UP, _STATUS, _DOWN)
_NODES, _GPUS, _MAX_NODES, _MAX_GPUS = 16, 8, 5_000, 64


def add(commands: Verbs) -> None:
    """Add `local` to the parser's commands."""
    _add_verbs(add_verb(commands, "local", "a cluster on this machine, without building anything", _EXAMPLES))


def _add_verbs(parser: argparse.ArgumentParser) -> None:
    """Add the commands up, down and status."""
    verbs = parser.add_subparsers(metavar="COMMAND", required=True)
    up = add_verb(verbs, "up", "start a local cluster in the background and print its KUBECONFIG", _UP)
    _add_up_options(up)
    up.set_defaults(run=_up)
    add_verb(verbs, "down", "stop the local cluster", (_DOWN,)).set_defaults(run=_down)
    add_verb(verbs, "status", "show its state; exit code 1 if none runs", (_STATUS,)).set_defaults(run=_status)


def _add_up_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `turnout local up` to its parser."""
    many = parser.add_mutually_exclusive_group()
    many.add_argument("--nodes", type=_from_1(_MAX_NODES), default=_NODES, help="number of nodes (%(default)s)")
    many.add_argument("--fabric", type=Path, metavar="FILE", help="a map: one node for each of its hosts")
    parser.add_argument("--gpus", type=_from_0(_MAX_GPUS), default=_GPUS, help="GPUs of each node (%(default)s)")
    parser.add_argument(
        "--port", type=_from_0(65_535), default=0, help="port of the API; 0 for a free one (%(default)s)"
    )
    parser.add_argument("--processes", action="store_true", help="run the commands of pods as processes of your user")
    parser.add_argument("--real", action="store_true", help="on the control plane that `make controlplane` has built")
    parser.add_argument("--no-extender", action="store_true", help="let the scheduler place pods by itself")


def _from_0(maximum: int) -> Callable[[str], int]:
    """Return a parser of a whole number from 0 to `maximum`, as argparse takes it."""
    return lambda text: _number(text, 0, maximum)


def _from_1(maximum: int) -> Callable[[str], int]:
    """Return a parser of a whole number from 1 to `maximum`, as argparse takes it."""
    return lambda text: _number(text, 1, maximum)


def _number(text: str, minimum: int, maximum: int) -> int:
    if not (text.isdecimal() and minimum <= int(text) <= maximum):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {minimum} to {maximum}")
    return int(text)


def _up(args: argparse.Namespace) -> int:
    """Start a local cluster and wait until it is ready.

    Returns the exit code: FAILED if one runs already, if the map is faulty, or if the cluster does not start.
    """
    folder = home()
    if (running := running_cluster(folder)) is not None:
        print(
            f"turnout local up: a local cluster runs already at {running.url}: stop it with `turnout local down`",
            file=sys.stderr,
        )
        return ExitCode.FAILED
    try:
        if args.fabric:
            _read_map(args.fabric)
        if args.real:
            from turnout.cli.local_cluster.control_plane import check

            check()
        record = start(folder, lambda: _serve(args, folder))
    except LocalClusterFailed as error:
        print(f"turnout local up: {error}", file=sys.stderr)
        return ExitCode.FAILED
    print("\n".join(welcome(record, str(folder / KUBECONFIG))))
    if args.processes:
        from turnout.simulator.processes.runtime.container_init import can_isolate

        if not can_isolate():
            print(f"turnout local up: {NO_NAMESPACES}", file=sys.stderr)
    return 0


def _down(args: argparse.Namespace) -> int:
    """Stop the local cluster. Does nothing if none runs. Return the exit code."""
    folder = home()
    if (record := running_cluster(folder)) is None:
        print("no local cluster is up")
        return 0
    stop_cluster(folder, record)
    print("the local cluster is gone")
    return 0


def _status(args: argparse.Namespace) -> int:
    """Print the state of the local cluster. Return the exit code: FAILED if none runs or its API does not answer."""
    if (record := running_cluster(home())) is None:
        why = (
            f" (the last one has failed: {failed}; its log is {home() / LOG})"
            if (failed := failure_text(home()))
            else ""
        )
        print(f"no local cluster is up{why}; turnout local up starts one", file=sys.stderr)
        return ExitCode.FAILED
    try:
        print("\n".join(status_lines(record, *pods_and_nodes(home()))))
    except LocalClusterFailed as error:
        print(f"turnout local status: {error}", file=sys.stderr)
        return ExitCode.FAILED
    print(f"KUBECONFIG={home() / KUBECONFIG}")
    return 0


def _serve(args: argparse.Namespace, folder: Path) -> int:
    """Run the local cluster in this process until a signal ends it.

    Return the exit code; a failure is printed on stderr. folder: of its kubeconfig and state file.
    """
    import asyncio
    from dataclasses import replace

    from turnout.cli.local_cluster.prestart import prestart

    try:
        begun = None if args.real else prestart(folder, args.port, not args.no_extender)
    except OSError as error:
        print(f"turnout local: cannot listen on port {args.port}: {os.strerror(error.errno or 0)}", file=sys.stderr)
        return ExitCode.FAILED
    from turnout.cli.local_cluster.serve import ClusterOptions, serve
    from turnout.cli.verb_support.child_programs import ExtenderFailed
    from turnout.simulator.cluster.node_builder import nodes_of_map

    request = ClusterOptions(folder, args.nodes, args.gpus, args.port, not args.no_extender, args.real, args.processes)
    try:
        if args.fabric:
            reading, data = _read_map(args.fabric)
            request = replace(request, nodes=0, places=tuple(nodes_of_map(reading.entries)), map_data=data)
        asyncio.run(serve(request, begun))
    except (LocalClusterFailed, ExtenderFailed, OSError) as error:
        print(f"turnout local: {error}", file=sys.stderr)
        return ExitCode.FAILED
    return 0


def _read_map(file: Path) -> tuple[ParsedMap, tuple[tuple[str, str], ...]]:
    """Return the map in a file, and the data of its ConfigMap as (key, value).

    Raises LocalClusterFailed if the file cannot be read, with every fault of the map, or if its hosts cannot be the
    nodes of a local cluster.
    """
    from turnout.cli.topo_check import check, data_of, report_lines
    from turnout.simulator.cluster.node_builder import MAX_NODES, hosts_without_node_name, nodes_of_map

    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LocalClusterFailed(str(error)) from error
    reading = check(text)
    if reading.faults:
        raise LocalClusterFailed("\n".join(report_lines(str(file), reading)))
    nodes = nodes_of_map(reading.entries)
    if not 0 < len(nodes) <= MAX_NODES:
        raise LocalClusterFailed(f"{file} names {len(nodes)} hosts; a local cluster has from 1 to {MAX_NODES} nodes")
    if odd := hosts_without_node_name(nodes):
        raise LocalClusterFailed(f"{file}: no node can be called {odd[0]!r}")
    return reading, tuple(data_of(text).items())
