"""`turnout jobs`, `describe`, `logs`, `suspend` and `submit`, as a person types them."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from turnout.cli.commands.listing_output import add_cluster, add_namespace, add_output, namespace_of, show
from turnout.cli.commands.run_verb import BadWord, NoSuch, run_verb, say
from turnout.cli.exit_codes import Exit

if TYPE_CHECKING:
    from turnout.controllers.kind import Kind
    from turnout.kube.client.api_client import Client

_MANAGER = "turnout-cli"
# Of controllers.kinds, not imported before it is needed.
_KINDS = ("ColossalAIJob", "ElasticJob", "MSJob", "PyTorchJob", "VolcanoJob")


def add(commands: Any) -> None:
    """Add them to the parser's commands."""
    jobs = commands.add_parser("jobs", help="list the jobs that the job controllers run, with state and pods")
    add_namespace(jobs, "jobs")
    add_output(jobs)
    add_cluster(jobs)
    jobs.set_defaults(run=_jobs)
    describe = commands.add_parser("describe", help="tell of a job at length: conditions, pods, Events")
    _job(describe)
    describe.set_defaults(run=_describe)
    logs = commands.add_parser("logs", help="print what a worker of a job has written")
    _job(logs)
    logs.add_argument("--rank", type=int, default=0, help="of the worker among its job's (%(default)s)")
    logs.add_argument("-f", "--follow", action="store_true", help="go on, across restarts, until the job ends")
    logs.set_defaults(run=_logs)
    suspend = commands.add_parser("suspend", help="take a job's pods away until `turnout suspend --end`")
    _job(suspend)
    suspend.add_argument("--end", action="store_true", help="let it go on")
    suspend.set_defaults(run=_suspend)
    _add_submit(commands)


def _add_submit(commands: Any) -> None:
    submit = commands.add_parser("submit", help="make a job of a command; --dry-run prints its YAML")
    submit.add_argument("--kind", choices=_KINDS, default="PyTorchJob", help="(%(default)s)")
    submit.add_argument("--name", required=True, help="of the job")
    submit.add_argument("-n", "--namespace", default="default", help="(%(default)s)")
    submit.add_argument("--image", required=True, help="of every pod")
    submit.add_argument("--workers", type=int, default=1, help="(%(default)s)")
    submit.add_argument("--min", type=int, help="the fewest workers of an elastic job (--workers)")
    submit.add_argument("--max", type=int, help="the most (--workers)")
    submit.add_argument("--gpus", type=int, default=0, help="of each worker (%(default)s)")
    submit.add_argument("--dry-run", action="store_true", help="print the YAML and make nothing")
    submit.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what each worker runs")
    add_cluster(submit)
    submit.set_defaults(run=_submit)


def _job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="KIND/NAMESPACE/NAME", help=f"of {', '.join(_KINDS)}")
    add_cluster(parser)


def _jobs(args: argparse.Namespace) -> int:
    from turnout.cli.jobs import listing, rows
    from turnout.controllers.kinds.registry import KINDS
    from turnout.kube.client.clock import RealClock

    async def work(client: Client) -> None:
        namespace = namespace_of(args)

        async def look() -> Any:
            told = []
            for kind in KINDS.values():
                told += rows(kind, await _listed(client, kind, namespace), time.time())
            return listing(told)

        await show(args, look, say, RealClock())

    return run_verb("jobs", args, work)


async def _listed(client: Client, kind: Kind, namespace: str) -> list[Any]:
    """List the jobs of a kind in every group that serves it; none where no group does."""
    import msgspec

    from turnout.kube.errors import NotFound

    found = []
    for api in kind.apis:
        place = f"namespaces/{quote(namespace, safe='')}/" if namespace else ""
        try:
            async for page in client.pages(f"/apis/{api}/{place}{kind.plural}"):
                found += [{"apiVersion": api, **each} for each in msgspec.json.decode(page).get("items") or ()]
        except NotFound:
            continue
    return found


def _describe(args: argparse.Namespace) -> int:
    parts = _parts(args.job)

    async def look(client: Client) -> None:
        from turnout.cli.jobs import described

        kind, raw, core = await _found(client, parts)
        name = raw["metadata"]["name"]
        pods = await _items(client, f"{core}/pods", {"labelSelector": f"{kind.child_labels.job}={name}"})
        selector = f"involvedObject.name={name},involvedObject.kind={kind.kind}"
        events = await _items(client, f"{core}/events", {"fieldSelector": selector})
        print("\n".join(described(kind, raw, pods, events, time.time())))

    return run_verb("describe", args, look)


async def _items(client: Client, path: str, params: Mapping[str, Any]) -> list[Any]:
    import msgspec

    found: list[Any] = []
    async for page in client.pages(path, params):
        found += msgspec.json.decode(page).get("items") or []
    return found


def _parts(text: str) -> list[str]:
    """Split the name of a job into its kind, namespace and name. Raises BadWord."""
    parts = text.split("/")
    if len(parts) != 3 or not all(parts) or parts[0] not in _KINDS:
        raise BadWord(f"{text!r} names no job: KIND/NAMESPACE/NAME, as in PyTorchJob/team-a/bert; {', '.join(_KINDS)}")
    return parts


async def _found(client: Client, parts: Sequence[str]) -> tuple[Kind, Any, str]:
    """Return the kind of a job, its object, and the path of its namespace in the core group. Raises NoSuch."""
    import msgspec

    from turnout.controllers.kinds.registry import KINDS
    from turnout.kube.errors import NotFound

    kind, namespace, name = KINDS[parts[0]], *(quote(part, safe="") for part in parts[1:])
    for api in kind.apis:
        path = f"/apis/{api}/namespaces/{namespace}/{kind.plural}/{name}"
        try:
            return kind, msgspec.json.decode(await client.get(path)), f"/api/v1/namespaces/{namespace}"
        except NotFound:
            continue
    raise NoSuch(f"there is no {'/'.join(parts)}; `turnout jobs` lists those that are there")


def _logs(args: argparse.Namespace) -> int:
    parts = _parts(args.job)

    async def look(client: Client) -> None:
        from turnout.cli.log_runs import newest, selector

        kind, raw, core = await _found(client, parts)
        if args.follow:
            await _follow(args, client, kind, raw, core)
            return
        name = raw["metadata"]["name"]
        run = newest(kind, await _items(client, f"{core}/pods", {"labelSelector": selector(kind, name, args.rank)}))
        if run is None:
            raise NoSuch(f"{args.job} has no worker of rank {args.rank}")
        text = await client.get(f"{core}/pods/{run.pod}/log", {"container": run.container})
        sys.stdout.write(text.decode(errors="replace"))

    return run_verb("logs", args, look)


async def _follow(args: argparse.Namespace, client: Client, kind: Kind, raw: Any, core: str) -> None:
    from turnout.cli.verbs.follow_log import LogFollower
    from turnout.kube.client.clock import RealClock

    def show(text: bytes) -> None:
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()

    def tell(text: str) -> None:
        print(f"turnout logs: {text}", file=sys.stderr)

    meta = raw["metadata"]
    job = f"/apis/{raw['apiVersion']}/namespaces/{meta['namespace']}/{kind.plural}/{meta['name']}"
    await LogFollower(client, RealClock(), kind, job, f"{core}/pods", args.rank, show, tell).run()


def _suspend(args: argparse.Namespace) -> int:
    parts = _parts(args.job)

    async def write(client: Client) -> None:
        from turnout.cli.jobs import suspension
        from turnout.kube.client.apply import MERGE

        kind, raw, _ = await _found(client, parts)
        meta = raw["metadata"]
        path = f"/apis/{raw['apiVersion']}/namespaces/{meta['namespace']}/{kind.plural}/{meta['name']}"
        await client.patch(path, suspension(kind.called, on=not args.end), MERGE, _MANAGER)
        print(f"{args.job} {'goes on' if args.end else 'is suspended'}")

    return run_verb("suspend", args, write)


def _submit(args: argparse.Namespace) -> int:
    from turnout.cli.jobs import BadSubmission, Wish, submission

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    least, most = args.min or args.workers, args.max or args.workers
    wish = Wish(args.name, args.namespace, args.image, args.workers, least, most, args.gpus, command)
    try:
        if not command:
            raise BadSubmission("a command is needed after --")
        body = submission(args.kind, wish)
    except BadSubmission as error:
        print(f"turnout submit: {error}", file=sys.stderr)
        return Exit.USAGE
    if args.dry_run:
        import yaml

        print(yaml.safe_dump(body, sort_keys=False), end="")
        return 0

    async def make(client: Client) -> None:
        from turnout.controllers.kinds.registry import KINDS

        await client.create(f"/apis/{body['apiVersion']}/namespaces/{args.namespace}/{KINDS[args.kind].plural}", body)
        print(f"{args.kind}/{args.namespace}/{args.name} is made")

    return run_verb("submit", args, make)
