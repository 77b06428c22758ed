"""The verb `turnout submit -- COMMAND`: creates a job that runs a command."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from turnout.cli.exit_codes import ExitCode
from turnout.cli.job_names import JOB_KINDS, can_be_name
from turnout.cli.verb_support.cluster_flags import Verbs, add_cluster, add_verb, context_namespace
from turnout.cli.verb_support.run_verb import BadArgument, NoSuch, run_verb

if TYPE_CHECKING:
    from turnout.kube.client.api_client import Client

_EXAMPLES = (
    ("submit --name bert --image train:1 --workers 4 --gpus 8 -- python train.py", "four pods of eight GPUs"),
    ("submit --name bert --image train:1 --min 2 --max 8 --workers 2 -- python train.py", "an elastic job"),
    ("submit --name bert --image train:1 --dry-run -- python train.py", "its YAML, for kubectl and for git"),
)


def add(commands: Verbs) -> None:
    """Add the verb `submit` to the command line."""
    submit = add_verb(commands, "submit", "make a job of a command; --dry-run prints its YAML", _EXAMPLES)
    submit.add_argument("--kind", choices=JOB_KINDS, default="PyTorchJob", help="kind of the job (%(default)s)")
    submit.add_argument("--name", required=True, help="name of the job")
    submit.add_argument("-n", "--namespace", default="", help="namespace of the job (that of your context)")
    submit.add_argument("--image", required=True, help="image of every pod")
    submit.add_argument("--workers", type=int, default=1, help="number of workers (%(default)s)")
    submit.add_argument("--min", type=int, help="the fewest workers of an elastic job (as --workers)")
    submit.add_argument("--max", type=int, help="the most workers of an elastic job (as --workers)")
    submit.add_argument("--gpus", type=int, default=0, help="GPUs of each worker (%(default)s)")
    submit.add_argument("--dry-run", action="store_true", help="print the YAML and make nothing")
    submit.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what each worker runs")
    add_cluster(submit)
    submit.set_defaults(run=_submit)


def _submit(args: argparse.Namespace) -> int:
    """Create a job from options, or print it with --dry-run. Return the exit code.

    Raises BadArgument without a command, for an invalid name, and for options that describe no job of the kind.
    """
    from turnout.cli.jobs import BadSubmission, JobRequest, submission

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    minimum, maximum = (args.workers if each is None else each for each in (args.min, args.max))
    namespace = args.namespace or context_namespace(args)
    wish = JobRequest(args.name, namespace, args.image, args.workers, minimum, maximum, args.gpus, command)
    try:
        if not command:
            raise BadSubmission("a command is needed after --")
        if not can_be_name(args.name):
            raise BadSubmission(f"--name {args.name!r:.90}: small letters, digits, dashes and dots")
        body = submission(args.kind, wish)
    except BadSubmission as error:
        raise BadArgument(str(error)) from error
    if args.dry_run:
        import yaml

        print(yaml.safe_dump(body, sort_keys=False), end="")
        return ExitCode.DONE

    async def make(client: Client) -> None:
        """Create the job and print its name. Raises NoSuch if the cluster lacks its namespace or its kind."""
        from turnout.controllers.kinds.registry import KINDS
        from turnout.kube.errors import NotFound

        path = f"/apis/{body['apiVersion']}/namespaces/{namespace}/{KINDS[args.kind].plural}"
        try:
            await client.create(path, body)
        except NotFound as error:
            if error.reason:  # of Kubernetes: the namespace
                raise NoSuch(error.message) from error
            crd = f"{KINDS[args.kind].plural}.{body['apiVersion'].partition('/')[0]}"
            raise NoSuch(
                f"the cluster serves no {args.kind}: its definition {crd} is not installed; --kind names another kind"
            ) from error
        print(f"{args.kind}/{namespace}/{args.name} is made")

    return run_verb("submit", args, make)
