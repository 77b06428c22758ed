"""`turnout why JOB`: what the autoscaler sees, listed once; decided as the autoscaler decides; told."""

from __future__ import annotations

import argparse
import random
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnout.autoscaler.model import Observation
    from turnout.autoscaler.reporting.explain import Chain
    from turnout.autoscaler.settings import Settings
    from turnout.cli.controlled import Account
    from turnout.cli.partly import Partly
    from turnout.jobs.model import JobKey
    from turnout.kube.objects import Node, Pod

    Told = Chain | Partly | str  # a sentence for a job of which nothing is decided

FAILED, USAGE = 1, 2
_LIST_S = 60.0  # for everything
_LOOK_S = 0.01
_LABEL = 11  # columns
# The autoscaler's flags that a decision hangs on, by what they are.
_FLAGS: Mapping[str, type] = {
    "configmap": str,
    "orders": str,
    "headroom-gpus": int,
    "cooldown-s": float,
    "restart-s": float,
    "payback-s": float,
    "restart-budget": float,
    "least-gain": float,
}


def add(commands: Any) -> None:
    """Add the command to the parser's."""
    why = commands.add_parser("why", help="why a job waits, or is as large as it is, and when it may start")
    why.add_argument("job", metavar="JOB", help="KIND/NAMESPACE/NAME, or KIND/NAME or NAME in your namespace")
    why.add_argument("-n", "--namespace", help="of a job named without one; else that of your context")
    why.add_argument("--json", action="store_true", help="as JSON, times in seconds since 1970, null for never")
    why.add_argument("--plain", action="store_true", help="plain text, as for a file")
    why.add_argument("--kubeconfig", help="path; else in-cluster, else the user's own")
    why.add_argument("--context", help="of the kubeconfig")
    flags = why.add_argument_group("the autoscaler's own flags", "as it was started with; else its defaults")
    for flag, kind in _FLAGS.items():
        flags.add_argument(f"--{flag}", type=kind)
    flags.add_argument("--gpu-resource", action="append", help="repeatable")
    why.set_defaults(run=_why)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All that was listed. unknown: paths that may not be listed and that a decision can do without.

    missing: resources that may not be listed in the whole cluster; then nothing can be decided.
    """

    view: Any
    nodes: tuple[Node, ...]
    unknown: tuple[str, ...]
    missing: tuple[str, ...]
    faults: Mapping[Any, str]


def _why(args: argparse.Namespace) -> int:
    import asyncio

    from turnout.autoscaler.settings import Settings
    from turnout.cli.commands.listing import CannotSee
    from turnout.cli.why import NoSuchJob
    from turnout.kube.cli_flags import BadSetting
    from turnout.kube.errors import BadKubeconfig, KubeError

    given = {flag.replace("-", "_"): getattr(args, flag.replace("-", "_")) for flag in _FLAGS}
    given["gpu_resource"] = None if args.gpu_resource is None else tuple(args.gpu_resource)
    try:
        wanted = Settings(
            args.kubeconfig, args.context, **{key: each for key, each in given.items() if each is not None}
        )
    except BadSetting as error:
        print(f"turnout why: {error}", file=sys.stderr)
        return USAGE
    try:
        namespace = _where(args)
        cluster_view = asyncio.run(_list(wanted, namespace))
        key = _meant(args, cluster_view, namespace)
        found = _found(wanted, cluster_view, key)
        _tell(args, cluster_view, found, asyncio.run(_account(wanted, key)), _pods(cluster_view, key))
    except (NoSuchJob, CannotSee, KubeError, BadKubeconfig) as error:
        print(f"turnout why: {error}", file=sys.stderr)
        return FAILED
    return 0


async def _list(wanted: Settings, namespace: str) -> ClusterView:
    """List once all that the autoscaler watches. Raises CannotSee, or BadKubeconfig.

    namespace: listed by itself where the whole cluster may not be.
    """
    import asyncio

    from turnout.autoscaler.controller.informers import AutoscalerInformers
    from turnout.cli.commands.listing import CannotSee, Once
    from turnout.jobs.kinds.registry import KINDS
    from turnout.kube.client.api_client import Client
    from turnout.kube.client.clock import RealClock

    async with await Client.open(wanted.kubeconfig, wanted.context) as client:
        once, view = Once(client, namespace), _view(wanted)
        maps = (wanted.configmap, wanted.orders)
        informers = AutoscalerInformers(view, once, KINDS, RealClock(), random.Random(), maps)
        watching = asyncio.create_task(informers.run())
        try:
            async with asyncio.timeout(_LIST_S):
                while not all(
                    each.has_synced or each.path in once.faults for each in informers.reflectors.values()
                ) or not (informers.map_looked_at or once.faults):
                    if watching.done():
                        await watching
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            late = sorted({each.path for each in informers.reflectors.values() if not each.has_synced})
            raise CannotSee(f"the API server did not list {', '.join(late)} within {_LIST_S:.0f} s") from None
        finally:
            watching.cancel()
            await asyncio.wait({watching})
    once.check()
    return ClusterView(view, tuple(view.kept.values()), tuple(once.unknown), once.missing(), dict(view.faults))


def _view(wanted: Settings) -> Any:
    """The autoscaler's view, with the nodes kept at hand, and what is nobody's job."""
    from turnout.autoscaler.cache import Cache
    from turnout.autoscaler.model import UNKNOWN_NODE
    from turnout.autoscaler.reporting.never import BareGang
    from turnout.jobs.kinds.registry import KINDS

    class Kept(Cache):
        def __init__(self) -> None:
            super().__init__(KINDS, wanted.gpu_resource)
            self.kept: dict[str, Node] = {}

        def put_node(self, node: Node) -> None:
            self.kept[node.metadata.name] = node
            super().put_node(node)

        def bare_gangs(self) -> dict[JobKey, BareGang]:
            """Gangs of GPU pods, running or waiting, of which no job of a known kind tells; lone pods too."""
            found = {}
            for key, group, members in self.strays.all():
                on = ((self._ground.row(pod.spec.node_name), shape) for pod, shape in members if pod.spec.node_name)
                placed = tuple((UNKNOWN_NODE if row is None else row, shape) for row, shape in on)
                found[key] = BareGang(key, self._payer(members[0][0], group), len(members), placed)
            return found

    return Kept()


def _meant(args: argparse.Namespace, cluster_view: ClusterView, namespace: str) -> JobKey:
    """Give the key of the job that is asked for. Raises NoSuchJob."""
    from turnout.cli.commands.listing import may_not
    from turnout.cli.why import NoSuchJob, meant

    view = cluster_view.view
    keys = {job.key for job in view.jobs.values()}
    seen = {each.job.key for each in view.observation(time.time()).jobs}
    try:
        return meant(args.job, namespace, {*keys, *seen, *cluster_view.faults, *view.bare_gangs()})
    except NoSuchJob as error:
        raise NoSuchJob(f"{error}; {may_not(cluster_view.missing)}" if cluster_view.missing else str(error)) from None


async def _account(wanted: Settings, key: JobKey) -> Account | None:
    """Give how the job stands with its controller."""
    from turnout.cli.commands.listing import account_of
    from turnout.kube.client.api_client import Client

    async with await Client.open(wanted.kubeconfig, wanted.context) as client:
        return await account_of(client, key)


def _found(wanted: Settings, cluster_view: ClusterView, key: JobKey) -> Chain | Partly | str:
    """Give what is to be told of the job, a sentence for one of which nothing is decided."""
    from turnout.cli.why import running
    from turnout.jobs.model import Life

    now_s, view = time.time(), cluster_view.view
    seen, bare = view.observation(now_s), view.bare_gangs()
    ended = {job.key: uid for uid, job in view.jobs.items() if job.life is Life.DONE}
    keys = {each.job.key for each in seen.jobs}
    if key in cluster_view.faults:
        return f"{key} cannot be read, so it is left alone: {cluster_view.faults[key]}"
    if key in keys:
        if cluster_view.missing:
            return _partly(cluster_view, seen, key, now_s)
        return _chain(wanted, cluster_view, seen, key, ended, now_s)
    if key in bare:
        return running(bare[key], wanted.gpu_resource)
    return f"{key} has ended: nothing is decided on it any more"


def _chain(
    wanted: Settings,
    cluster_view: ClusterView,
    seen: Observation,
    key: JobKey,
    ended: Mapping[JobKey, str],
    now_s: float,
) -> Chain:
    """The chain of the job, decided as the autoscaler decides."""
    from turnout.autoscaler.decide import decide
    from turnout.autoscaler.reporting.explain import chain
    from turnout.autoscaler.reporting.forecast import forecast
    from turnout.autoscaler.reporting.never import Beside
    from turnout.autoscaler.reporting.runtime_stats import Lives

    view, policy, lives = cluster_view.view, wanted.policy(), Lives()
    lives.look((uid, view.jobs[uid].queue, view.raw[done]) for done, uid in ended.items() if done in view.raw)
    steps = decide(seen, policy, now_s)
    start = forecast(seen, steps, lives, now_s).get(key)
    map_seen = not any(wanted.configmap.partition("/")[0] in path.split("/") for path in cluster_view.unknown)
    beside = Beside(view.bare_gangs(), map_seen)
    found = chain(key, seen, steps, policy, now_s, cluster_view.nodes, wanted.gpu_resource, start, beside)
    assert found is not None
    return found


def _partly(cluster_view: ClusterView, seen: Observation, key: JobKey, now_s: float) -> Partly:
    """Give what the pods of the job tell by themselves."""
    from turnout.autoscaler.reporting.never import Beside, members
    from turnout.cli.partly import Partly

    one = next(each for each in seen.jobs if each.job.key == key)
    pods = _pods(cluster_view, key)
    there = members(one, Beside(cluster_view.view.bare_gangs()))
    return Partly.of(one, pods, there, cluster_view.missing, now_s)


def _pods(cluster_view: ClusterView, key: JobKey) -> list[Pod]:
    """Give the pods of a job, or of a gang that is nobody's job."""
    view = cluster_view.view
    return view.pods_of(key) or [pod for name, _, there in view.strays.all() if name == key for pod, _ in there]


def _where(args: argparse.Namespace) -> str:
    """The namespace of the job: named with it, or by a flag, or that of the context in use."""
    parts = args.job.split("/")
    return parts[1] if len(parts) == 3 and parts[1] else args.namespace or _namespace(args)


def _namespace(args: argparse.Namespace) -> str:
    """That of the context in use."""
    from kubernetes.aio.config import ConfigException, list_kube_config_contexts

    try:
        contexts, active = list_kube_config_contexts(args.kubeconfig)
    except (ConfigException, OSError):
        return "default"
    chosen = next((each for each in contexts if each["name"] == args.context), active)
    return str(chosen.get("context", {}).get("namespace") or "default")


def _tell(
    args: argparse.Namespace, cluster_view: ClusterView, found: Told, account: Account | None, pods: Sequence[Pod]
) -> None:
    import msgspec
    from rich.text import Text

    from turnout.cli import partly, why
    from turnout.cli.commands.listing import may_not
    from turnout.cli.commands.terminal import terminal

    if args.json:
        told = {"job": None, "says": found} if isinstance(found, str) else msgspec.to_builtins(found)
        told["controller"] = None if account is None else msgspec.to_builtins(account)
        print(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
        return
    console = terminal(args.plain)
    if isinstance(found, str):
        head, told_rows = found, list[why.Row]()
    elif isinstance(found, partly.Partly):
        head, told_rows = partly.title(found), partly.rows(found)
    else:
        head, told_rows = why.title(found), why.rows(found)
    told_rows += why.gates(pods)
    if account is not None:
        told_rows = why.with_account(told_rows, account.text, account.next)
    console.print(Text(head, style="" if isinstance(found, str) else "bold"), soft_wrap=True)
    if cluster_view.unknown and not isinstance(found, str):
        told_rows.append(
            ("unknown", f"you may not list {', '.join(cluster_view.unknown)}: no map, no orders of an admin")
        )
    if cluster_view.missing and not isinstance(found, str):
        told_rows.append(("unknown", f"its room, its queue and what is decided on it: {may_not(cluster_view.missing)}"))
    for label, text in told_rows:
        lines = textwrap.wrap(text, max(40, console.width - _LABEL), break_long_words=False, break_on_hyphens=False)
        for number, line in enumerate(lines):
            head = (label if not number else "").ljust(_LABEL)
            console.print(Text.assemble((head, "cyan"), (line, "bold" if label == "decision" else "")), soft_wrap=True)
