"""The invariants of a training's history: a possible history satisfies all, and each planted violation is found."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.chaos.history import JobPlan, Record, read
from hack.chaos.invariants import Invariant, Violation, find_violations

SAMPLES, BATCH, EPOCHS = 12, 4, 2
STEPS = EPOCHS * SAMPLES // BATCH
MODEL = (0.25, -1.5)
TERMS = JobPlan(1, 3, SAMPLES, BATCH, EPOCHS, MODEL, frozenset({"API"}))


def homes(*names):
    return [f"pod-{name}" for name in names]


class Story:
    """A history as it is written, a moment later with every line."""

    def __init__(self):
        self.now_s, self.round, self.records = 0.0, 0, []

    def note(self, event, rank=-1, **more):
        self.now_s += 1.0
        self.records.append(Record(event, self.now_s, rank=rank, **more))

    def train(self, start, end, where, source="memory", saves=True, late=None):
        """A round from one step to another. late: a rank that is killed before it tells of its last step."""
        self.round += 1
        ranks = [
            {"round": self.round, "world": len(where), "rank": rank, "home": home} for rank, home in enumerate(where)
        ]
        for each in ranks:
            self.note(
                "begun",
                **each,
                step=start,
                epoch=start * BATCH // SAMPLES,
                cursor=start * BATCH % SAMPLES,
                source=source,
            )
        for step in range(start + 1, end + 1):
            epoch, cursor = divmod((step - 1) * BATCH, SAMPLES)
            for each in ranks:
                ids = tuple(range(cursor, cursor + BATCH))[each["rank"] :: len(where)]
                self.note("took", **each, step=step, epoch=epoch, samples=ids)
            for each in ranks:
                if step < end or each["rank"] != late:
                    self.note("stepped", **each, step=step, epoch=epoch)
                    if saves:
                        self.note("saved", **each, step=step)
        if end == STEPS:
            for each in ranks:
                self.note("ended", **each, step=end, why="done", model=MODEL)
            self.note("over", code=0)
        return self


def complete_history():
    """Three, then two of them and a new one, then one: to the end."""
    story = Story().train(0, 2, homes("a", "b", "c"), "fresh", late=1)
    story.note("fault", kind="PROCESS", who="pod-b")
    story.train(2, 4, homes("a", "c"))
    story.note("committed", step=3)
    story.note("fault", kind="POD", who="pod-c")
    return story.train(4, STEPS, homes("a", "d", "e"))


def found(records, terms=TERMS):
    return {violation.invariant for violation in find_violations(records, terms)}


def test_a_history_that_may_be_obeys_all_laws():
    assert find_violations(complete_history().records, TERMS) == ()


def changed(which, **to):
    """The whole history, with other fields in the records that are meant."""
    return [replace(record, **to) if which(record) else record for record in complete_history().records]


def without(which):
    return [record for record in complete_history().records if not which(record)]


def of(event, **fields):
    return lambda record: record.event == event and all(getattr(record, key) == value for key, value in fields.items())


def later(records, which, by_s):
    return [replace(record, at_s=record.at_s + by_s) if which(record) else record for record in records]


PLANTED = [
    pytest.param(
        later(complete_history().records, of("stepped", round=1, step=2), 99.0),
        Invariant.NO_OVERLAP,
        id="the last step of a round comes after the first of the next",
    ),
    pytest.param(
        changed(of("begun", round=3), world=4), Invariant.WORLD_SIZE, id="a world of four where three are the most"
    ),
    pytest.param(
        changed(of("took", round=2, rank=1), world=3), Invariant.RANKS_UNIQUE, id="a round with two world sizes"
    ),
    pytest.param(
        [*complete_history().records, next(filter(of("begun", round=2), complete_history().records))],
        Invariant.RANKS_UNIQUE,
        id="a rank begins twice in one round",
    ),
    pytest.param(
        changed(of("begun", round=2, rank=1), step=1), Invariant.SAME_START, id="two ranks go on from different steps"
    ),
    pytest.param(
        changed(of("begun", round=1), step=7), Invariant.SAME_START, id="a round goes on from a step that nobody made"
    ),
    pytest.param(without(of("took", round=2, step=3)), Invariant.SAME_START, id="a step is left out"),
    pytest.param(
        changed(of("took", round=3, step=5), samples=(0,)),
        Invariant.SAMPLES_ONCE,
        id="a sample comes twice in an epoch, others never",
    ),
    pytest.param(
        without(of("took", round=3, step=6, rank=2)), Invariant.SAMPLES_ONCE, id="what a rank trained on is not told"
    ),
    pytest.param(
        without(of("stepped", round=3, step=5)),
        Invariant.SAMPLES_ONCE,
        id="a step that was never made lies in the line of those that count",
    ),
    pytest.param(without(of("ended")), Invariant.END, id="nobody came to the end"),
    pytest.param(changed(of("over"), code=1), Invariant.END, id="the job has failed"),
    pytest.param(
        changed(of("ended", rank=0), model=(0.25, -1.5 * (1 + 2e-9))),
        Invariant.MODEL,
        id="a weight is off by two parts in a billion",
    ),
    pytest.param(changed(of("ended", rank=0), model=(0.25,)), Invariant.MODEL, id="a weight is missing"),
    pytest.param(
        changed(of("begun", round=3), source="storage"),
        Invariant.MEMORY_KEPT,
        id="storage was read while a worker kept its memory",
    ),
]


@pytest.mark.parametrize(("records", "invariant"), PLANTED)
def test_a_planted_violation_is_found(records, invariant):
    assert invariant in found(records)


def lost(start, saved=True, faults=1, memory_stays=True, committed=0):
    """Four steps, then a loss, then on from `start`."""
    story = Story().train(0, 4, homes("a", "b"), "fresh", saves=saved)
    if committed:
        story.records.append(Record("committed", story.now_s - 3, step=committed))
    for _ in range(faults):
        story.note("fault", kind="POD", who="pod-b")
    return story.train(start, STEPS, homes("a" if memory_stays else "d", "c"), "memory" if start else "fresh").records


@pytest.mark.parametrize(
    ("records", "laws"),
    [
        pytest.param(lost(4), set(), id="all that was saved is there"),
        pytest.param(
            lost(3), {Invariant.MEMORY_KEPT}, id="the newest save is lost, and one of the two kept its memory"
        ),
        pytest.param(lost(3, memory_stays=False), set(), id="both have lost their memory"),
        pytest.param(lost(3, faults=2), set(), id="a second fault fell before the next round had begun"),
        pytest.param(
            lost(2, memory_stays=False, committed=3), {Invariant.COMMITTED_KEPT}, id="an older step than storage had"
        ),
        pytest.param(lost(3, memory_stays=False, committed=3), set(), id="the step that storage had"),
        pytest.param(
            lost(0, memory_stays=False, committed=2), {Invariant.COMMITTED_KEPT}, id="begun afresh beside a checkpoint"
        ),
    ],
)
def test_what_may_be_lost(records, laws):
    assert found(records) == laws


def test_a_fault_that_takes_nobody_excuses_no_loss():
    records = lost(3)
    first = next(filter(of("fault"), records))
    assert found([*records, replace(first, kind="API")]) == {Invariant.MEMORY_KEPT}


@st.composite
def stories(draw):
    """Any job: worlds of one to three, each with one that stays, losses of what was not saved by all."""
    story, at, names, fresh = Story(), 0, iter(range(1000)), True
    workers = homes(*(next(names) for _ in range(draw(st.integers(1, 3)))))
    while True:
        end = draw(st.integers(at + 1, STEPS))
        late = draw(st.sampled_from([None, *range(len(workers))])) if end < STEPS and len(workers) > 1 else None
        story.train(at, end, workers, "fresh" if fresh else "memory", late=late)
        if end == STEPS:
            return story.records
        fresh, at = False, draw(st.integers(end - 1, end)) if late is not None else end
        fresh = at == 0
        story.note("fault", kind="POD")
        stays = draw(st.sampled_from(workers))
        workers = [stays, *homes(*(next(names) for _ in range(draw(st.integers(0, 2)))))]


@given(stories())
def test_no_story_that_may_be_is_blamed(records):
    assert find_violations(records, TERMS) == ()


@given(stories(), st.data())
def test_no_sample_can_be_taken_away_unseen(records, data):
    newest = {record.step: record for record in records if record.event == "took"}  # in the last round that made it
    hit = data.draw(st.sampled_from([record for record in newest.values() if record.samples]))
    shorter = replace(hit, samples=hit.samples[1:])
    assert Invariant.SAMPLES_ONCE in found([shorter if record is hit else record for record in records])


@given(stories(), st.data())
def test_whatever_line_a_kill_cuts_the_rest_is_read(records, data):
    lines = [json.dumps(asdict(record)) for record in records[:20]]
    cut = data.draw(st.integers(1, len(lines[-1]) - 1))
    assert list(read("\n".join([*lines[:-1], lines[-1][:cut]]))) == records[:20][:-1]


def test_a_breach_reads_as_a_sentence():
    assert str(Violation(Invariant.WORLD_SIZE, "round 3 has 4 ranks, 1 to 3 are allowed")) == (
        "a world is never smaller than min nor larger than max: round 3 has 4 ranks, 1 to 3 are allowed"
    )
