"""Pods that a request shows before the watches do, and pods that the scheduler has to ask about again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turnout.kube.client.clock import Clock
from turnout.kube.objects import Pod
from turnout.scheduler_ext.cluster.member import GangMember, error_text
from turnout.scheduler_ext.cluster.request_hints import LaggingView
from turnout.scheduler_ext.cluster.view import ClusterView
from turnout.scheduler_ext.model import Answer, EventReason, Notice
from turnout.scheduler_ext.planner.answers import postpone
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.topology.model import Refusal

RETRY_S = 0.2  # pause between two refusals of a pod from an old view
UNCONFIRMED_S = 30.0  # how long a pod stays that only a request has shown


class UnconfirmedPods:
    """The pods that only a request has shown, each for UNCONFIRMED_S."""

    def __init__(self, view: ClusterView, clock: Clock, notify: Callable[[Notice], None]) -> None:
        """Start without pods. view: gets each pod. notify: receives the notices about pods that cannot be read."""
        self._view, self._clock, self._notify = view, clock, notify
        self._until_s: dict[str, float] = {}  # by uid

    def member(self, pod: Pod) -> GangMember | None:
        """Return the pod as the view has it; None if it is finished or cannot be read, which is reported.

        A pod that the watch has not shown yet is added to the view for UNCONFIRMED_S, until the watch confirms it.
        """
        uid = pod.metadata.uid
        if uid not in self._view.pods:
            if (error := self._view.put_pod(pod)) is not None:
                meta = pod.metadata
                self._notify(Notice(EventReason.POD_UNREADABLE, meta.namespace, meta.name, uid, error_text(error)))
            if uid in self._view.pods:
                self._until_s[uid] = self._clock.monotonic() + UNCONFIRMED_S
        return self._view.pods.get(uid)

    def confirm(self, pod: Pod) -> None:
        """Note that a watch shows a pod."""
        self._until_s.pop(pod.metadata.uid, None)

    def forget(self, uid: str) -> None:
        """Forget a deleted pod."""
        self._until_s.pop(uid, None)

    def expired(self, now_s: float) -> list[str]:
        """Return the uids of the pods that no watch has shown in time. now_s: by the monotonic clock."""
        return [uid for uid, until_s in self._until_s.items() if until_s <= now_s]


class PostponedPods:
    """The pods that were refused from a view that may be old: when, and since when the view lags behind."""

    def __init__(self, view: ClusterView, clock: Clock, metrics: Metrics) -> None:
        """Start without pods."""
        self._view, self._clock, self._metrics = view, clock, metrics
        self._postponed_s: dict[str, float] = {}  # uid -> when it was last refused from an old view
        self._lagging = LaggingView()

    def should_retry(self, member: GangMember, names: Sequence[str], now_s: float) -> bool:
        """Return True if the scheduler knows more room for a pod than the view: see LaggingView.should_retry.

        names: the nodes of the request. now_s: by the monotonic clock.
        """
        return self._lagging.should_retry(self._view, member, names, now_s)

    def postpone(self, member: GangMember, refusal: Refusal) -> Answer:
        """Return a refusal after which the scheduler asks again, at most once in RETRY_S for a pod, and count it.

        The owner gets no notice, because the refusal may be wrong.
        """
        now_s = self._clock.monotonic()
        due_s = self._postponed_s.get(member.uid, now_s - RETRY_S) + RETRY_S
        pause_s = min(max(0.0, due_s - now_s), RETRY_S)  # far below the scheduler's patience
        self._postponed_s[member.uid] = now_s + pause_s
        self._metrics.refused_answers.labels(EventReason.OLD_VIEW.value).inc()
        return postpone(refusal, self._clock.wall(), pause_s)

    def forget(self, uid: str) -> None:
        """Forget a deleted pod."""
        self._postponed_s.pop(uid, None)
        self._lagging.forget(uid)
