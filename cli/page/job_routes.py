"""The answers about one job: its details, its time by kind, and its past sizes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from aiohttp import web

from turnout.cli.page import answers
from turnout.cli.page.cluster_state import ClusterState
from turnout.cli.page.messages import JobDetail, JobItem, JobSizes, JobTime, QueueSample, SizeSample
from turnout.cli.page.past_queries import PastSamples
from turnout.cli.page.responses import answer_response, encode_answer
from turnout.cli.page.viewers import StateSource, Viewers

Goodput = Callable[[str], Awaitable[JobTime]]
NO_PROMETHEUS = "This page asks no Prometheus for the time before it started (--prometheus-url)."
NO_LOGS = "This page may not read the logs of pods. The command turnout goodput JOB reads them with your own rights."


class PastSource(Protocol):
    """Returns the past of queues and jobs before the page started."""

    async def queue(self, name: str, window: str, end_s: float) -> PastSamples[QueueSample]:
        """Return the samples of a queue before `end_s` (since 1970), the oldest first. window: one of WINDOWS."""

    async def job(self, job: JobItem, end_s: float) -> PastSamples[SizeSample]:
        """Return the changes of a job's size before `end_s`, in seconds since 1970, the oldest first."""


class JobRoutes:
    """Answers the requests about one job."""

    def __init__(
        self, source: StateSource, viewers: Viewers, goodput: Goodput | None, prometheus: PastSource | None
    ) -> None:
        """Answer from `source`.

        goodput: reads what the time of a job was spent on; None if the page may not read logs. prometheus: None if the
        past is only what this page has observed.
        """
        self._source, self._viewers, self._goodput, self._prometheus = source, viewers, goodput, prometheus

    async def _item(self, request: web.Request) -> tuple[ClusterState, JobItem]:
        """Return the visible state, and the job that the address names.

        Raises HTTPNotFound if there is no such job or the user cannot see it, NotLoggedIn without a valid token, and
        Unavailable before the first observation or if the API server does not answer.
        """
        state, _ = await self._viewers.state(request)
        name = "/".join(request.match_info[part] for part in ("kind", "namespace", "name"))
        item = next((each for each in state.jobs if each.job == name), None)
        if item is None:
            raise web.HTTPNotFound(reason="there is no such job, or you may not list the pods of its namespace")
        return state, item

    async def detail(self, request: web.Request) -> web.Response:
        """Respond with all details of one job, with at most 100 decisions. Raises what `_item` raises."""
        state, item = await self._item(request)
        name = item.job
        decisions = tuple(each for each in state.decisions if each.object == name)[:100]
        answer = JobDetail(
            observed_at_s=state.observed_at_s,
            version=state.version,
            item=item,
            sentence=answers.sentence_of(item),
            why=self._source.reason_chain(name),
            ring=answers.ring_of(state, name),
            ranks=answers.rank_rows(state, name),
            sizes=self._source.past.job(name),
            decisions=decisions,
        )
        return answer_response(request, encode_answer(answer, state.version))

    async def time(self, request: web.Request) -> web.Response:
        """Respond with the job's time by kind, from its pods' logs. If the page may not read logs, the response says
        so.

        Raises what `_item` raises, and KubeError if the API server refuses the logs or fails.
        """
        state, item = await self._item(request)
        if self._goodput is None:
            answer = JobTime(observed_at_s=state.observed_at_s, version=state.version, job=item.job, missing=NO_LOGS)
        else:
            answer = await self._goodput(item.job)
        return answer_response(request, encode_answer(answer, answer.version))

    async def sizes(self, request: web.Request) -> web.Response:
        """Respond with the sizes of a job that Prometheus has from before the first size that this page measured.

        Without Prometheus there are none, and a note says so. Raises what `_item` raises.
        """
        state, item = await self._item(request)
        own = self._source.past.job(item.job)
        past: PastSamples[SizeSample] = PastSamples()
        note = NO_PROMETHEUS
        if self._prometheus is not None:
            past = await self._prometheus.job(item, own[0].at_s if own else state.observed_at_s)
            note = past.note
        sizes = tuple(each for each in past.samples if not own or each.at_s < own[0].at_s)
        answer = JobSizes(
            observed_at_s=state.observed_at_s, version=state.version, job=item.job, sizes=sizes, note=note
        )
        return answer_response(request, encode_answer(answer, state.version))
