"""Queries Prometheus about the time before the page started. Only the page's server does so, never the browser.

An answer is reused for KNOWN_S seconds, a failure for FAILED_S. At most MAX_ASKED queries run at a time, and a viewer
waits WAIT_S at most: a later answer is returned for the viewer's next request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import aiohttp

from turnout.cli.page.history import WINDOWS
from turnout.cli.page.messages import JobItem, QueueSample, SizeSample
from turnout.cli.page.past_queries import (
    MAX_POINTS,
    BadAnswer,
    PastSamples,
    TimeSeries,
    queue_queries,
    queue_samples,
    read_series,
    size_query,
    size_samples,
)
from turnout.kube.client.clock import Clock

log = logging.getLogger("turnout.page")

KNOWN_S, FAILED_S = 300.0, 30.0
ASK_S, WAIT_S = 10.0, 2.0  # for one question, and for a viewer
MAX_BYTES = 4 << 20  # of one answer
MAX_KNOWN = 64  # answers about queues, and as many about jobs
MAX_ASKED = 2
JOB_S, MIN_STEP_S = 7 * 86_400.0, 30.0  # the past of a job at most, and the time between two of its points at least
NO_SAMPLES = "Prometheus has no samples of it before this page started."


T = TypeVar("T", QueueSample, SizeSample)


class _Answers(Generic[T]):
    """The answers about one kind of object. limit: bounds the queries that run at a time."""

    def __init__(self, clock: Clock, limit: asyncio.Semaphore) -> None:
        self._clock, self._limit = clock, limit
        self._known: OrderedDict[str, tuple[float, PastSamples[T]]] = OrderedDict()  # with the time of the answer
        self._questions: dict[str, asyncio.Task[None]] = {}

    async def get(self, key: str, ask: Callable[[], Awaitable[tuple[T, ...]]]) -> PastSamples[T]:
        """Return the stored answer for `key`, and start a new query if there is none or it is too old.

        Without a stored answer, wait for the first one, WAIT_S seconds at most; then the samples are empty, with a
        note. ask: sends the query.
        """
        asked_s, past = self._known.get(key, (float("-inf"), None))
        age_s = self._clock.monotonic() - asked_s
        if past is not None and age_s < (FAILED_S if past.note else KNOWN_S):
            return past
        if key not in self._questions:
            self._questions[key] = asyncio.create_task(self._learn(key, ask))
            self._questions[key].add_done_callback(lambda _: self._questions.pop(key))
        if past is None:
            await asyncio.wait([self._questions[key]], timeout=WAIT_S)
            past = self._known.get(key, (0.0, None))[1]
        return past or PastSamples(note="Prometheus has not answered yet.")

    async def _learn(self, key: str, ask: Callable[[], Awaitable[tuple[T, ...]]]) -> None:
        """Run the query and store its samples under `key`, or a note that says why there are none.

        Earlier samples of the key are kept with such a note. Failures are not raised. ask: runs the query.
        """
        past: PastSamples[T]
        try:
            async with self._limit, asyncio.timeout(ASK_S):
                samples = await ask()
            past = PastSamples(samples, "" if samples else NO_SAMPLES)
        except TimeoutError:
            past = PastSamples(note=f"Prometheus does not answer within {ASK_S:g} s.")
        except (aiohttp.ClientError, OSError) as error:
            log.warning("prometheus_unreachable", extra={"error": str(error)[:500] or type(error).__name__})
            past = PastSamples(note="Prometheus cannot be reached.")
        except BadAnswer as error:
            past = PastSamples(note=f"Prometheus has no data from before this page started: {error}.")
        if past.note and key in self._known:  # keep the samples of the last successful query
            past = PastSamples(self._known[key][1].samples, past.note)
        self._known[key] = self._clock.monotonic(), past
        self._known.move_to_end(key)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    async def close(self) -> None:
        """Cancel the running queries."""
        for task in list(self._questions.values()):
            task.cancel()
        await asyncio.gather(*self._questions.values(), return_exceptions=True)


class Prometheus:
    """The past of queues and jobs. url: without `/api/v1`. cluster: label of its series, "" for none."""

    def __init__(self, session: aiohttp.ClientSession, url: str, cluster: str, clock: Clock) -> None:
        self._session, self._url, self._cluster = session, url.rstrip("/"), cluster
        limit = asyncio.Semaphore(MAX_ASKED)
        self._queues, self._jobs = _Answers[QueueSample](clock, limit), _Answers[SizeSample](clock, limit)

    async def queue(self, name: str, window: str, end_s: float) -> PastSamples[QueueSample]:
        """Return the samples of the queue `name` before a time. end_s: since 1970.

        `end_s` counts for a new query only: a stored answer is reused for KNOWN_S seconds. Waits WAIT_S seconds at most
        for the first answer; then there are no samples. A failure is not raised: it stands in the note of the result.
        window: a key of WINDOWS, which states the time between two samples. Raises KeyError for another one.
        """
        step_s = WINDOWS[window]

        async def ask() -> tuple[QueueSample, ...]:
            """Return the samples of all queries about the queue."""
            lines: dict[str, TimeSeries] = {}
            for query, label in queue_queries(name, self._cluster, step_s):
                lines |= await self._lines(query, label, end_s, step_s, MAX_POINTS)
            return queue_samples(lines, step_s)

        return await self._queues.get(f"{window} {name}", ask)

    async def job(self, job: JobItem, end_s: float) -> PastSamples[SizeSample]:
        """Return the changes of a job's size before a time, at most JOB_S seconds of them. end_s: since 1970.

        `end_s` counts for a new query only: a stored answer about the job is reused for KNOWN_S seconds. Waits WAIT_S
        seconds at most for the first answer; then there are no samples. A failure is not raised: it stands in the note
        of the result.
        """
        began_s = end_s - JOB_S if job.since_at_s is None else max(job.since_at_s, end_s - JOB_S)
        step_s = max(MIN_STEP_S, (end_s - began_s) / (MAX_POINTS - 1))
        points = int((end_s - began_s) / step_s) + 1

        async def ask() -> tuple[SizeSample, ...]:
            """Return the changes of the job's size."""
            query = size_query(job, self._cluster)
            found = await self._lines(query, "", end_s, step_s, points)
            return size_samples(found.get("", {}))

        return await self._jobs.get(f"{job.since_at_s} {job.job}", ask)  # a later job may have this name

    async def _lines(self, query: str, label: str, end_s: float, step_s: float, points: int) -> dict[str, TimeSeries]:
        """Send a range query and return its series by the value of `label`.

        step_s: seconds between two samples. points: number of samples, the last one at `end_s` (since 1970). Raises
        BadAnswer if the answer is an error, invalid or too large, and ClientError, TimeoutError or OSError if the
        request fails.
        """
        start_s = end_s - (points - 1) * step_s
        form = {"query": query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}
        address = f"{self._url}/api/v1/query_range"
        async with self._session.post(address, data=form, allow_redirects=False) as response:
            body = b""
            async for part in response.content.iter_chunked(1 << 16):
                body += part
                if len(body) > MAX_BYTES:
                    raise BadAnswer(f"its answer has more than {MAX_BYTES} bytes")
            if response.status not in (200, 400, 422):
                raise BadAnswer(f"it answers {response.status}")
        return read_series(body, label)

    async def close(self) -> None:
        """End the open questions."""
        await asyncio.gather(self._queues.close(), self._jobs.close())
