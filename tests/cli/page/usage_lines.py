"""Lines of a decision log about the two teams of the tests of the page."""

from turnout.autoscaler.reporting.decision_log import JobUsage, UsageLine, encode_usage
from turnout.kube.times import rfc3339, unix_s

QUARTER_S = 900.0
HOUR_S = 3_600.0
TEAM_A, TEAM_B = "namespace/team-a", "namespace/team-b"


def period(end_s, queue=TEAM_A, **more):
    """One quarter of an hour of a queue, in which bert of team-a held two GPUs and lent one to team-b."""
    jobs = (JobUsage(f"Pod/{queue.rpartition('/')[2]}/bert", "ann", 2 * QUARTER_S, QUARTER_S), JobUsage("", "", 900.0))
    fields = {"jobs": jobs, "lent_gpu_s": {TEAM_B: QUARTER_S} if queue == TEAM_A else {}, **more}
    return UsageLine(rfc3339(end_s), QUARTER_S, queue, **fields)


def days_of_log(now_s, days=3):
    """Lines of four quarters of each of the last days, of two queues; the newest last. now_s: since 1970."""
    begin_s = unix_s(rfc3339(now_s)[:10] + "T00:00:00Z")
    starts = [begin_s - day * 86_400 for day in reversed(range(days))]
    ends = [start + QUARTER_S * at for start in starts for at in range(1, 5)]
    return encode_usage([period(end, queue) for end in ends for queue in (TEAM_A, TEAM_B)])
