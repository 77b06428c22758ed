"""Reads jobs of the kinds that the job controllers manage: one by its name, or all of a kind."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from turnout.cli.job_names import JOB_KINDS, JobName, words_of
from turnout.cli.verb_support.cluster_flags import job_of
from turnout.cli.verb_support.run_verb import NoSuch
from turnout.controllers.kinds.registry import KINDS
from turnout.controllers.model import ControlledKind
from turnout.kube.client.api_client import Client
from turnout.kube.errors import NotFound
from turnout.kube.status import decode_json_object

MANAGER = "turnout-cli"


@dataclass(frozen=True, slots=True)
class FoundJob:
    """An existing job."""

    kind: ControlledKind
    raw: Any  # its object

    @property
    def name(self) -> str:
        """Return its name."""
        return str(self.raw["metadata"]["name"])

    @property
    def full_name(self) -> str:
        """Return KIND/NAMESPACE/NAME."""
        return f"{self.kind.full_name}/{self.raw['metadata']['namespace']}/{self.name}"

    @property
    def path(self) -> str:
        """Return the path of its object."""
        place = f"namespaces/{quote(self.raw['metadata']['namespace'], safe='')}"
        return f"/apis/{self.raw['apiVersion']}/{place}/{self.kind.plural}/{quote(self.name, safe='')}"

    @property
    def core(self) -> str:
        """Return the path of its namespace in the core group."""
        return f"/api/v1/namespaces/{quote(self.raw['metadata']['namespace'], safe='')}"


def named_job(args: argparse.Namespace) -> JobName:
    """Return the name of the job on a command line; the job may not exist.

    Raises BadArgument if the text is no name of a job of our controllers, or names another namespace than -n.
    """
    plurals = {f"{kind.plural}.{api.partition('/')[0]}": name for name, kind in KINDS.items() for api in kind.apis}
    return job_of(args, words_of(JOB_KINDS) | plurals)


async def found_job(client: Client, job_name: JobName) -> FoundJob:
    """Read the job with this name from the API server.

    If a kind is given and two API groups have such a job, that of the first group counts. Raises NoSuch if there is no
    such job, or if without a kind several jobs have the name, and Forbidden if one of the kinds may not be read.
    """
    kinds = [KINDS[job_name.kind]] if job_name.kind else list(KINDS.values())
    answers = await asyncio.gather(*(_look(client, kind, api, job_name) for kind in kinds for api in kind.apis))
    found = [each for each in answers if each is not None]
    if len(found) == 1:
        return found[0]
    if found and job_name.kind:
        return found[0]  # one kind of two groups: the first that serves it
    if found:
        raise NoSuch(f"{job_name.name!r} may be {' or '.join(each.full_name for each in found)}: say which")
    what = f"{job_name.kind or 'job'} {job_name.name!r} in namespace {job_name.namespace}"
    raise NoSuch(f"there is no {what}; `turnout jobs -n {job_name.namespace}` lists those that are there")


async def _look(client: Client, kind: ControlledKind, api: str, job_name: JobName) -> FoundJob | None:
    """Return the job of this kind and name; None if it does not exist.

    api: path of the group and version to read.
    """
    place = f"namespaces/{quote(job_name.namespace, safe='')}/{kind.plural}/{quote(job_name.name, safe='')}"
    path = f"/apis/{api}/{place}"
    try:
        raw = decode_json_object(path, await client.get(path))
    except NotFound:
        return None
    return FoundJob(kind, {"apiVersion": api, **raw})


async def jobs_of_kind(client: Client, kind: ControlledKind, namespace: str, selector: str) -> list[Any]:
    """Return the objects of a kind in every API group that has it; [] if none is served.

    namespace: "" for all of them. selector: of labels, "" for all. Raises Forbidden if a group may not be listed.
    """
    found = []
    place = f"namespaces/{quote(namespace, safe='')}/" if namespace else ""
    for api in kind.apis:
        try:
            listed = await objects(client, f"/apis/{api}/{place}{kind.plural}", labels(selector))
        except NotFound:
            continue
        found += [{"apiVersion": api, **each} for each in listed]
    return found


def labels(selector: str) -> dict[str, str]:
    """Return the parameters of a list by labels. selector: "" for no parameter."""
    return {"labelSelector": selector} if selector else {}


async def objects(client: Client, path: str, params: Mapping[str, Any]) -> list[Any]:
    """Return the items of all pages of a list as JSON values.

    path: of the collection. params: of the query. Raises NotFound if the API server does not serve the kind, Forbidden
    if the user may not list it.
    """
    found: list[Any] = []
    async for page in client.pages(path, params):
        found += decode_json_object(path, page).get("items") or []
    return found
