"""The options of every verb that calls an API server: cluster, user, timeout and namespace."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from turnout.cli.exit_codes import CODES, ExitCode
from turnout.cli.job_names import FORMS, BadJobName, JobName, read
from turnout.cli.verb_support.run_verb import BadArgument

if TYPE_CHECKING:
    from turnout.autoscaler.settings import Settings

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
Examples = Sequence[tuple[str, str]]
Verbs: TypeAlias = "argparse._SubParsersAction[Any]"  # the parsers to which a verb adds its own


def add_verb(
    commands: Verbs, name: str, summary: str, examples: Examples, more: str = "", **options: Any
) -> argparse.ArgumentParser:
    """Add a verb with its help text, and return its parser.

    name: of the verb. examples: command lines without `turnout`, each with its purpose. more: a paragraph below the
    summary. options: of argparse.
    """
    width = max(len(typed) for typed, _ in examples)
    lines = [f"  turnout {typed:<{width}}  # {purpose}" for typed, purpose in examples]
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.{f' {more}' if more else ''}",
        epilog="\n".join(["examples:", *lines, "", CODES]),
        formatter_class=_Help,
        **options,
    )
    return parser


class VerbParser(argparse.ArgumentParser):
    """A parser that reports a wrong command line in one line, with the command that lists the options."""

    def error(self, message: str) -> NoReturn:
        """Print the line, and end with USAGE."""
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}; `{self.prog} --help` lists the options\n")


class _Help(argparse.HelpFormatter):
    """A help whose description is wrapped and whose examples stand as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        return super()._fill_text(text, width, indent)


def add_cluster(parser: argparse.ArgumentParser, *, inner: bool = False) -> None:
    """Add the options that choose the cluster, the user and the timeout of requests.

    inner: the parser is a subcommand of a verb that has these options too; its defaults do not replace the verb's
    values.
    """
    defaults: dict[str, Any] = {"default": argparse.SUPPRESS} if inner else {}
    group = parser.add_argument_group("the cluster")
    group.add_argument(
        "--kubeconfig",
        help="path of the kubeconfig; without it the account of the pod, else $KUBECONFIG or ~/.kube/config",
        **defaults,
    )
    group.add_argument("--context", help="context of the kubeconfig (the current one)", **defaults)
    group.add_argument(
        "--as",
        dest="as_user",
        metavar="USER",
        help="send the requests in the name of this user",
        **(defaults or {"default": ""}),
    )
    group.add_argument(
        "--request-timeout",
        type=duration_s,
        metavar="TIME",
        help="the longest time that one request may take, as in 5, 10s or 1m (30 s)",
        **defaults,
    )


def add_no_namespace(parser: argparse.ArgumentParser, of: str) -> None:
    """Accept -n and -A, as kubectl does, for what has no namespace. of: what is listed."""
    parser.add_argument("-n", "--namespace", default="", help=f"accepted and ignored: {of} have no namespace")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="accepted and ignored")


def add_job(parser: argparse.ArgumentParser, kinds: str = "") -> None:
    """Add the argument JOB and the option for its namespace. kinds: known kinds, for the help text."""
    parser.add_argument("job", metavar="JOB", help=f"{FORMS}{f'; kinds are {kinds}' if kinds else ''}")
    parser.add_argument(
        "-n", "--namespace", default="", help="namespace of the job, where its name has none (that of your context)"
    )


def job_of(args: argparse.Namespace, known: Mapping[str, str]) -> JobName:
    """Return the name of the job on the command line, with the namespace of --namespace or of the context.

    known: kinds as people write them -> kind, as `words_of` of job_names.py returns it. Raises BadArgument if
    the word is no name of a job, or names another namespace than -n.
    """
    try:
        name = read(args.job, known)
    except BadJobName as error:
        raise BadArgument(str(error)) from error
    if name.namespace and args.namespace and name.namespace != args.namespace:
        raise BadArgument(f"{args.job!r} is in namespace {name.namespace}, and -n says {args.namespace}")
    return name._replace(namespace=name.namespace or args.namespace or context_namespace(args))


def check_object(text: str, flag: str) -> None:
    """Raise BadArgument unless `text`, the value of `flag`, has the form NAMESPACE/NAME."""
    from turnout.kube.cli_flags import BadSetting, check_name

    try:
        check_name(text, flag)
    except BadSetting as error:
        raise BadArgument(str(error)) from error


def context_namespace(args: argparse.Namespace) -> str:
    """Return the namespace of the context that --context names, else of the current context.

    "default" if the context names none or no kubeconfig can be read, as usually inside a pod. If the context does not
    exist, the namespace of the current one. args: with the options of `add_cluster`.
    """
    from turnout.kube.client import plain_kubeconfig

    path = plain_kubeconfig.kubeconfig_path(args.kubeconfig)
    config = None if path is None else plain_kubeconfig.read_kubeconfig(path)
    return plain_kubeconfig.read_namespace(config, args.context) or _namespace_by_library(args)


def _namespace_by_library(args: argparse.Namespace) -> str:
    """Return the namespace of the kubeconfig's context, read by the Kubernetes library, which merges several files.

    "default" if it names none or cannot be read.
    """
    from turnout.kube.client.api_client import check_kubeconfig_exists
    from turnout.kube.errors import NoCluster

    try:
        check_kubeconfig_exists(args.kubeconfig)
    except NoCluster:  # opening a client reports it
        return "default"
    from kubernetes.aio.config import list_kube_config_contexts

    try:
        contexts, active = list_kube_config_contexts(args.kubeconfig)
        chosen = next((each for each in contexts if each["name"] == args.context), active)
        return str(chosen.get("context", {}).get("namespace") or "default")
    except Exception:  # likewise; for a malformed file the library raises errors of many types
        return "default"


def duration_s(text: str) -> float:
    """Return a duration in seconds. text: a number without a sign, such as 5 or 1.5, and a unit: s (default), m, h or
    d.

    Raises ArgumentTypeError for any other text.
    """
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)(s|m|h|d)?", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time such as 5, 10s or 1m")
    return float(found[1]) * _UNITS_S[found[2] or ""]


# The autoscaler's flags on which its decisions depend, with the types of their values.
DECIDING: Mapping[str, type] = {
    "configmap": str,
    "orders": str,
    "reservations": str,
    "headroom-gpus": int,
    "cooldown-s": float,
    "restart-s": float,
    "payback-s": float,
    "restart-budget": float,
    "least-gain": float,
}
SEEING: Mapping[str, type] = {
    "configmap": str,
    "orders": str,
    "reservations": str,
}  # the autoscaler's flags on which its view of the cluster depends


def add_flags(parser: argparse.ArgumentParser, flags: Mapping[str, type]) -> None:
    """Add some of the autoscaler's flags, and --gpu-resource. flags: name -> type of its value."""
    group = parser.add_argument_group("the autoscaler's own flags", "as it was started with; else its defaults")
    for flag, kind in flags.items():
        group.add_argument(f"--{flag}", type=kind, help=f"the --{flag} of turnout-autoscaler")
    group.add_argument("--gpu-resource", action="append", help="repeatable")


def settings_of(args: argparse.Namespace, flags: Mapping[str, type]) -> Settings:
    """Return the autoscaler's settings by the flags on the command line; defaults for the others.

    flags: those that were added by `add_flags`. Raises BadArgument if a value is invalid.
    """
    from turnout.autoscaler.settings import Settings
    from turnout.kube.cli_flags import BadSetting

    given = {flag.replace("-", "_"): getattr(args, flag.replace("-", "_")) for flag in flags}
    given["gpu_resource"] = None if args.gpu_resource is None else tuple(args.gpu_resource)
    try:
        return Settings(args.kubeconfig, args.context, **{key: each for key, each in given.items() if each is not None})
    except BadSetting as error:
        raise BadArgument(str(error)) from error
