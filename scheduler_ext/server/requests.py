"""Answer one request: decode its body, ask the extender, encode the answer, count it.

`http.py` has the sockets. Neither a log nor a caller is shown any part of a body. When the extender fails, the answer
is neutral and counted, so that a fault blocks no pod.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from turnout.kube.objects import Pod
from turnout.kube.server.client_metrics import start_at_zero
from turnout.scheduler_ext.model import Answer, BadRequest, Victims
from turnout.scheduler_ext.server.fault_log import FaultLog
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.wire import extender_v1, volcano_v1
from turnout.scheduler_ext.wire.pod_messages import Review, decode_review, encode_review


class ExtenderVerbs(Protocol):
    """The interface for the HTTP handlers. Its methods never wait: one request sees one state of the cluster."""

    def filter(self, pod: Pod, names: Sequence[str]) -> Answer:
        """Return which of the named nodes the pod may go to, and why not to the others.

        names: nodes that passed every earlier filter.
        """
        ...

    def prioritize(self, pod: Pod, names: Sequence[str]) -> Sequence[tuple[str, int]]:
        """Return pairs (name, score 1..10) of named nodes, the best first. Nodes that would get 0 are left out."""
        ...

    def preempt(self, pod: Pod, victims: Mapping[str, Victims]) -> Mapping[str, Victims]:
        """Return node -> victims for those of the nodes on which a preemption helps the pod; {} stops the preemption.

        victims: node -> the pods that would leave.
        """
        ...

    def refusal_of_pod(self, pod: Pod) -> Answer:
        """Answer about all nodes: the refusal is None if the pod can go to one of them, or if that is not known."""
        ...

    def refusal_of_gang(self, namespace: str, name: str) -> Answer:
        """Answer about a Volcano PodGroup: the refusal is None if its gang can start, or if that is not known."""
        ...

    def gates(self, review: Review) -> bool:
        """Return True if a pod that is being created is to wait behind our scheduling gate."""
        ...

    def unready_reason(self) -> str | None:
        """Return why no answer can be given yet; None when answers can be given."""
        ...

    def describe(self) -> dict[str, Any]:
        """Describe the current state for a person, in JSON types only."""
        ...


log = logging.getLogger("turnout.extender")


class Verb(Enum):
    """A verb of the extender; its value is the path."""

    FILTER = "filter"
    PRIORITIZE = "prioritize"
    PREEMPT = "preempt"
    GATE = "gate"  # called by an API server, not by a scheduler
    VOLCANO_PREDICATE = "volcano/predicate"
    VOLCANO_PRIORITIZE = "volcano/prioritize"
    VOLCANO_JOB_ENQUEUEABLE = "volcano/jobEnqueueable"


class Outcome(Enum):
    """The result of a request. Metric, log and test use the same word."""

    ANSWERED = "answered"
    NO_ADVICE = "no_advice"  # 200, without the extender's opinion
    BAD_REQUEST = "bad_request"
    NO_SUCH_VERB = "no_such_verb"
    WRONG_METHOD = "wrong_method"
    COMPRESSED = "compressed"
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"  # the body did not come in time
    BUSY = "busy"
    UNREADY = "unready"
    GONE = "gone"  # the caller left before its body was whole


@dataclass(frozen=True, slots=True)
class Reply:
    """A status, a JSON body, and the outcome to count."""

    status: int
    body: bytes
    outcome: Outcome
    pause_s: float = 0.0  # how long the reply is held back, in seconds


class _Filter:
    """One filter request and its answer, which is neutral until `plan` is called."""

    def __init__(self, body: bytes) -> None:
        self._args = extender_v1.decode_args(body)
        self._answer = Answer()

    def plan(self, extender: ExtenderVerbs) -> None:
        self._answer = extender.filter(self._args.pod, self._args.names)

    @property
    def pause_s(self) -> float:
        return self._answer.pause_s

    def encode(self) -> tuple[bytes, int]:
        named = len(self._answer.nodes or ()) if self._answer.has_opinion else len(self._args.names)
        return extender_v1.encode_filter(self._args, self._answer), named


class _Prioritize:
    """One prioritize request and its answer, which is neutral until `plan` is called."""

    pause_s = 0.0

    def __init__(self, body: bytes) -> None:
        self._args = extender_v1.decode_args(body)
        self._scores: Sequence[tuple[str, int]] = ()

    def plan(self, extender: ExtenderVerbs) -> None:
        self._scores = extender.prioritize(self._args.pod, self._args.names)

    def encode(self) -> tuple[bytes, int]:
        return extender_v1.encode_prioritize(self._args, self._scores), len(self._scores)


class _Preempt:
    """One preempt request and its answer, which is neutral until `plan` is called."""

    pause_s = 0.0

    def __init__(self, body: bytes) -> None:
        self._args = args = extender_v1.decode_preempt(body)
        self._chosen = args.victims

    def plan(self, extender: ExtenderVerbs) -> None:
        self._chosen = extender.preempt(self._args.pod, self._args.victims)

    def encode(self) -> tuple[bytes, int]:
        return extender_v1.encode_preempt(self._args, self._chosen), len(self._chosen)


class _Gate:
    """One AdmissionReview and its answer, which is neutral until `plan` is called."""

    pause_s = 0.0

    def __init__(self, body: bytes) -> None:
        self._review = decode_review(body)
        self._gate = False

    def plan(self, extender: ExtenderVerbs) -> None:
        self._gate = extender.gates(self._review)

    def encode(self) -> tuple[bytes, int]:
        return encode_review(self._review, self._gate), int(self._gate)


class _VolcanoPredicate:
    """One PredicateRequest and its answer, which is neutral until `plan` is called.

    Volcano remembers a refusal for all tasks of a role, so it is about the whole gang: no task is refused a node
    because it is planned on another.
    """

    pause_s = 0.0

    def __init__(self, body: bytes) -> None:
        self._request = volcano_v1.decode_predicate(body)
        self._answer = Answer()

    def plan(self, extender: ExtenderVerbs) -> None:
        self._answer = extender.refusal_of_pod(self._request.pod)

    def encode(self) -> tuple[bytes, int]:
        return volcano_v1.encode_predicate(self._answer), int(self._answer.refusal is None)


class _VolcanoPrioritize:
    """One PrioritizeRequest and its answer, which is neutral until `plan` is called."""

    pause_s = 0.0

    def __init__(self, body: bytes) -> None:
        self._request = volcano_v1.decode_prioritize(body)
        self._scores: Sequence[tuple[str, int]] = ()

    def plan(self, extender: ExtenderVerbs) -> None:
        self._scores = extender.prioritize(self._request.pod, self._request.names)

    def encode(self) -> tuple[bytes, int]:
        return volcano_v1.encode_prioritize(self._request, self._scores), len(self._scores)


class _VolcanoJobEnqueueable:
    """One JobEnqueueableRequest and its answer, which is neutral until `plan` is called."""

    pause_s = 0.0

    def __init__(self, body: bytes) -> None:
        self._job = volcano_v1.decode_job(body)
        self._answer = Answer()

    def plan(self, extender: ExtenderVerbs) -> None:
        self._answer = extender.refusal_of_gang(*self._job)

    def encode(self) -> tuple[bytes, int]:
        return volcano_v1.encode_vote(self._answer), 0


_Question = _Filter | _Prioritize | _Preempt | _Gate | _VolcanoPredicate | _VolcanoPrioritize | _VolcanoJobEnqueueable


# Each is born neutral: without `plan` it answers that nothing is narrowed, preferred or spared.
_QUESTIONS: dict[Verb, type[_Question]] = {
    Verb.FILTER: _Filter,
    Verb.PRIORITIZE: _Prioritize,
    Verb.PREEMPT: _Preempt,
    Verb.GATE: _Gate,
    Verb.VOLCANO_PREDICATE: _VolcanoPredicate,
    Verb.VOLCANO_PRIORITIZE: _VolcanoPrioritize,
    Verb.VOLCANO_JOB_ENQUEUEABLE: _VolcanoJobEnqueueable,
}


class Dispatcher:
    """Answers whole bodies, one at a time, and never waits."""

    def __init__(
        self, extender: ExtenderVerbs, metrics: Metrics, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Start the counters at 0. clock: seconds, for durations."""
        self._extender, self._metrics, self._clock = extender, metrics, clock
        self._phases = {
            verb: tuple(metrics.phase.labels(verb.value, phase) for phase in ("decode", "plan", "encode"))
            for verb in Verb
        }
        start_at_zero(metrics.errors, (verb.value for verb in Verb), ("late", "failed"))
        start_at_zero(metrics.requests, (verb.value for verb in Verb), (outcome.value for outcome in Outcome))
        self._faults = FaultLog(clock)
        self._names = {verb: metrics.answer_nodes.labels(verb.value) for verb in Verb}

    def answer(self, verb: Verb, body: bytes, late: bool = False) -> Reply:
        """Decode one body, ask the extender, and encode the answer.

        A bad body gets 400; a failure gets a neutral answer (200).

        late: True if the caller has waited so long that only a quick neutral answer is still useful.
        """
        start_s = self._clock()
        try:
            question = _QUESTIONS[verb](body)
        except BadRequest as error:
            return refuse(400, error.fault, Outcome.BAD_REQUEST)
        decoded_s = self._clock()
        try:
            if late:
                raise TimeoutError
            question.plan(self._extender)
            planned_s = self._clock()
            encoded, names = question.encode()
            outcome, pause_s = Outcome.ANSWERED, question.pause_s
        except Exception as error:
            self._report_failure(verb, error)
            planned_s = self._clock()
            encoded, names = _QUESTIONS[verb](body).encode()
            outcome, pause_s = Outcome.NO_ADVICE, 0.0
        decode, plan, encode = self._phases[verb]
        decode.observe(decoded_s - start_s)
        plan.observe(planned_s - decoded_s)
        encode.observe(self._clock() - planned_s)
        self._names[verb].observe(names)
        return Reply(200, encoded, outcome, pause_s)

    def _report_failure(self, verb: Verb, error: Exception) -> None:
        """Count a failure, and log it. error: TimeoutError counts as "late"."""
        late = isinstance(error, TimeoutError)
        reason = "late" if late else "failed"
        self._metrics.errors.labels(verb.value, reason).inc()
        self._faults.report("answered_neutrally", error, verb=verb.value, reason=reason)


def refuse(status: int, why: str, outcome: Outcome) -> Reply:
    """Build an error reply. status: of HTTP. why: a text of our own, cut at MAX_MESSAGE_BYTES."""
    return Reply(status, extender_v1.encode_error(why), outcome)
