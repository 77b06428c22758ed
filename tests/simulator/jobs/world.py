"""Jobs and pods to look at, and a hand that carries writes out as an API server would."""

from tests.controllers.jobs import merged
from turnout.simulator.cluster.controllers.model import CreateWrite, DeleteWrite, PatchWrite

NOW_S = 1_800_000_000.0


def batch_job(completions=3, parallelism=3, status=None, **spec):
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "m", "image": "i"}]}}
    job_spec = {"completions": completions, "parallelism": parallelism, "completionMode": "Indexed", "backoffLimit": 2}
    return {
        "metadata": {"name": "j", "namespace": "ns", "uid": "u"},
        "spec": {**job_spec, "template": template, **spec},
        "status": status or {},
    }


def task(name="worker", replicas=3, minimum=None, **more):
    containers = [{"name": "m", "image": "i", "resources": {"limits": {"cpu": "500m", "nvidia.com/gpu": "2"}}}]
    template = {"metadata": {}, "spec": {"containers": containers}}
    return {"name": name, "replicas": replicas, "minAvailable": minimum or replicas, "template": template, **more}


def volcano_job(*tasks, minimum=None, phase="Pending", **spec):
    tasks = tasks or (task(),)
    minimum = sum(each["minAvailable"] for each in tasks) if minimum is None else minimum
    job_spec = {
        "queue": "default",
        "schedulerName": "volcano",
        "maxRetry": 3,
        "minAvailable": minimum,
        "tasks": list(tasks),
    }
    return {
        "metadata": {"name": "j", "namespace": "ns", "uid": "u"},
        "spec": {**job_spec, **spec},
        "status": {"state": {"phase": phase}, "retryCount": 0},
    }


class Hand:
    """Carries out what looks ask for, on one job and its pods."""

    def __init__(self, look, job):
        self.look, self.job, self.pods, self.others, self.now_s, self.count = look, job, {}, {}, NOW_S, 0

    def once(self):
        outcome = self.look(self)
        for write in outcome.writes:
            self._do(write)
        return outcome

    def settle(self):
        """Look until nothing is left to write."""
        for _ in range(20):
            if not self.once().writes:
                return self
        raise AssertionError("it never comes to rest")

    def _do(self, write):
        match write:
            case CreateWrite("pods", obj):
                self.count += 1
                meta = obj["metadata"]
                name = meta.get("name") or f"{meta['generateName']}{self.count}"
                stamp = {"name": name, "uid": f"p{self.count}", "creationTimestamp": f"{self.count:04}"}
                assert name not in self.pods
                self.pods[name] = {**obj, "metadata": {**meta, **stamp}, "status": {"phase": "Pending"}}
            case CreateWrite(plural, obj):
                self.others[plural] = obj
            case DeleteWrite("pods", obj):
                self.pods.pop(obj["metadata"]["name"], None)
            case DeleteWrite(_, obj) if obj is self.job:
                self.job = None
            case DeleteWrite(plural, _):
                del self.others[plural]
            case PatchWrite(_, obj, change) if obj is self.job:
                self.job = {**self.job, "status": merged(self.job["status"], change["status"])}
            case PatchWrite(plural, obj, change):
                self.others[plural] = merged(obj, change)

    def end(self, *names, phase="Succeeded", code=0):
        for name in names:
            (full,) = [each for each in self.pods if each == name or each.startswith(f"{name}-")]
            state = {"terminated": {"exitCode": code, "finishedAt": "2027-01-15T08:00:00Z"}}
            self.pods[full] = {**self.pods[full], "status": {"phase": phase, "containerStatuses": [{"state": state}]}}

    def run(self):
        for name, pod in self.pods.items():
            if pod["status"]["phase"] == "Pending":
                self.pods[name] = {**pod, "status": {"phase": "Running"}}

    def names(self):
        return sorted(self.pods)
