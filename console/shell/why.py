"""`turnout why JOB`: what the lender sees, listed once; decided as the lender decides; told."""

from __future__ import annotations

import argparse
import random
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoscaler.settings import Settings
    from autoscaler.telling.chain import Chain
    from autoscaler.view import View
    from kube.errors import CallError
    from kube.objects import Node
    from kube.shell.client import Client

FAILED, USAGE = 1, 2
_LIST_S = 60.0  # for everything
_LOOK_S = 0.01
_LABEL = 10  # columns
_EMPTY = b'{"metadata":{"resourceVersion":"1"},"items":[]}'
# The lender's flags that a decision hangs on, by what they are.
_FLAGS: Mapping[str, type] = {
    "configmap": str,
    "orders": str,
    "gpu-resource": str,
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
    flags = why.add_argument_group("the lender's own flags", "as it was started with; else its defaults")
    for flag, kind in _FLAGS.items():
        flags.add_argument(f"--{flag}", type=kind)
    why.set_defaults(run=_why)


class CannotSee(Exception):
    """What has to be listed cannot be. The message says what, and what would help."""


@dataclass(frozen=True, slots=True)
class Sighted:
    """What was listed. unknown: paths that may not be listed and that a decision can do without."""

    view: View
    nodes: tuple[Node, ...]
    unknown: tuple[str, ...]
    faults: Mapping[Any, str]


def _why(args: argparse.Namespace) -> int:
    import asyncio

    from autoscaler.settings import Settings
    from console.why import NoSuchJob
    from kube.errors import BadKubeconfig, KubeError
    from kube.flags import BadSetting

    given = {flag.replace("-", "_"): getattr(args, flag.replace("-", "_")) for flag in _FLAGS}
    try:
        wanted = Settings(
            args.kubeconfig, args.context, **{key: each for key, each in given.items() if each is not None}
        )
    except BadSetting as error:
        print(f"turnout why: {error}", file=sys.stderr)
        return USAGE
    try:
        sighted = asyncio.run(_list(wanted))
        _tell(args, sighted, _chain(args, wanted, sighted))
    except (NoSuchJob, CannotSee, KubeError, BadKubeconfig) as error:
        print(f"turnout why: {error}", file=sys.stderr)
        return FAILED
    return 0


async def _list(wanted: Settings) -> Sighted:
    """List once all that the lender watches. Raises CannotSee, or BadKubeconfig."""
    import asyncio

    from autoscaler.shell.sight import Sight
    from jobs.kinds.all import KINDS
    from kube.shell.client import Client
    from kube.shell.clock import RealClock

    async with await Client.open(wanted.kubeconfig, wanted.context) as client:
        once, view = _Once(client), _view(wanted)
        sight = Sight(view, once, KINDS, RealClock(), random.Random(), (wanted.configmap, wanted.orders))
        watching = asyncio.create_task(sight.run())
        try:
            async with asyncio.timeout(_LIST_S):
                while not all(each.has_synced or each.path in once.faults for each in sight.reflectors.values()):
                    if watching.done():
                        await watching
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            late = sorted({each.path for each in sight.reflectors.values() if not each.has_synced})
            raise CannotSee(f"the API server did not list {', '.join(late)} within {_LIST_S:.0f} s") from None
        finally:
            watching.cancel()
            await asyncio.wait({watching})
    if once.faults:
        raise CannotSee(_cannot(once.faults))
    return Sighted(view, tuple(view.kept.values()), tuple(once.unknown), dict(view.faults))


def _view(wanted: Settings) -> Any:
    """The lender's view, with the nodes kept at hand."""
    from autoscaler.view import View
    from jobs.kinds.all import KINDS

    class Kept(View):
        def __init__(self) -> None:
            super().__init__(KINDS, (wanted.gpu_resource,))
            self.kept: dict[str, Node] = {}

        def put_node(self, node: Node) -> None:
            self.kept[node.metadata.name] = node
            super().put_node(node)

    return Kept()


class _Once:
    """Lists as a client does, and never watches. faults: what could not be listed, by path."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.faults: dict[str, CallError] = {}
        self.unknown: list[str] = []

    async def pages(
        self, path: str, params: Mapping[str, Any] | None = None, *, limit: int = 500
    ) -> AsyncIterator[bytes]:
        """Each page. ConfigMaps that may not be listed count as absent: who asks is seldom the lender's admin."""
        from kube.errors import CallError, Forbidden, Gone, NotFound

        try:
            async for page in self._client.pages(path, params, limit=limit):
                yield page
        except (NotFound, Gone):
            raise  # an optional kind that is not served; a list that outlived its version is listed again
        except Forbidden as error:
            if path.endswith("/configmaps"):
                self.unknown.append(path)
                yield _EMPTY
                return
            self.faults[path] = error
            raise
        except CallError as error:
            self.faults[path] = error
            raise

    async def watch(self, path: str, params: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Nothing, until cancelled."""
        import asyncio

        await asyncio.Event().wait()
        yield b""


def _cannot(faults: Mapping[str, CallError]) -> str:
    """What to say of lists that failed: the missing rights together, else the first fault."""
    from kube.errors import Forbidden

    missing = sorted({path for path, error in faults.items() if isinstance(error, Forbidden)})
    if missing:
        return (
            f"you may not list {', '.join(_resource(path) for path in missing)} in the whole cluster, and the lender "
            "decides on all of it; the ClusterRole turnout-autoscaler-observe has these rights"
        )
    path, error = next(iter(sorted(faults.items())))
    if error.status:
        return str(error)
    return f"the API server cannot be reached: {error.__cause__ or error.message or path}"


def _resource(path: str) -> str:
    """nodes, or jobs.batch.volcano.sh, as kubectl auth can-i takes it."""
    _, base, *rest = path.split("/")
    return rest[-1] if base == "api" else f"{rest[-1]}.{rest[0]}"


def _chain(args: argparse.Namespace, wanted: Settings, sighted: Sighted) -> Chain | str:
    """The chain of the job, or a sentence for one that has none. Raises NoSuchJob."""
    from autoscaler.decide import decide
    from autoscaler.telling.chain import chain
    from autoscaler.telling.forecast import forecast
    from autoscaler.telling.lives import Lives
    from console.why import meant
    from jobs.model import Life

    now_s, view, policy = time.time(), sighted.view, wanted.policy()
    seen = view.observation(now_s)
    ended = {job.key: uid for uid, job in view.jobs.items() if job.life is Life.DONE}
    keys = {each.job.key for each in seen.jobs}
    key = meant(args.job, args.namespace or _namespace(args), {*keys, *sighted.faults, *ended})
    if key in sighted.faults:
        return f"{key} cannot be read, so it is left alone: {sighted.faults[key]}"
    if key not in keys:
        return f"{key} has ended: nothing is decided on it any more"
    lives = Lives()
    lives.look((uid, view.jobs[uid].queue, view.raw[done]) for done, uid in ended.items() if done in view.raw)
    steps = decide(seen, policy, now_s)
    start = forecast(seen, steps, lives, now_s).get(key)
    found = chain(key, seen, steps, policy, now_s, sighted.nodes, wanted.gpu_resource, start)
    assert found is not None
    return found


def _namespace(args: argparse.Namespace) -> str:
    """That of the context in use."""
    from kubernetes.aio.config import ConfigException, list_kube_config_contexts

    try:
        contexts, active = list_kube_config_contexts(args.kubeconfig)
    except (ConfigException, OSError):
        return "default"
    chosen = next((each for each in contexts if each["name"] == args.context), active)
    return str(chosen.get("context", {}).get("namespace") or "default")


def _tell(args: argparse.Namespace, sighted: Sighted, found: Chain | str) -> None:
    import msgspec
    from rich.text import Text

    from console.shell.terminal import terminal
    from console.why import rows, title

    if args.json:
        told = {"job": None, "says": found} if isinstance(found, str) else msgspec.to_builtins(found)
        print(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())
        return
    console = terminal(args.plain)
    if isinstance(found, str):
        console.print(Text(found), soft_wrap=True)
        return
    console.print(Text(title(found), style="bold"), soft_wrap=True)
    told_rows = rows(found)
    if sighted.unknown:
        told_rows.append(("unknown", f"you may not list {', '.join(sighted.unknown)}: no map, no orders of an admin"))
    for label, text in told_rows:
        lines = textwrap.wrap(text, max(40, console.width - _LABEL), break_long_words=False, break_on_hyphens=False)
        for number, line in enumerate(lines):
            head = (label if not number else "").ljust(_LABEL)
            console.print(Text.assemble((head, "cyan"), (line, "bold" if label == "decision" else "")), soft_wrap=True)
