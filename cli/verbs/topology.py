"""The verbs `turnout topology` and `turnout explain`: the switches, and where a gang would be placed."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import TYPE_CHECKING

from turnout.cli.exit_codes import ExitCode
from turnout.cli.verb_support.cluster_flags import (
    DECIDING,
    SEEING,
    Verbs,
    add_cluster,
    add_flags,
    add_no_namespace,
    add_verb,
    context_namespace,
    settings_of,
)
from turnout.cli.verb_support.listing_output import add_form, add_output, show
from turnout.cli.verb_support.run_verb import BadArgument, print_now, run_verb
from turnout.cli.verbs import topology_check

if TYPE_CHECKING:
    from turnout.autoscaler.settings import Settings
    from turnout.cli.verb_support.scheduler_view import SchedulerView
    from turnout.cli.views.listing import Listing
    from turnout.cli.views.topology import Branch
    from turnout.kube.client.api_client import Client

_EXAMPLES = (
    ("topology", "the map of switches with what is used under each"),
    ("topology --nodes", "down to the nodes"),
    ("topology -o json", "for a program"),
    ("topology --svg > map.svg", "a picture"),
    ("topology check map.txt", "tell every fault of a map before it is applied; asks no cluster"),
)


def add(commands: Verbs) -> None:
    """Add the verbs `topology` and `explain` to the command line."""
    _add_topology(commands)
    explain = commands.add_parser(
        "explain",
        help="where a gang would land now, and why; or what a reason means",
        description="Say where a gang would land now, and why; nothing is written; exit 3 when it finds no place. "
        "Or say what a reason of an Event or of `turnout why` means; this asks no cluster.",
    )
    explain.add_argument(
        "gang",
        metavar="PODSxGPUS|REASON",
        help="as in 4x8: four pods of eight GPUs; or a reason, as in NoRoom. The options are those of a gang",
    )
    explain.add_argument("--tier", type=int, help="the widest switch that it may span, 1 = leaf (it only prefers)")
    explain.add_argument("--min", type=int, help="how many pods must start together (all)")
    explain.add_argument("--cpu", help="of each pod, as in 16 or 500m")
    explain.add_argument("--memory", help="of each pod, as in 64Gi")
    explain.add_argument("--selector", action="append", default=[], metavar="KEY=VALUE", help="of nodes; repeatable")
    explain.add_argument("--toleration", action="append", default=[], metavar="KEY", help="of a taint; repeatable")
    explain.add_argument("--priority", type=int, default=0, help="of its pods (%(default)s)")
    explain.add_argument("--queue", default="", help="that its pods name (that of the namespace)")
    explain.add_argument("-n", "--namespace", default="", help="of its pods (that of your context)")
    add_form(explain)
    add_cluster(explain)
    add_flags(explain, DECIDING)
    explain.set_defaults(run=_explain)


def _add_topology(commands: Verbs) -> None:
    """Add the verb `topology` with its options."""
    topology = add_verb(commands, "topology", "the switches as a tree, with used and free GPUs under each", _EXAMPLES)
    topology.add_argument("--nodes", action="store_true", help="a line for every node, too")
    topology.add_argument("--svg", action="store_true", help="draw a picture: an SVG document on stdout")
    add_no_namespace(topology, "switches")
    add_output(topology)
    add_cluster(topology)
    add_flags(topology, SEEING)
    topology.set_defaults(run=_topology)
    topology_check.add(topology.add_subparsers(metavar="[COMMAND]"))


def _topology(args: argparse.Namespace) -> int:
    """Print the switches as a tree, or as a picture with --svg. Return the exit code.

    Raises BadArgument for --svg together with --watch or --output.
    """
    from turnout.cli.verb_support.scheduler_view import look
    from turnout.kube.client.clock import RealClock

    settings = settings_of(args, SEEING)
    if args.svg and (args.watch or args.output != "table"):
        raise BadArgument("--svg is a form of its own: it does not go with --watch and --output")

    async def work(client: Client) -> None:
        """Print the tree of switches, repeatedly with --watch."""
        if args.svg:
            print_now(topology_svg(await look(client, settings, "default", sizes=False), settings))
            return

        async def observe() -> Listing[Branch]:
            return topology_listing(await look(client, settings, "default", sizes=False), settings, args.nodes)

        await show(args, observe, print_now, RealClock())

    return run_verb("topology", args, work)


def topology_listing(view: SchedulerView, settings: Settings, with_nodes: bool) -> Listing[Branch]:
    """Return the topology map as a listing, with the used and the allocatable GPUs of each switch.

    with_nodes: also list each node. If there is no usable map, a note says why. Raises CannotSee if nodes or pods may
    not be listed in the whole cluster.
    """
    from turnout.cli.views.topology import listing, rows, tree_nodes

    used = {node: sum(gangs.values()) for node, gangs in _gpus_by_node_and_gang(view).items()}
    found = rows(view.fabric.paths, tree_nodes(view.nodes, used, settings.gpu_resource), with_nodes)
    return listing(found, (view.map_fault,) if view.map_fault else ())


def topology_svg(view: SchedulerView, settings: Settings) -> str:
    """Return an SVG picture of the topology map: switches, nodes, and the GPUs that each gang uses on each node.

    Raises CannotSee if nodes or pods may not be listed in the whole cluster.
    """
    from turnout.cli.views.topology import tree_nodes
    from turnout.cli.views.topology_svg import svg

    holders = _gpus_by_node_and_gang(view)
    used = {node: sum(gangs.values()) for node, gangs in holders.items()}
    nodes = tree_nodes(view.nodes, used, settings.gpu_resource)
    return svg(view.fabric.paths, nodes, holders, (view.map_fault,) if view.map_fault else ())


def _gpus_by_node_and_gang(view: SchedulerView) -> dict[str, Counter[str]]:
    """Return the number of GPUs that each gang uses on each node: node -> key of the gang -> number.

    Pods without a GPU or node are omitted. Raises CannotSee if nodes or pods may not be listed in the whole cluster.
    """
    from turnout.cli.verb_support.listing import CannotSee, may_not

    if view.missing:
        raise CannotSee(may_not(view.missing))
    holders: dict[str, Counter[str]] = {}
    for member in view.gangs.pods.values():
        if member.node and member.gpus:
            holders.setdefault(member.node, Counter())[str(member.membership.key)] += member.gpus
    return holders


def _explain(args: argparse.Namespace) -> int:
    """Print where a gang would be placed, or what a reason means.

    Returns the exit code: NEGATIVE_RESULT if the gang does not fit now. Raises BadArgument if the text is no gang and
    no reason, or if an option is invalid.
    """
    if args.gang.isalpha():  # no gang has such a name: it begins with a number
        return _explain_reason(args.gang)
    from turnout.cli.views.explain import BadGang, gang_of, listing
    from turnout.cli.views.listing import text

    settings = settings_of(args, DECIDING)
    namespace = args.namespace or context_namespace(args)
    try:
        selector = dict(each.split("=", 1) for each in args.selector if "=" in each)
        if len(selector) < len(args.selector):
            raise BadGang("--selector is KEY=VALUE")
        gang = gang_of(
            args.gang,
            namespace,
            settings.gpu_resource[0],
            minimum=args.min,
            tier=args.tier,
            requests={what: text for what, text in (("cpu", args.cpu), ("memory", args.memory)) if text},
            selector=selector,
            tolerations=tuple(args.toleration),
            priority=args.priority,
            queue=args.queue,
        )
    except BadGang as error:
        raise BadArgument(str(error)) from error

    async def work(client: Client) -> ExitCode:
        """Print where the gang would be placed. Return NEGATIVE_RESULT if it does not fit now."""
        from turnout.cli.verb_support.gang_landing import explain_gang

        found = await explain_gang(client, settings, gang)
        print_now(text(listing(found), args.output))
        return ExitCode.DONE if found.fits else ExitCode.NEGATIVE_RESULT

    return run_verb("explain", args, work)


def _explain_reason(word: str) -> int:
    """Print what the reason `word` means. Return DONE. Raises BadArgument for a word that no program uses."""
    from difflib import get_close_matches

    from turnout.kube.reasons import WORDS, explain

    if not (lines := explain(word)):
        close = get_close_matches(word, sorted(WORDS), 1)
        hint = f"did you mean {close[0]}?" if close else "docs/reference/reasons.md lists all"
        raise BadArgument(f"no program of Turnout uses the reason {word[:40]!r}; {hint}")
    print_now("\n".join(lines))
    return ExitCode.DONE
