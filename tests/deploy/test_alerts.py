"""The alerts beside the board: each fires when it should, and no other does. They are checked by the real promtool."""

import subprocess

import pytest
import yaml

from hack.controlplane.tools import cache
from tests.deploy.test_manifests import MANIFESTS

pytestmark = pytest.mark.real

RULES = MANIFESTS.parent / "prometheus/rules.yaml"
BY_PROGRAM = {group["name"]: group["rules"] for group in yaml.safe_load(RULES.read_text())["groups"]}
ALERTS = {rule["alert"]: rule for rules in BY_PROGRAM.values() for rule in rules if "alert" in rule}


WELL = {
    'turnout_leading{component="autoscaler"}': "1+0x200",
    "turnout_autoscaler_observation_age_seconds": "2+0x200",
    "turnout_autoscaler_last_decision_timestamp_seconds": "0+60x200",
    'turnout_autoscaler_decide_seconds_bucket{le="0.25"}': "0+12x200",
    'turnout_autoscaler_decide_seconds_bucket{le="2.5"}': "0+12x200",
    'turnout_autoscaler_decide_seconds_bucket{le="+Inf"}': "0+12x200",
    'turnout_autoscaler_changes_total{queue="q",reason="IdleRoom",outcome="Refused"}': "0+0x200",
    'turnout_autoscaler_changes_total{queue="q",reason="IdleRoom",outcome="Written"}': "0+0.1x200",
    'turnout_queue_jobs{queue="q",state="waiting"}': "1+0x200",
    'turnout_queue_jobs{queue="q",state="running"}': "2+0x200",
    'turnout_queue_gpus{queue="q",type="used"}': "8+0x200",
    'turnout_queue_assumed_restart_gpu_seconds_total{queue="q"}': "0+60x200",
    'turnout_queue_elastic_gpu_seconds_total{queue="q"}': "0+240x200",
    'turnout_build_info{component="extender"}': "1+0x200",
    "turnout_topology_map_errors": "0+0x200",
    'turnout_extender_errors_total{verb="filter",reason="failed"}': "0+0x200",
    'turnout_extender_request_duration_seconds_bucket{verb="filter",le="0.1"}': "0+60x200",
    'turnout_extender_request_duration_seconds_bucket{verb="filter",le="1"}': "0+60x200",
    'turnout_extender_request_duration_seconds_bucket{verb="filter",le="+Inf"}': "0+60x200",
    "turnout_tls_certificate_expiry_timestamp_seconds": "9999999+0x200",
    'turnout_gang_violation_pods{gang_namespace="ns",gang_name="bert"}': "0+0x200",
    'turnout_nominator_patch_failures_total{what="nomination",error="Rejected"}': "0+0x200",
    "turnout_gated_pods": "9+0x200",
    'turnout_leading{component="nominator"}': "1+0x200",
    'turnout_nominator_patch_failures_total{what="gate",error="Forbidden"}': "0+0x200",
    'turnout_nominator_patch_failures_total{what="gate",error="Conflict"}': "0+9x200",
    'turnout_leading{component="controller"}': "1+0x200",
    'turnout_controller_internal_errors_total{job_kind="PyTorchJob.kubeflow.org"}': "0+0x200",
}


@pytest.mark.parametrize(
    ("series", "fires"),
    [
        pytest.param({}, None, id="all is well"),
        pytest.param({'turnout_leading{component="autoscaler"}': "0+0x200"}, "TurnoutNobodyLeads", id="none leads"),
        pytest.param({'turnout_leading{component="autoscaler"}': "_x200"}, "TurnoutNobodyLeads", id="none is there"),
        pytest.param({'turnout_leading{component="autoscaler"}': "2+0x200"}, "TurnoutTwoLead", id="two lead"),
        pytest.param(
            {"turnout_autoscaler_observation_age_seconds": "0+60x200"}, "TurnoutAutoscalerIsBlind", id="a dead watch"
        ),
        pytest.param(
            {"turnout_autoscaler_last_decision_timestamp_seconds": "9+0x200"},
            "TurnoutAutoscalerIsStuck",
            id="it looks no more",
        ),
        pytest.param(
            {'turnout_autoscaler_decide_seconds_bucket{le="0.25"}': "0+6x200"},
            "TurnoutDecidesSlowly",
            id="slow decisions",
        ),
        pytest.param(
            {'turnout_autoscaler_changes_total{queue="q",reason="IdleRoom",outcome="Refused"}': "0+1x200"},
            "TurnoutChangesAreRefused",
            id="a webhook says no",
        ),
        pytest.param(
            {'turnout_queue_gpus{queue="q",type="used"}': "0+0x200"}, "TurnoutQueueIsStarved", id="nothing is held"
        ),
        pytest.param(
            {'turnout_autoscaler_changes_total{queue="q",reason="IdleRoom",outcome="Written"}': "0+1x200"},
            "TurnoutQueueFlaps",
            id="thirty changes in half an hour",
        ),
        pytest.param(
            {'turnout_queue_assumed_restart_gpu_seconds_total{queue="q"}': "0+600x200"},
            "TurnoutLendingCostsMoreThanItGives",
            id="restarts eat it up",
        ),
        pytest.param(
            {'turnout_build_info{component="extender"}': "_x200"}, "TurnoutNobodyAdvises", id="no extender is there"
        ),
        pytest.param(
            {'turnout_extender_errors_total{verb="filter",reason="failed"}': "0+1x200"},
            "TurnoutExtenderGivesNoAdvice",
            id="answers without advice",
        ),
        pytest.param(
            {'turnout_extender_request_duration_seconds_bucket{verb="filter",le="0.1"}': "0+30x200"},
            "TurnoutExtenderIsSlow",
            id="slow answers",
        ),
        pytest.param({"turnout_topology_map_errors": "2+0x200"}, "TurnoutMapIsFaulty", id="a map with faults"),
        pytest.param(
            {"turnout_tls_certificate_expiry_timestamp_seconds": "99999+0x200"},
            "TurnoutCertificateEnds",
            id="a certificate that ends in a day",
        ),
        pytest.param(
            {'turnout_gang_violation_pods{gang_namespace="ns",gang_name="bert"}': "1+0x200"},
            "TurnoutGangsAreNotWhole",
            id="a gang lies too wide",
        ),
        pytest.param(
            {'turnout_nominator_patch_failures_total{what="nomination",error="Rejected"}': "0+2x200"},
            "TurnoutNominationsFail",
            id="patches that are refused",
        ),
        pytest.param(
            {'turnout_leading{component="nominator"}': "0+0x200"},
            "TurnoutNobodyLiftsGates",
            id="pods wait behind gates",
        ),
        pytest.param(
            {'turnout_leading{component="nominator"}': "_x200", "turnout_gated_pods": "_x200"},
            "TurnoutNobodyLiftsGates",
            id="every nominator is gone",
        ),
        pytest.param(
            {'turnout_nominator_patch_failures_total{what="gate",error="Forbidden"}': "0+2x200"},
            "TurnoutGatesStay",
            id="gates that stay",
        ),
        pytest.param(
            {'turnout_leading{component="controller"}': "0+0x200"},
            "TurnoutNobodyControlsJobs",
            id="no controller leads",
        ),
        pytest.param(
            {'turnout_leading{component="controller"}': "_x200"},
            "TurnoutNobodyControlsJobs",
            id="no controller is there",
        ),
        pytest.param(
            {'turnout_controller_internal_errors_total{job_kind="PyTorchJob.kubeflow.org"}': "0+1x200"},
            "TurnoutJobsCannotBeDecided",
            id="a fault of ours",
        ),
    ],
)
def test_an_alert_fires_when_it_should_and_no_other_does(tmp_path, series, fires):
    inputs = [{"series": name, "values": values} for name, values in {**WELL, **series}.items()]
    told = [{"labels": f'{{alertname="{fires}"}}', "value": 1}] if fires else []
    check(tmp_path, inputs, "alertname", told)


@pytest.mark.parametrize(
    ("series", "alert"),
    [
        pytest.param('turnout_leading{cluster="west",component="autoscaler"}', "TurnoutNobodyLeads", id="autoscaler"),
        pytest.param(
            'turnout_leading{cluster="west",component="controller"}', "TurnoutNobodyControlsJobs", id="controller"
        ),
        pytest.param(
            'turnout_leading{cluster="west",component="nominator"}', "TurnoutNobodyLiftsGates", id="nominator"
        ),
        pytest.param('turnout_build_info{cluster="west",component="extender"}', "TurnoutNobodyAdvises", id="extender"),
    ],
)
def test_a_program_that_disappears_in_one_cluster_of_two_is_missed(tmp_path, series, alert):
    inputs = [{"series": name, "values": values} for name, values in {**WELL, series: "1+0x60 _x140"}.items()]
    expected = [{"labels": f'{{alertname="{alert}",cluster="west"}}', "value": 1}]
    check(tmp_path, inputs, "alertname, cluster", expected)


def test_a_nominator_does_not_hide_a_missing_extender(tmp_path):
    of_nominator = {'turnout_build_info{component="nominator"}': "1+0x200", "turnout_topology_hosts": "8+0x200"}
    series = {**WELL, **of_nominator, 'turnout_build_info{component="extender"}': "_x200"}
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    expected = [{"labels": '{alertname="TurnoutNobodyAdvises"}', "value": 1}]
    check(tmp_path, inputs, "alertname", expected)


def test_promtool_accepts_the_alerts_and_each_has_a_test():
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr
    (table,) = test_an_alert_fires_when_it_should_and_no_other_does.pytestmark
    assert {case.values[1] for case in table.args[1]} == {None, *ALERTS}


def check(folder, inputs, labels, expected):
    """Fail unless exactly the expected alerts fire after three hours. labels: those by which the alerts are counted."""
    query = f'count by ({labels}) (ALERTS{{alertstate="firing"}})'
    asked = {"expr": query, "eval_time": "3h", "exp_samples": expected}
    case = {"interval": "1m", "input_series": inputs, "promql_expr_test": [asked]}
    (folder / "rules.yaml").write_text(RULES.read_text())
    (folder / "case.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [case]}))
    done = promtool("test", "rules", "case.yaml", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def promtool(*arguments, cwd=None):
    return subprocess.run(
        [cache.binary("promtool"), *arguments], capture_output=True, text=True, timeout=60, cwd=cwd, check=False
    )
