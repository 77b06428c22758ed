"""The command `python -m hack.controlplane` for developers: build, path NAME, up."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from hack.controlplane import nodes, scheduler_config
from hack.controlplane.errors import ControlPlaneError
from hack.controlplane.plane import ControlPlane
from hack.controlplane.tools import build, cache, parts


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command: build, path or up. Return 0; 1 for a ControlPlaneError, which is printed without a traceback.

    argv: None for that of this process.
    """
    arguments = _parser().parse_args(argv)
    try:
        match arguments.command:
            case "build":
                build.build(arguments.only, lambda line: print(line, flush=True))
            case "path":
                print(cache.binary(arguments.name))
            case "up":
                _up(arguments)
    except ControlPlaneError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m hack.controlplane", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    built = commands.add_parser(
        "build", help="build the programs that the cache lacks (half an hour on two cores from nothing)"
    )
    built.add_argument(
        "--only", action="append", choices=list(parts.BY_NAME), default=[], help="only this part; repeat"
    )
    path = commands.add_parser("path", help="print where a built program lies")
    path.add_argument("name", choices=list(parts.BY_NAME))
    up = commands.add_parser("up", help="run a control plane in the foreground until Ctrl-C")
    up.add_argument("--nodes", type=int, default=0, help="fake GPU nodes (%(default)s)")
    up.add_argument("--gpus", type=int, default=8, help="GPUs on each node (%(default)s)")
    up.add_argument("--leaves", type=int, default=8, help="leaf switches the nodes are labelled with (%(default)s)")
    up.add_argument("--extender", metavar="URL", help="register an extender at this http URL, by the shipped file")
    up.add_argument("--no-kwok", action="store_true", help="somebody else plays kubelet for the nodes")
    up.add_argument("--emulated-version", metavar="1.N", help="behave like an older Kubernetes")
    up.add_argument("--training-operator", action="store_true", help="run training-operator too")
    return parser


def _up(arguments: argparse.Namespace) -> None:
    """Run a control plane in the foreground until Ctrl-C or SIGTERM. arguments: of the command line."""
    signal.signal(signal.SIGTERM, _interrupt)
    with ControlPlane(emulated_version=arguments.emulated_version) as plane:
        print(f"API server {plane.url}, ready after {plane.ready_after_s:.1f} s", flush=True)
        asyncio.run(_create_nodes(plane, arguments))
        if not arguments.no_kwok:
            plane.start_kwok()
        plane.start_controller_manager()
        plane.start_scheduler(scheduler_config.with_extender_url(arguments.extender) if arguments.extender else None)
        if arguments.training_operator:
            plane.start_training_operator()
        print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
        print(f"logs in {plane.folder}; kubectl is {cache.binary('kubectl')}; Ctrl-C ends it all", flush=True)
        signal.pause()


async def _create_nodes(plane: ControlPlane, arguments: argparse.Namespace) -> None:
    """Create the fake nodes that the command line asks for, labelled with leaf switches in turn."""
    objects = nodes.gpu_nodes(arguments.nodes, gpus=arguments.gpus)
    for number, node in enumerate(objects):
        node["metadata"]["labels"]["turnout.dev/test-leaf"] = f"leaf-{number % max(1, arguments.leaves)}"
    async with plane.api() as api:
        await api.create_all(objects)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, as Ctrl-C does. A signal handler."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
