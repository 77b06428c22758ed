"""The defaults of health checks and hang detection: users rely on them, and so do older agents."""

import pytest

from tests.launcher.rendezvous.story import member
from turnout.launcher.coordinator_messages import Probed
from turnout.launcher.health.hang_detector import HangAction, HangLimits, HangPolicy, Progress, ProgressWatch
from turnout.launcher.health.model import (
    Box,
    ExcludedNode,
    NodeChecks,
    NodeCheckState,
    ProbePolicy,
    ProbeStage,
    SlowRule,
    StragglerLimits,
)
from turnout.launcher.health.probe_messages import ON_CPU, ON_DEVICE, ProbePlan, ProbeSizes, Report
from turnout.launcher.health.stack_traces.stack_tree import RankStacks, Thread
from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.state import HangStage as Hung
from turnout.launcher.rendezvous.state import HangState

MIB = 1 << 20
PAIRS = ((0, 1), (2, 4), (3, 5), (6, 7))
PROBING = ProbePolicy(meet_s=120.0, stage_s=60.0, matmul=None, reduce_bytes=None)
LIMITS = StragglerLimits(
    rule=SlowRule.MEAN, factor=2.0, spreads=6.0, least_factor=1.25, compute_s=None, collective_s=None
)


@pytest.mark.parametrize(
    ("unsaid", "said"),
    [
        pytest.param(StragglerLimits(), LIMITS, id="slow is more than twice the mean of the others: DL-31"),
        pytest.param(
            NodeChecks(),
            NodeChecks(False, False, False, False, PAIRS, 10_000, 2, LIMITS, False, PROBING),
            id="nothing is checked; a switchbox has the pairs and limits of the guide: DL-33 to DL-35",
        ),
        pytest.param(
            NodeCheckState(),
            NodeCheckState(LIMITS, False, False, 678.0, 0, None, (), None, {}, {}, frozenset(), (), 0.0, 0.0),
            id="no check is under way, and slow nodes train",
        ),
        pytest.param(
            ExcludedNode(member("a"), Reason.NODE_SLOW, "", 7.0),
            ExcludedNode(member("a"), Reason.NODE_SLOW, "", 7.0, times=1, unreachable_peer=""),
            id="who is left out is so for the first time, and not for a link",
        ),
        pytest.param(ProbePolicy(), PROBING, id="a probe has two minutes to meet the others and one for all else"),
        pytest.param(
            ON_CPU,
            ProbeSizes(512, 20, 4 * MIB, 10, 4 * MIB, 5, 3),
            id="on CPUs little is measured, each after three rounds to warm up",
        ),
        pytest.param(
            ON_DEVICE,
            ProbeSizes(16_384, 100, 64 * MIB, 40, 64 * MIB, 10, 3),
            id="on devices as much as DLRover measures",
        ),
        pytest.param(
            ProbePlan(0, 1, 1, "", 0),
            ProbePlan(0, 1, 1, "", 0, "", None, None, None, 120.0, 60.0, "", "", ()),
            id="a plan has the same times as what a job wants",
        ),
        pytest.param(
            Report(),
            Report(ProbeStage.BEGUN, None, None, 0, None, None, None, None, None, None, (), ""),
            id="a probe that has begun knows nothing yet",
        ),
        pytest.param(
            Probed(1, 5),
            Probed(1, 5, None, None, "", "", 0),
            id="an agent that tells no size of its all-reduce has no bandwidth",
        ),
        pytest.param(Box(), Box((), False, ""), id="a switchbox of which nothing was found is not faulty"),
        pytest.param(
            HangLimits(),
            HangLimits(2.5, 5.0, 300.0, 1_800.0, None, 20, 0.25),
            id="a hang is two and a half times the longest usual step, and patience lasts half an hour: DL-113",
        ),
        pytest.param(HangPolicy(), HangPolicy(None, HangAction.ASK, ""), id="of a hang a person is asked"),
        pytest.param(
            Progress(), Progress(0, 0.0, "", 0, 0.0, False, ()), id="a process that was just started has done nothing"
        ),
        pytest.param(
            ProgressWatch(), ProgressWatch(None, 0, 0, 0.0, False), id="who was not looked at yet does not hang"
        ),
        pytest.param(
            HangState(),
            HangState(HangAction.ASK, Hung.QUIET, 0, 0, frozenset(), "", frozenset(), {}, 0.0, {}),
            id="in a job that begins nobody hangs",
        ),
        pytest.param(Thread((), ()), Thread((), (), main=False), id="a thread is not the main one"),
        pytest.param(RankStacks(), RankStacks((), (), ""), id="a rank may show nothing"),
    ],
)
def test_where_nobody_says_otherwise(unsaid, said):
    assert unsaid == said
