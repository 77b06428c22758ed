"""What the recording rules make of series: goodput of jobs and queues, and ratios over windows. Run by promtool."""

import json
import re

import pytest
import yaml

from tests.deploy.test_alerts import JOB, RULES, promtool
from tests.deploy.test_manifests import MANIFESTS

pytestmark = pytest.mark.real

MINUTES = 120
JOB_BOARD = json.loads((MANIFESTS.parent / "grafana/job.json").read_text())
(GOODPUT,) = (
    target["expr"] for panel in JOB_BOARD["panels"] if panel["title"] == "Goodput" for target in panel["targets"]
)
TIME, GPU_TIME = "turnout_job_time_seconds_total", "turnout_job_gpu_seconds_total"
INFO = {f'turnout_job_info{{queue="default",{JOB}}}': "1+0x120"}
# Two hours of a job: of 60 seconds 55 are productive and 5 wasted. After an hour another pod coordinates, and its
# totals go on where those of the first ended.
MOVED = {
    f'{TIME}{{{JOB},pod="a",kind="productive"}}': "0+55x60 _x60",
    f'{TIME}{{{JOB},pod="b",kind="productive"}}': "_x61 3355+55x59",
    f'{TIME}{{{JOB},pod="a",kind="wasted"}}': "0+5x60 _x60",
    f'{TIME}{{{JOB},pod="b",kind="wasted"}}': "_x61 305+5x59",
    f'turnout_job_unsaved_seconds{{{JOB},pod="a"}}': "60+0x60 _x60",
    f'turnout_job_unsaved_seconds{{{JOB},pod="b"}}': "_x61 60+0x59",
}
IN_GPUS = {
    f'{GPU_TIME}{{{JOB},kind="productive"}}': "0+440x120",
    f'{GPU_TIME}{{{JOB},kind="wasted"}}': "0+40x120",
}
OTHER_JOB = JOB.replace("bert", "gpt")
STATEFUL_SET = JOB.replace("VolcanoJob", "StatefulSet")


def filled(expr):
    """Return a query of the board of a job."""
    words = {"cluster": ".*", "namespace": "ns", "kind": "VolcanoJob", "job": "bert", "__range": "100m"}
    return re.sub(r"\$(\w+)", lambda name: words[name[1]], expr)


@pytest.mark.parametrize(
    ("series", "query", "labels", "value"),
    [
        pytest.param(MOVED, f"round({filled(GOODPUT)}, 0.001)", "{}", 0.917, id="the coordinator moved: 55 of 60"),
        pytest.param(
            {
                f'{TIME}{{{JOB},kind="productive"}}': "0+0x120",
                f'{TIME}{{{JOB},kind="wasted"}}': "0+5x120",
                f"turnout_job_unsaved_seconds{{{JOB}}}": "0+55x120",
            },
            f"round({filled(GOODPUT)}, 0.001)",
            "{}",
            0.917,
            id="time that is not saved yet counts as productive",
        ),
        pytest.param(
            MOVED,
            "max(turnout:job_unsaved_seconds:max) + sum(turnout:job_time_seconds:max)",
            "{}",
            60 + 60 * MINUTES,
            id="kinds and unsaved time add up to wall time",
        ),
        pytest.param(
            {**INFO, **IN_GPUS},
            'round(turnout:queue_gpu_seconds:rate5m{kind="productive"}, 0.01)',
            '{queue="default",kind="productive"}',
            7.33,
            id="a queue's GPUs by kind",
        ),
        pytest.param(
            {
                f'{GPU_TIME}{{{STATEFUL_SET},kind="productive"}}': "0+440x120",
                f'turnout_job_info{{queue="default",{STATEFUL_SET}}}': "1+0x120",
            },
            "round(sum(turnout:queue_gpu_seconds:rate5m), 0.01)",
            "{}",
            7.33,
            id="pods of a StatefulSet, whose queue the autoscaler names",
        ),
        pytest.param(
            {**IN_GPUS, **INFO, f'{GPU_TIME}{{{OTHER_JOB},kind="wasted"}}': "0+60x120"},
            'round(turnout:queue_gpu_seconds:rate5m{queue=""}, 0.01)',
            '{kind="wasted"}',
            1,
            id="a job whose queue nobody knows is not lost",
        ),
        pytest.param(
            {**IN_GPUS, **INFO, f'{GPU_TIME}{{{OTHER_JOB},kind="wasted"}}': "0+60x120"},
            "round(turnout:queue_badput:ratio1h, 0.001)",
            '{queue="default"}',
            0.083,
            id="the badput of a queue is that of its own jobs",
        ),
        pytest.param(
            {**INFO, **IN_GPUS, f'turnout_job_info{{queue="other",{JOB}}}': "1+0x120"},
            "round(sum(turnout:queue_gpu_seconds:rate5m), 0.01)",
            "{}",
            8,
            id="a job that is in two queues counts once",
        ),
        pytest.param(
            {
                **INFO,
                **IN_GPUS,
                f'turnout_job_info{{queue="other",{OTHER_JOB}}}': "1+0x120",
                f'turnout_job_info{{queue="third",{OTHER_JOB}}}': "1+0x120",
            },
            'round(sum(turnout:queue_gpu_seconds:rate5m{queue="default"}), 0.01)',
            "{}",
            8,
            id="another job in two queues does no harm",
        ),
        pytest.param(
            {**INFO, **IN_GPUS},
            "round(60 * sum(sum_over_time(turnout:queue_gpu_seconds:rate5m[60m])), 1)",
            "{}",
            8 * 3600,
            id="GPU seconds of an hour by sum_over_time",
        ),
        pytest.param(
            {**INFO, **IN_GPUS}, "round(turnout:queue_badput:ratio1h, 0.001)", '{queue="default"}', 0.083, id="badput"
        ),
        pytest.param(
            {
                'turnout_extender_request_duration_seconds_count{verb="filter",pod="a"}': "0+60x120",
                'turnout_extender_request_duration_seconds_bucket{verb="filter",pod="a",le="0.5"}': "0+60x120",
                'turnout_extender_request_duration_seconds_count{verb="filter",pod="b"}': "0+60x120",
                'turnout_extender_request_duration_seconds_bucket{verb="filter",pod="b",le="0.5"}': "0+30x120",
            },
            "round(turnout:extender_over_500ms:ratio30m, 0.001)",
            '{verb="filter"}',
            0.25,
            id="slow answers of two replicas",
        ),
        pytest.param(
            {
                'turnout_nominations_total{reason="Planned"}': "0+18x120",
                'turnout_nominator_patch_failures_total{what="nomination",error="Rejected"}': "0+2x120",
                'turnout_nominator_patch_failures_total{what="gate",error="Conflict"}': "0+5x120",
            },
            'round(turnout:patch_refused:ratio1h{what="nomination"}, 0.001)',
            '{what="nomination"}',
            0.1,
            id="refused patches among all",
        ),
    ],
)
def test_what_is_recorded(tmp_path, series, query, labels, value):
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    expected = [{"labels": labels, "value": value}]
    question = {"expr": query, "eval_time": f"{MINUTES}m", "exp_samples": expected}
    case = {"interval": "1m", "input_series": inputs, "promql_expr_test": [question]}
    (tmp_path / "rules.yaml").write_text(RULES.read_text())
    (tmp_path / "case.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [case]}))
    done = promtool("test", "rules", "case.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
