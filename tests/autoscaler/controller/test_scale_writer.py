"""The one write path: gated by dry run and by the Lease, valid for one version, shrinking first."""

import json

import pytest

from tests.autoscaler.world import job, state_of, world
from tests.jobs.test_kinds import indexed
from turnout.autoscaler.controller.scale_writer import (
    MAX_CONSECUTIVE_CONFLICTS,
    MAX_GROWTHS,
    ScaleWriter,
    mark_refused,
)
from turnout.autoscaler.model import Reason, Step
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import JobKey
from turnout.kube import labels
from turnout.kube.client.leased_calls import LeasedCalls
from turnout.kube.errors import Conflict, Forbidden, Rejected, TooManyRequests, Unreachable

pytestmark = pytest.mark.asyncio


def step(name, was, workers, reason=Reason.IDLE_ROOM):
    return Step(JobKey("Job", "ns", name), workers, was, reason)


def noted(step):
    return {labels.RESIZED_AT: "1970-01-01T00:16:40Z"}


class Api:
    """Notes every patch; refuses what it is told to. newer: the object as it is by now."""

    def __init__(self, error=None, newer=None):
        self.patches, self.error, self.newer = [], error, newer

    async def get(self, path):
        return json.dumps(self.newer).encode()

    async def patch(self, path, body, content_type, field_manager):
        self.patches.append((path.rsplit("/", 1)[1], body))
        if self.error is not None:
            raise self.error
        return b"{}"


def writer(api, outcomes, dry_run=False, leading=True):
    return ScaleWriter(
        api, KINDS, lambda: 7 if leading else None, lambda step, word: outcomes.append((step.key.name, word)), dry_run
    )


def raw(*names):
    found = {}
    for name in names:
        raw_job = indexed(4)
        raw_job["metadata"]["name"] = name
        found[JobKey("Job", "ns", name)] = raw_job
    return found


async def test_what_stays_is_not_written_and_shrinking_comes_first():
    api, outcomes = Api(), []
    steps = [step("a", 2, 4), step("b", 4, 4), step("c", 4, 2)]
    assert await writer(api, outcomes).carry_out(steps, raw("a", "b", "c"), noted, 0.0) == 2
    assert [name for name, _ in api.patches] == ["c", "a"]
    assert outcomes == [("c", "Written"), ("a", "Written")]


@pytest.mark.parametrize(
    ("more", "word"), [({"dry_run": True}, "DryRun"), ({"leading": False}, "NotLeading")], ids=["dry run", "no Lease"]
)
async def test_nothing_is_written_then(more, word):
    api, outcomes = Api(), []
    await writer(api, outcomes, **more).carry_out([step("a", 2, 4)], raw("a"), noted, 0.0)
    assert (api.patches, outcomes) == ([], [("a", word)])


async def test_a_version_is_written_over_once():
    api, outcomes = Api(), []
    doing = writer(api, outcomes)
    for _ in range(2):
        await doing.carry_out([step("a", 2, 4)], raw("a"), noted, 0.0)
    assert len(api.patches) == 1
    newer = raw("a")
    newer[JobKey("Job", "ns", "a")]["metadata"]["resourceVersion"] = "8"
    await doing.carry_out([step("a", 4, 6)], newer, noted, 0.0)
    assert len(api.patches) == 2


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (Conflict("PATCH", "/x", 409, "changed"), "Conflict"),
        (Rejected("PATCH", "/x", 403, "a webhook says no"), "Refused"),
    ],
)
async def test_a_refusal_stops_nobody_else(error, word):
    api, outcomes = Api(error), []
    assert await writer(api, outcomes).carry_out([step("a", 2, 4), step("b", 2, 4)], raw("a", "b"), noted, 0.0) == 0
    assert outcomes == [("a", word), ("b", word)]


NO = Forbidden("PATCH", "/x", 403, "a webhook says no")


async def tries_of(doing, api, moments_s, jobs):
    """When a patch of `a` was sent, of these moments."""
    sent = []
    for now_s in moments_s:
        before = len(api.patches)
        await doing.carry_out([step("a", 2, 4)], jobs, noted, now_s)
        sent += [now_s] * (len(api.patches) - before)
    return sent


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        pytest.param(NO, [0, 1, 3, 7, 15, 31, 63, 123, 183], id="twice as long each time, up to a minute"),
        pytest.param(Unreachable("PATCH", "/x", 0, "gone"), [0, 1, 3, 7, 15, 31, 63, 123, 183], id="nobody answers"),
        pytest.param(
            TooManyRequests("PATCH", "/x", 429, "later", retry_after_s=40.0),
            [0, 40, 80, 120, 160, 200],
            id="never sooner than the server asks",
        ),
    ],
)
async def test_what_is_refused_is_tried_less_and_less_often(error, sent):
    api = Api(error)
    assert await tries_of(writer(api, []), api, range(240), raw("a")) == sent


async def test_a_refusal_holds_up_no_other_job_and_is_forgotten_by_a_success():
    api, outcomes = Api(NO), []
    doing = writer(api, outcomes)
    for now_s in (0.0, 0.5, 1.0):
        await doing.carry_out([step("a", 2, 4)], raw("a", "b"), noted, now_s)
    api.error = None
    await doing.carry_out([step("a", 2, 4), step("b", 2, 4)], raw("a", "b"), noted, 1.5)
    await doing.carry_out([step("a", 2, 4)], raw("a", "b"), noted, 3.0)
    assert outcomes == [("a", "Refused"), ("a", "Refused"), ("b", "Written"), ("a", "Written")]
    assert doing.refusals.messages(raw("a", "b"), 3.0) == {}


async def test_a_clock_that_was_set_back_makes_nobody_wait():
    api = Api(NO)
    assert await tries_of(writer(api, []), api, [1000.0, 1000.5, 10.0], raw("a")) == [1000.0, 10.0]


async def test_a_new_job_of_the_same_name_is_not_refused_yet():
    api, new_job = Api(NO), raw("a")
    new_job[JobKey("Job", "ns", "a")]["metadata"]["uid"] = "another"
    doing = writer(api, [])
    assert await tries_of(doing, api, [0.0, 0.5], raw("a")) == [0.0]
    assert await tries_of(doing, api, [0.6, 0.7], new_job) == [0.6]


@pytest.mark.parametrize(
    ("error", "is_held_back"),
    [
        pytest.param(NO, {JobKey("Job", "ns", "a"): "a webhook says no"}, id="who was told no, and in which words"),
        pytest.param(Unreachable("PATCH", "/x", 0, "gone"), {}, id="no answer is no no: it may have been written"),
        pytest.param(Conflict("PATCH", "/x", 409, "changed"), {}, id="nor is a newer version"),
    ],
)
async def test_who_is_held_back(error, is_held_back):
    doing = writer(Api(error), [])
    await doing.carry_out([step("a", 2, 4)], raw("a"), noted, 0.0)
    assert doing.refusals.messages(raw("a", "b"), 0.5) == is_held_back
    assert doing.refusals.messages(raw("a", "b"), 1.0) == {}
    assert doing.refusals.messages(raw("b"), 0.5) == {}


async def test_who_is_held_back_is_decided_on_as_one_that_cannot_be_resized():
    before = world([4], state_of(job("a"), [0]), state_of(job("b"), [0]))
    after = mark_refused(before, {JobKey("Job", "ns", "a"): "a webhook says no", JobKey("Job", "ns", "gone"): "no"})
    assert [each.job.refused for each in after.jobs] == ["a webhook says no", ""]
    assert mark_refused(before, {}) is before


def of_size(size, note=None, uid="u1"):
    raw_job = raw("a")
    meta = raw_job[JobKey("Job", "ns", "a")]["metadata"]
    meta["annotations"] = {} if note is None else {labels.WROTE_WORKERS: note}
    meta["uid"] = uid
    return [step("a", size, size, Reason.AT_MAX)], raw_job


NOTES = {labels.WROTE_WORKERS: "2", labels.SUBMITTED_WORKERS: "2"}
NOTED = {"metadata": {"resourceVersion": "7", "annotations": NOTES}}


@pytest.mark.parametrize(
    ("before", "after", "patches"),
    [
        pytest.param(of_size(2), of_size(5), [("a", NOTED)], id="scaled before we ever wrote it: noted"),
        pytest.param(of_size(2), of_size(2), [], id="nobody scaled it"),
        pytest.param(of_size(2, "2"), of_size(5, "2"), [], id="its own note says so already"),
        pytest.param(of_size(2), of_size(5, uid="u2"), [], id="another job of the same name"),
        pytest.param(([], {}), of_size(5), [], id="never seen before"),
        pytest.param(
            of_size(2), ([step("a", 5, 5, Reason.RIGID)], of_size(5)[1]), [], id="one that is not elastic is not ours"
        ),
        pytest.param(of_size(2), ([step("a", 5, 8)], of_size(5)[1]), [("a", NOTED)], id="instead of growing it"),
    ],
)
async def test_a_size_set_by_hand_before_we_ever_wrote_it_is_noted_on_the_job(before, after, patches):
    api = Api()
    doing = writer(api, [])
    await doing.carry_out(*before, noted, 0.0)
    await doing.carry_out(*after, noted, 0.0)
    assert api.patches == patches


async def test_a_size_set_by_hand_is_noted_at_the_next_look_when_it_could_not_be():
    api = Api(NO)
    doing = writer(api, [])
    for _ in range(2):
        await doing.carry_out(*of_size(2), noted, 0.0)
    for _ in range(2):
        await doing.carry_out(*of_size(5), noted, 0.0)
    assert api.patches == [("a", NOTED)] * 2


@pytest.mark.parametrize("more", [{"dry_run": True}, {"leading": False}], ids=["dry run", "no Lease"])
async def test_a_size_set_by_hand_is_not_noted_then(more):
    api = Api()
    doing = writer(api, [], **more)
    await doing.carry_out(*of_size(2), noted, 0.0)
    await doing.carry_out(*of_size(5), noted, 0.0)
    assert api.patches == []


async def test_a_change_carries_its_notes_and_the_term_in_which_it_was_written():
    api, outcomes = Api(), []
    await writer(api, outcomes).carry_out([step("a", 2, 4)], raw("a"), noted, 0.0)
    notes = api.patches[0][1]["metadata"]["annotations"]
    assert (notes[labels.RESIZED_AT], notes[labels.TERM]) == ("1970-01-01T00:16:40Z", "7")


@pytest.mark.parametrize(
    ("term", "at", "word"),
    [
        pytest.param("8", "1970-01-01T00:16:00Z", "NotLeading", id="somebody who leads by now has just written it"),
        pytest.param("6", "1970-01-01T00:16:00Z", "Written", id="a leader before us has"),
        pytest.param("8", "1970-01-01T00:10:00Z", "Written", id="that was long ago: the Lease was made anew since"),
    ],
)
async def test_a_leader_that_was_paused_and_wakes_writes_nothing(term, at, word):
    api, outcomes, raw_job = Api(), [], raw("a")
    notes = {labels.TERM: term, labels.RESIZED_AT: at}
    raw_job[JobKey("Job", "ns", "a")]["metadata"]["annotations"].update(notes)
    await writer(api, outcomes).carry_out([step("a", 2, 4)], raw_job, noted, 1000.0)
    assert outcomes == [("a", word)]


@pytest.mark.parametrize(
    ("ours", "word"),
    [
        pytest.param(True, "Written", id="the Lease is ours: somebody else has written that term"),
        pytest.param(False, "NotLeading", id="the Lease is another's"),
    ],
)
async def test_a_later_term_on_a_job_is_believed_only_if_the_lease_says_so(ours, word):
    api, outcomes, raw_job = Api(), [], raw("a")

    async def confirm():
        return ours

    forged = {labels.TERM: "99999999", labels.RESIZED_AT: "1970-01-01T00:16:40Z"}
    raw_job[JobKey("Job", "ns", "a")]["metadata"]["annotations"].update(forged)
    doing = ScaleWriter(api, KINDS, lambda: 7, lambda step, word: outcomes.append(word), False, confirm)
    await doing.carry_out([step("a", 4, 2)], raw_job, noted, 1000.0)
    assert (outcomes, len(api.patches)) == ([word], int(ours))


CHANGED = Conflict("PATCH", "/x", 409, "changed")


async def test_a_job_that_is_always_changed_by_others_is_no_giver():
    events, raw_job = [], raw("a")
    doing = writer(Api(CHANGED, {**raw_job[JobKey("Job", "ns", "a")], "spec": {}}), events)
    for _ in range(MAX_CONSECUTIVE_CONFLICTS):
        assert doing.refusals.messages(raw_job, 0.0) == {}
        await doing.carry_out([step("a", 4, 2)], raw_job, noted, 0.0)
    assert events == [("a", "Conflict")] * MAX_CONSECUTIVE_CONFLICTS
    why = "it is changed by others faster than it can be written"
    assert doing.refusals.messages(raw_job, 0.5) == {JobKey("Job", "ns", "a"): why}


async def test_a_job_whose_owner_keeps_writing_annotations_still_shrinks():
    raw_job = raw("a")
    was = raw_job[JobKey("Job", "ns", "a")]
    newer = {**was, "metadata": {**was["metadata"], "resourceVersion": "9"}}
    api, outcomes = Api(newer=newer), []

    async def only_the_newest(path, body, content_type, field_manager):
        api.patches.append(body["metadata"]["resourceVersion"])
        if body["metadata"]["resourceVersion"] != "9":
            raise CHANGED
        return b"{}"

    api.patch = only_the_newest
    doing = writer(api, outcomes)
    for _ in range(2):
        await doing.carry_out([step("a", 4, 2)], raw_job, noted, 0.0)
    assert outcomes == [("a", "Conflict"), ("a", "Written")]
    assert api.patches[1:] == [was["metadata"]["resourceVersion"], "9"]


async def test_a_shrink_is_not_sent_again_without_the_lease():
    raw_job, outcomes, leads = raw("a"), [], [True]
    api = Api(CHANGED, newer=raw_job[JobKey("Job", "ns", "a")])
    read = api.get

    async def read_as_last(path):
        leads.clear()
        return await read(path)

    api.get = read_as_last
    doing = writer(LeasedCalls(api, lambda: bool(leads)), outcomes)
    for _ in range(2):
        await doing.carry_out([step("a", 4, 2)], raw_job, noted, 0.0)
    assert outcomes == [("a", "Conflict"), ("a", "NotLeading")]
    assert len(api.patches) == 2
    assert doing.refusals.messages(raw_job, 0.0) == {}


async def test_what_was_written_is_told_to_who_reads_it_again():
    wrote = []
    doing = ScaleWriter(
        Api(), KINDS, lambda: 7, lambda *_: None, False, on_written=lambda key, notes: wrote.append((key.name, notes))
    )
    await doing.carry_out([step("a", 4, 2)], raw("a"), noted, 0.0)
    assert wrote == [("a", {**noted(None), labels.TERM: "7"})]


async def test_shrinks_are_all_written_and_of_growths_only_so_many():
    """A job that comes to wait while thousands grow is served by the next look."""
    api, outcomes = Api(), []
    names = [f"j{number}" for number in range(3 * MAX_GROWTHS)]
    grow, shrink = ([step(name, *sizes) for name in names[part::2]] for part, sizes in ((0, (2, 4)), (1, (4, 2))))
    await writer(api, outcomes).carry_out(grow + shrink, raw(*names), noted, 0.0)
    assert len(api.patches) == len(shrink) + MAX_GROWTHS
    assert {name for name, _ in api.patches[: len(shrink)]} == {each.key.name for each in shrink}
