"""Carry out decisions: children first or status first, as the outcome says.

Every answer goes to the cache at once. A child that exists already is ours if it names the job as its controller; any
other object is reported and never changed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from turnout.controllers.children import collection_path, path_prefixes
from turnout.controllers.kinds.colossalaijob import SCRIPT
from turnout.controllers.model import (
    ChildKey,
    ControlledKind,
    Create,
    Delete,
    GangSettings,
    JobKey,
    Object,
    ReconcileOutcome,
    Update,
    Write,
)
from turnout.controllers.runtime import launch_colossalai
from turnout.controllers.runtime.owned_objects import ChildCache, JobObject, Owned, OwnedPod
from turnout.jobs.kinds.colossalaijob import KIND as COLOSSALAIJOB
from turnout.kube.client.leased_calls import Calls
from turnout.kube.errors import Conflict, NotFound
from turnout.kube.status import decode_answer
from turnout.kube.watch_events import Key

FIELD_MANAGER = "turnout-controller"
_SCRIPT_TEXT = inspect.getsource(launch_colossalai)
_pod, _other, _job = msgspec.json.Decoder(OwnedPod), msgspec.json.Decoder(Owned), msgspec.json.Decoder(JobObject)


class NameTaken(Exception):
    """A child's name belongs to an object of somebody else. Report it, and leave the object alone."""


class ChildWriter:
    """The writer of outcomes. kinds: by the path of their group, as in a JobKey."""

    def __init__(
        self, calls: Calls, cache: ChildCache, kinds: Mapping[str, ControlledKind], gang_settings: GangSettings
    ) -> None:
        self._calls, self._cache, self._kinds = calls, cache, kinds
        self._prefixes = path_prefixes(gang_settings)

    async def carry_out(
        self, key: JobKey, uid: str, version: str, outcome: ReconcileOutcome, on_decided: Callable[[], None]
    ) -> None:
        """Write an outcome: status and children in the order that the outcome states, or the deletion of the job alone.

        The steps are Secrets, other children, pods, status; with `status_first` the status is the first step. Raises
        CallError or NameTaken; then later steps are not carried out. uid: of the job. version: resourceVersion of the
        object on which it was decided. on_decided: called once the status is written; without a status, at the end. A
        reconciliation after that call does not repeat this decision.
        """
        status_first = outcome.status is not None and outcome.status_first
        if outcome.delete_job:
            await self._delete_job(key, uid)
        elif not status_first:
            await self._write_children(key, uid, outcome.writes)
        if outcome.status is not None and not outcome.delete_job:
            await self._write_status(key, version, outcome.status)
        on_decided()
        if status_first and not outcome.delete_job:
            await self._write_children(key, uid, outcome.writes)

    async def _write_children(self, key: JobKey, uid: str, writes: Sequence[Write]) -> None:
        """Write Secrets, then other children, then pods, since a ConfigMap shows that the Secret of its job exists.

        Raises the first error of a step once all writes of the step have ended; later steps are not begun.
        """
        await self._write_all(key, uid, (each for each in writes if _is_secret(each)))
        await self._write_all(key, uid, (each for each in writes if not _is_secret(each) and not _is_pod(each)))
        await self._write_pods(key, uid, [each for each in writes if _is_pod(each)])

    async def _write_pods(self, key: JobKey, uid: str, writes: Sequence[Write]) -> None:
        """Write pods: first the deletions, updates and the first creation, then the other creations, because those pods
        wait for the host name of the first pod (VE-25).

        If a write of the first part fails, the other creations are carried out, too, and then its error is raised.
        """
        creations = [each for each in writes if isinstance(each, Create)]
        other_creations = creations[1:]
        first = [*(each for each in writes if not isinstance(each, Create)), *creations[:1]]
        try:
            await self._write_all(key, uid, first)
        except Exception:  # never after a cancellation: another replica may hold the Lease
            await self._write_all(key, uid, other_creations)
            raise
        await self._write_all(key, uid, other_creations)

    async def _write_all(self, key: JobKey, uid: str, writes: Iterable[Write]) -> None:
        """Carry out these writes at the same time, and wait for all.

        Then raise the error of the first failed write, in their order. uid: of the job.
        """
        results = await asyncio.gather(*(self._write(key, uid, each) for each in writes), return_exceptions=True)
        for each in results:
            if isinstance(each, BaseException):
                raise each

    async def _write(self, key: JobKey, uid: str, write: Write) -> None:
        """Carry out one write, and store the answer in the cache. uid: of the job.

        Raises CallError, and NameTaken for a child whose name another owner's object has.
        """
        match write:
            case Create(body):
                await self._create(key, uid, body)
            case Update(child, content, field):
                path = f"{collection_path(self._prefixes[child.kind], key.namespace)}/{child.name}"
                raw = await self._calls.patch(path, {field: content}, "application/merge-patch+json", FIELD_MANAGER)
                self._store_answer(child.kind, raw)
            case Delete(child, child_uid):
                await self._delete(key, child, child_uid)

    async def _create(self, key: JobKey, uid: str, body: Object) -> None:
        """Create a child, and store the answer in the cache.

        An existing child of that name is taken as this one if our job is its controller; else raises NameTaken. Other
        failures raise CallError. A Secret gets new SSH keys and is not stored; an existing Secret is always kept. A
        ColossalAIJob's ConfigMap gets our script.

        uid: of the job. body: of the child.
        """
        kind, name = body["kind"], body["metadata"]["name"]
        path = collection_path(self._prefixes[kind], key.namespace)
        if kind == "Secret":
            await self._create_keys(path, body)
            return
        if kind == "ConfigMap" and self._kinds[key.api].kind == COLOSSALAIJOB:
            body = {**body, "data": {**body["data"], SCRIPT: _SCRIPT_TEXT}}
        try:
            raw = await self._calls.create(path, body)
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise
            raw = await self._calls.get(f"{path}/{name}")
            child = decode_answer(_other, "GET", f"{path}/{name}", raw)
            if not any(each.uid == uid and each.controller for each in child.metadata.owner_references or ()):
                raise NameTaken(f"{kind} {name} exists and belongs to somebody else") from error
        self._store_answer(kind, raw)

    async def _create_keys(self, path: str, body: Object) -> None:
        """Create a Secret with new SSH keys.

        An existing Secret has the job's uid in its name, so it is kept and never read.
        """
        try:
            await self._calls.create(path, {**body, "stringData": new_ssh_files()})
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise

    async def _delete(self, key: JobKey, child: ChildKey, uid: str) -> None:
        """Delete the child with this uid. It is dropped from the cache; a pod that terminates first is stored as such.

        A child that does not exist any more, or was replaced, is dropped from the cache only.
        """
        try:
            raw = await self._calls.delete(
                f"{collection_path(self._prefixes[child.kind], key.namespace)}/{child.name}", uid=uid
            )
        except (NotFound, Conflict):  # it was deleted, or another object has its name
            self._cache.drop_child(child.kind, Key(key.namespace, child.name, uid))
            return
        if child.kind != "Pod":  # the answer is a Status for most kinds
            self._cache.drop_child(child.kind, Key(key.namespace, child.name, uid))
        elif (pod := _pod.decode(raw)).metadata.deletion_timestamp is not None:
            self._cache.put_pod(pod, from_own_write=True)

    async def _delete_job(self, key: JobKey, uid: str) -> None:
        """Delete a job and, in the background, its children. A deleted or replaced job is left alone."""
        kind = self._kinds[key.api]
        path = f"{key.api}/namespaces/{key.namespace}/{kind.plural}/{key.name}"
        try:
            await self._calls.delete(path, uid=uid, params={"propagationPolicy": "Background"})
        except (NotFound, Conflict):
            return

    async def _write_status(self, key: JobKey, version: str, status: Object) -> None:
        """Write the status if the job has not changed since `version`, and store the answer.

        Raises Conflict if it has.
        """
        kind = self._kinds[key.api]
        path = f"{key.api}/namespaces/{key.namespace}/{kind.plural}/{key.name}/status"
        body = {"metadata": {"resourceVersion": version}, "status": status}
        raw = await self._calls.patch(path, body, "application/merge-patch+json", FIELD_MANAGER)
        self._cache.put_job(key.api, kind.kind, _job.decode(raw), from_own_write=True)

    def _store_answer(self, kind: str, raw: bytes) -> None:
        """Store the object that the API server returned for a write, ahead of the watch.

        kind: of the child. raw: its JSON.
        """
        if kind == "Pod":
            self._cache.put_pod(_pod.decode(raw), from_own_write=True)
        else:
            self._cache.put_other(kind, _other.decode(raw), from_own_write=True)


def _is_pod(write: Write) -> bool:
    """Return True if a write creates, updates or deletes a pod."""
    return (write.body["kind"] if isinstance(write, Create) else write.key.kind) == "Pod"


def _is_secret(write: Write) -> bool:
    """Return True if a write creates a Secret."""
    return isinstance(write, Create) and write.body["kind"] == "Secret"


_SSH_CONFIG = "Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n"


def new_ssh_files() -> dict[str, str]:
    """Return name -> text of the files of a ~/.ssh: a new key pair and a new host key.

    The key pair gives access to every host with these files.
    """
    (private, public), (host, _) = _new_key_pair(), _new_key_pair()
    return {
        "id_ecdsa": private,
        "id_ecdsa.pub": public,
        "authorized_keys": public,
        "ssh_host_ecdsa_key": host,
        "config": _SSH_CONFIG,
    }


def _new_key_pair() -> tuple[str, str]:
    """Return a new SSH key pair: (private key, public key line)."""
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private.decode(), f"{public.decode()} turnout\n"
