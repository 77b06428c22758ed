"""The verb `turnout version`: the versions of this program, of Kubernetes and of the installed components."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnout.cli.verb_support.cluster_flags import Verbs, add_cluster, add_verb

if TYPE_CHECKING:
    from turnout.kube.client.api_client import Client

_EXAMPLES = (
    ("version", "this program, Kubernetes and the installed parts"),
    ("version --client", "this program alone; asks no cluster"),
)
_DEPLOYMENTS = "/apis/apps/v1/deployments?labelSelector=app.kubernetes.io%2Fpart-of%3Dturnout"
_COMPONENT, _VERSION = "app.kubernetes.io/component", "app.kubernetes.io/version"


def add(commands: Verbs) -> None:
    """Add the verb `version` to the command line."""
    version = add_verb(
        commands, "version", "the version of this program, of Kubernetes and of the installed parts", _EXAMPLES
    )
    version.add_argument("--client", action="store_true", help="only the version of this program")
    add_cluster(version)
    version.set_defaults(run=_version)


def _version(args: argparse.Namespace) -> int:
    """Print the version of this program, of Kubernetes and of the installed components. Return the exit code."""
    from turnout.cli.exit_codes import ExitCode
    from turnout.cli.verb_support.run_verb import print_now, run_verb
    from turnout.kube.version import installed_build

    print_now(f"turnout     {installed_build()}")
    if args.client:
        return ExitCode.DONE

    async def work(client: Client) -> None:
        """Print the versions of Kubernetes and of Turnout's installed components.

        If the components cannot be listed, print why. Raises CallError if Kubernetes' version cannot be read.
        """
        from turnout.kube.errors import CallError
        from turnout.kube.status import decode_json_object

        kubernetes = decode_json_object("/version", await client.get("/version"))
        print_now(f"kubernetes  {str(kubernetes.get('gitVersion') or 'unknown').removeprefix('v')}")
        try:
            parts = decode_json_object(_DEPLOYMENTS, await client.get(_DEPLOYMENTS)).get("items") or []
        except CallError as error:  # the embedded API has none, and not everybody may list them
            print_now(f"installed   unknown: {error}")
            return
        print_now("\n".join(component_lines(parts)) or "installed   nothing of Turnout")

    return run_verb("version", args, work)


def component_lines(deployments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line per Deployment: its component, its version and its namespace, sorted by line.

    deployments: objects of Turnout as JSON values. Without a component's label the line has the Deployment's name, and
    without a version's label "unknown".
    """
    lines = []
    for each in deployments:
        meta = each["metadata"]
        marks = meta.get("labels") or {}
        part = marks.get(_COMPONENT, meta["name"])
        lines.append(f"{part:<12}{marks.get(_VERSION, 'unknown')} in {meta['namespace']}")
    return sorted(lines)
