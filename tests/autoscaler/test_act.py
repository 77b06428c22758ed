"""The one write path: gated by dry run and by the Lease, valid for one version, shrinking first."""

import pytest

from autoscaler.model import Reason, Step
from autoscaler.shell.act import Hands, stamped
from jobs.kinds.all import KINDS
from jobs.model import Change, JobKey
from kube.errors import Conflict, Rejected
from tests.jobs.test_kinds import indexed

pytestmark = pytest.mark.asyncio


def step(name, was, workers, reason=Reason.IDLE_ROOM):
    return Step(JobKey("Job", "ns", name), workers, was, reason)


class Api:
    """Notes every patch; refuses what it is told to."""

    def __init__(self, error=None):
        self.patches, self.error = [], error

    async def patch(self, path, body, content_type, field_manager):
        self.patches.append((path.rsplit("/", 1)[1], body))
        if self.error is not None:
            raise self.error
        return b"{}"


def hands(api, told, dry_run=False, leading=True):
    return Hands(api, KINDS, lambda: leading, lambda step, word: told.append((step.key.name, word)), dry_run)


def raw(*names):
    found = {}
    for name in names:
        made = indexed(4)
        made["metadata"]["name"] = name
        found[JobKey("Job", "ns", name)] = made
    return found


async def test_what_stays_is_not_written_and_shrinking_comes_first():
    api, told = Api(), []
    steps = [step("a", 2, 4), step("b", 4, 4), step("c", 4, 2)]
    assert await hands(api, told).carry_out(steps, raw("a", "b", "c"), 0.0) == 2
    assert [name for name, _ in api.patches] == ["c", "a"]
    assert told == [("c", "Written"), ("a", "Written")]


@pytest.mark.parametrize(
    ("more", "word"), [({"dry_run": True}, "DryRun"), ({"leading": False}, "NotLeading")], ids=["dry run", "no Lease"]
)
async def test_nothing_is_written_then(more, word):
    api, told = Api(), []
    await hands(api, told, **more).carry_out([step("a", 2, 4)], raw("a"), 0.0)
    assert (api.patches, told) == ([], [("a", word)])


async def test_a_version_is_written_over_once():
    api, told = Api(), []
    doing = hands(api, told)
    for _ in range(2):
        await doing.carry_out([step("a", 2, 4)], raw("a"), 0.0)
    assert len(api.patches) == 1
    newer = raw("a")
    newer[JobKey("Job", "ns", "a")]["metadata"]["resourceVersion"] = "8"
    await doing.carry_out([step("a", 4, 6)], newer, 0.0)
    assert len(api.patches) == 2


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (Conflict("PATCH", "/x", 409, "changed"), "Overtaken"),
        (Rejected("PATCH", "/x", 403, "a webhook says no"), "Refused"),
    ],
)
async def test_a_refusal_stops_nobody_else(error, word):
    api, told = Api(error), []
    assert await hands(api, told).carry_out([step("a", 2, 4), step("b", 2, 4)], raw("a", "b"), 0.0) == 0
    assert told == [("a", word), ("b", word)]


async def test_a_change_says_when_it_was_made():
    change = stamped(Change("PATCH", "/x", {"metadata": {}}), 600.0)
    assert change.body["metadata"]["annotations"] == {"turnout.dev/resized-at": "1970-01-01T00:10:00Z"}
