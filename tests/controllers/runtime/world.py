"""An API server as far as a writer needs one, a dict of objects; and a controller that looks until all is quiet."""

from __future__ import annotations

import itertools

import msgspec

from tests.controllers.jobs import NOW_S, merged
from turnout.controllers.kinds.registry import KINDS as REGISTERED
from turnout.controllers.kinds.registry import by_api
from turnout.controllers.model import GangSettings, JobKey
from turnout.controllers.reconcile import reconcile
from turnout.controllers.runtime.owned_objects import ChildCache, JobObject, Owned, OwnedPod
from turnout.controllers.runtime.writer import ChildWriter
from turnout.kube.errors import Conflict, NotFound
from turnout.kube.watch_events import Key

KINDS = by_api(REGISTERED)
KEY = JobKey("/apis/kubeflow.org/v1", "ns", "bert")  # of most tests
JOB = "/apis/kubeflow.org/v1/namespaces/ns/pytorchjobs/bert"


def key_of(job):
    """The key of a job, and its path."""
    meta, api = job["metadata"], f"/apis/{job['apiVersion']}"
    key = JobKey(api, meta["namespace"], meta["name"])
    return key, f"{api}/namespaces/{key.namespace}/{KINDS[api].plural}/{key.name}"


class Killed(Exception):
    """The controller's process ends here."""


class Api:
    """Objects by path. kill_at: the number of the write at which the controller is killed, before it or after it."""

    def __init__(self, job):
        self._numbers = itertools.count(1)
        self.key, self.job = key_of(job)
        self.objects = {self.job: {**job, "metadata": {**job["metadata"], "resourceVersion": self._version()}}}
        self.writes, self.kill_at, self.kill_after = 0, None, False

    def _version(self):
        return str(next(self._numbers))

    def _write(self, do):
        self.writes += 1
        if self.writes == self.kill_at and not self.kill_after:
            raise Killed
        answer = do()
        if self.writes == self.kill_at:
            raise Killed
        return answer

    async def get(self, path):
        if path not in self.objects:
            raise NotFound("GET", path, 404, "not found")
        return msgspec.json.encode(self.objects[path])

    async def create(self, path, body):
        return self._write(lambda: self._create(path, body))

    def _create(self, path, body):
        place = f"{path}/{body['metadata']['name']}"
        if place in self.objects:
            raise Conflict("POST", path, 409, "exists", reason="AlreadyExists")
        number = self._version()
        stored = {**body, "metadata": {**body["metadata"], "uid": f"made-{number}", "resourceVersion": number}}
        if body["kind"] == "Service" and "clusterIP" not in body["spec"]:
            stored["spec"] = {**body["spec"], "clusterIP": "10.0.0.7"}
        phase = {"Pod": "Pending", "PodGroup": "Inqueue"}.get(body["kind"])
        self.objects[place] = stored if phase is None else {**stored, "status": {"phase": phase}}
        return msgspec.json.encode(self.objects[place])

    async def patch(self, path, body, content_type, field_manager):
        return self._write(lambda: self._patch(path, body))

    def _patch(self, path, body):
        place = path.removesuffix("/status")
        stored = self.objects[place]
        if (version := body.get("metadata", {}).get("resourceVersion")) not in (
            None,
            stored["metadata"]["resourceVersion"],
        ):
            raise Conflict("PATCH", path, 409, f"changed since {version}")
        patched = merged(stored, {key: each for key, each in body.items() if key != "metadata"})
        if patched != stored:
            patched["metadata"] = {**patched["metadata"], "resourceVersion": self._version()}
            self.objects[place] = patched
        return msgspec.json.encode(self.objects[place])

    async def delete(self, path, *, uid, params=None):
        return self._write(lambda: self._delete(path, uid))

    def _delete(self, path, uid):
        stored = self.objects.get(path)
        if stored is None or stored["metadata"]["uid"] != uid:
            raise NotFound("DELETE", path, 404, "not found")
        del self.objects[path]
        if path == self.job:
            self.objects = {}
        if stored["kind"] not in ("Pod", "Service"):  # an API server answers with the object for few kinds
            return msgspec.json.encode({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
        return msgspec.json.encode(
            {**stored, "metadata": {**stored["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
        )

    def change(self, **spec):
        """The job's owner changes fields of its spec."""
        stored = self.objects[self.job]
        meta = {**stored["metadata"], "resourceVersion": self._version()}
        self.objects[self.job] = {**stored, "metadata": meta, "spec": {**stored["spec"], **spec}}

    def phase(self, name, phase, code=0):
        """A kubelet says what has become of a pod."""
        place = f"/api/v1/namespaces/ns/pods/{name}"
        state = {"terminated": {"exitCode": code}} if phase in ("Succeeded", "Failed") else {"running": {}}
        name = KINDS[self.key.api].container
        status = {"phase": phase, "containerStatuses": [{"name": name, "restartCount": 0, "state": state}]}
        meta = {**self.objects[place]["metadata"], "resourceVersion": self._version()}
        self.objects[place] = {**self.objects[place], "status": status, "metadata": meta}

    def resize(self, role, replicas):
        """The job's owner gives a role another size."""
        stored = self.objects[self.job]
        by_role = {key: each for key, each in stored["spec"].items() if key.lower().endswith("replicaspecs")}
        roles = next(iter(by_role.values()), None) or {each["name"]: each for each in stored["spec"]["tasks"]}
        roles[role]["replicas"] = replicas
        stored["metadata"]["resourceVersion"] = self._version()

    def names(self, kind):
        """The names of the objects of a kind."""
        return sorted(each["metadata"]["name"] for each in self.objects.values() if each["kind"] == kind)

    def end(self):
        """Return what is there in the end, without what differs from run to run."""
        statuses = {}
        for path, each in self.objects.items():
            status = each.get("status", {})
            conditions = [
                tuple(one.get(key) for key in ("type", "status", "reason")) for one in status.get("conditions", ())
            ]
            roles = status.get("replicaStatuses", {})
            counted = ("restarts", "restartCounts", "quickFailures", "lastFailures")
            counts = {name: [role.get(each) for each in counted] for name, role in roles.items()}
            volcanos = [status.get(key) for key in ("retryCount", "version", "taskStatusCount", "controlledResources")]
            statuses[path] = each.get("spec"), status.get("phase"), conditions, counts, volcanos
        return statuses


class Controller:
    """A controller's process: it has seen everything once, and looks at the job until there is nothing to write."""

    def __init__(self, api, setup=None, calls=None):
        self.api, self.setup, self.again = api, setup or GangSettings(), set()
        self.cache, self.seen = ChildCache(self.again.add, KINDS), {}
        self.writer = ChildWriter(calls or api, self.cache, KINDS, self.setup)
        self.list()

    def list(self):
        """See everything as the informers do."""
        uid_by_path = {path: each["metadata"]["uid"] for path, each in self.api.objects.items()}
        for path, (kind, uid) in self.seen.items():
            if uid_by_path.get(path) != uid:
                deleted_key = Key("ns", path.rpartition("/")[2], uid)
                drops = path == self.api.job
                self.cache.drop_job(self.api.key.api, deleted_key) if drops else self.cache.drop_child(
                    kind, deleted_key
                )
        self.seen = {path: (each["kind"], each["metadata"]["uid"]) for path, each in self.api.objects.items()}
        for path, each in self.api.objects.items():
            raw = msgspec.json.encode(each)
            if each["kind"] == "Secret":
                continue  # nobody watches them
            if path == self.api.job:
                self.cache.put_job(self.api.key.api, each["kind"], msgspec.json.decode(raw, type=JobObject))
            elif each["kind"] == "Pod":
                self.cache.put_pod(msgspec.json.decode(raw, type=OwnedPod))
            else:
                self.cache.put_other(each["kind"], msgspec.json.decode(raw, type=Owned))

    async def look(self, now_s=NOW_S):
        """One look; what was decided."""
        key = self.api.key
        found = self.cache.job(key)
        if found is None:
            return None
        raw, owned = found
        outcome = reconcile(KINDS[key.api], raw, owned, now_s, self.setup)
        meta = raw["metadata"]
        await self.writer.carry_out(key, meta["uid"], meta["resourceVersion"], outcome, lambda: None)
        return outcome

    async def until_quiet(self, now_s=NOW_S):
        """Look until nothing is to be written."""
        for _ in range(20):
            self.list()
            outcome = await self.look(now_s)
            if outcome is None or (not outcome.writes and outcome.status is None and not outcome.delete_job):
                return
        raise AssertionError("it writes for ever")
