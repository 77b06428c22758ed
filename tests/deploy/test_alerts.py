"""Each alert fires when it should, and no other does. They are checked by the real promtool."""

import re
import subprocess

import pytest
import yaml

from hack.codegen.grafana.coverage import exported_series
from hack.controlplane.tools import cache
from tests.deploy.series_values import labels_of, values_of_label
from tests.deploy.test_manifests import MANIFESTS

pytestmark = pytest.mark.real

RULES = MANIFESTS.parent / "prometheus/rules.yaml"
BY_PROGRAM = {group["name"]: group["rules"] for group in yaml.safe_load(RULES.read_text())["groups"]}
ALERTS = {rule["alert"]: rule for rules in BY_PROGRAM.values() for rule in rules if "alert" in rule}
MINUTES = 150  # of a story; longer ones look back over the six hours of a slow burn
LONG_MINUTES = 420

JOB = 'job_namespace="ns",job_kind="VolcanoJob",job_name="bert"'
GANG = 'gang_namespace="ns",gang_name="bert"'
SIZES = "turnout_autoscaler_changes_total"
REQUESTS = "turnout_extender_requests_total"
PATCHES = "turnout_nominator_patch_failures_total"
API = 'turnout_api_requests_total{component="controller",verb="patch"'
WATCH = '{component="nominator",resource="pods"}'
ROUNDS = f"turnout_launcher_rounds_total{{{JOB},reason="
COORDINATOR = f"turnout_launcher_is_coordinator{{{JOB},pod="
SAVES = f'turnout_launcher_saves_total{{{JOB},tier="storage",outcome='
LAST_SAVE = f'turnout_launcher_last_save_timestamp_seconds{{{JOB},tier="storage"}}'
SAVE_INTERVAL = f'turnout_launcher_save_interval_seconds{{{JOB},tier="storage"}}'
GPU_SECONDS = f"turnout_job_gpu_seconds_total{{{JOB},kind="
DECIDE = "turnout_autoscaler_decide_seconds"
ANSWER = "turnout_extender_request_duration_seconds"
RECLAIM = "turnout_reclaim_seconds"
FOREIGN = "prometheus_target_scrapes_exceeded_sample_limit_total"

# One value each minute while all is well.
WELL = {
    'turnout_leading{component="autoscaler"}': "1+0",
    'turnout_leading{component="nominator"}': "1+0",
    'turnout_leading{component="controller"}': "1+0",
    "turnout_autoscaler_observation_age_seconds": "2+0",
    "turnout_autoscaler_last_decision_timestamp_seconds": "0+60",
    f"{DECIDE}_count": "0+12",
    f'{DECIDE}_bucket{{le="1.0"}}': "0+12",
    f'{SIZES}{{queue="default",direction="grow",reason="IdleRoom",outcome="Refused"}}': "0+0",
    f'{SIZES}{{queue="default",direction="grow",reason="IdleRoom",outcome="Written"}}': "0+0.1",
    'turnout_queue_jobs{queue="default",state="waiting"}': "1+0",
    'turnout_queue_jobs{queue="default",state="running"}': "2+0",
    'turnout_queue_gpus{queue="default",type="used"}': "8+0",
    'turnout_queue_gpus{queue="default",type="limit"}': "8+0",
    f'turnout_job_promised_start_timestamp_seconds{{queue="default",{JOB}}}': "99999+0",
    f'turnout_job_info{{queue="default",{JOB}}}': "1+0",
    f'{RECLAIM}_count{{queue="default"}}': "0+1",
    f'{RECLAIM}_bucket{{queue="default",le="60.0"}}': "0+1",
    "turnout_decision_log_lost_total": "0+0",
    'turnout_gpu_nodes{state="tainted"}': "1+0",
    "turnout_gpu_nodes_taint_limit": "2+0",
    'turnout_cluster_gpus{state="used"}': "8+0",
    'turnout_idle_gpu_seconds_total{queue="default",reason="fragmented"}': "0+0",
    'turnout_queue_elastic_gpu_seconds_total{queue="default"}': "0+240",
    'turnout_build_info{component="extender"}': "1+0",
    f'{REQUESTS}{{verb="filter",outcome="answered"}}': "0+60",
    f'{REQUESTS}{{verb="filter",outcome="no_advice"}}': "0+0",
    f'{ANSWER}_count{{verb="filter"}}': "0+60",
    f'{ANSWER}_bucket{{verb="filter",le="0.5"}}': "0+60",
    'turnout_plans_rejected_total{term="level"}': "0+0",
    "turnout_topology_map_errors": "0+0",
    "turnout_tls_certificate_expiry_timestamp_seconds": "9999999+0",
    f"turnout_gang_violation_pods{{{GANG}}}": "0+0",
    f'{PATCHES}{{what="nomination",error="Rejected"}}': "0+0",
    f'{PATCHES}{{what="gate",error="Forbidden"}}': "0+0",
    f'{PATCHES}{{what="gate",error="Conflict"}}': "0+9",
    'turnout_nominations_total{reason="Planned"}': "0+10",
    'turnout_gates_lifted_total{reason="Placed"}': "0+10",
    f'turnout_gate_oldest_seconds{{{GANG},reason="planned"}}': "5+0",
    'turnout_controller_internal_errors_total{job_kind="PyTorchJob"}': "0+0",
    "turnout_controller_workqueue_depth": "1+0",
    "turnout_controller_clock_jump_seconds": "0+0",
    f'{API},code="2xx"}}': "0+60",
    f'{API},code="409"}}': "0+9",
    f'{API},code="403"}}': "0+0",
    f"turnout_watch_last_event_age_seconds{WATCH}": "2+0",
    f"turnout_watch_synced{WATCH}": "1+0",
    f'turnout_launcher_rank_hung{{{JOB},rank="3"}}': "0+0",
    f'{ROUNDS}"process_failed"}}': "0+0",
    f'{ROUNDS}"member_joined"}}': "0+1",
    f'{COORDINATOR}"bert-0"}}': "1+0",
    f'{COORDINATOR}"bert-1"}}': "0+0",
    f'{SAVES}"done"}}': "0+0.1",
    f'{SAVES}"failed"}}': "0+0",
    f'{SAVES}"superseded"}}': "0+0",
    LAST_SAVE: "0+60",
    SAVE_INTERVAL: "600+0",
    f'{GPU_SECONDS}"productive"}}': "0+480",
    f'{GPU_SECONDS}"wasted"}}': "0+0",
    f'{GPU_SECONDS}"elastic_grow"}}': "0+1",
    f"turnout_job_unsaved_seconds{{{JOB}}}": "60+0",
    "turnout_page_data_age_seconds": "2+0",
    FOREIGN: "0+0",
}

FIRES = [
    pytest.param({'turnout_leading{component="autoscaler"}': "0+0"}, "AutoscalerNoLeader", id="no autoscaler leads"),
    pytest.param({'turnout_leading{component="autoscaler"}': "_"}, "AutoscalerNoLeader", id="no autoscaler"),
    pytest.param({'turnout_leading{component="autoscaler"}': "2+0"}, "AutoscalerTwoLeaders", id="two autoscalers"),
    pytest.param({"turnout_autoscaler_observation_age_seconds": "0+60"}, "AutoscalerViewStale", id="a dead watch"),
    pytest.param({"turnout_autoscaler_last_decision_timestamp_seconds": "9+0"}, "AutoscalerStuck", id="no decision"),
    pytest.param({f'{DECIDE}_bucket{{le="1.0"}}': "0+11"}, "DecisionsSlow", id="one slow decision in twelve"),
    pytest.param(
        {f'{SIZES}{{queue="default",direction="grow",reason="IdleRoom",outcome="Refused"}}': "0+1"},
        "ResizesRefused",
        id="a webhook refuses resizes",
    ),
    pytest.param({'turnout_queue_gpus{queue="default",type="used"}': "0+0"}, "QueueStarved", id="nothing is held"),
    pytest.param(
        {f'turnout_job_promised_start_timestamp_seconds{{queue="default",{JOB}}}': "9+0"},
        "JobStartLate",
        id="a job that should have started",
    ),
    pytest.param({f'{RECLAIM}_bucket{{queue="default",le="60.0"}}': "0+0.5"}, "ReclaimSlow", id="a slow return"),
    pytest.param(
        {f'{SIZES}{{queue="default",direction="grow",reason="IdleRoom",outcome="Written"}}': "0+1"},
        "QueueFlaps",
        id="thirty resizes in half an hour",
    ),
    pytest.param({"turnout_decision_log_lost_total": "0+1"}, "DecisionLogLosses", id="a slow disk"),
    pytest.param({'turnout_gpu_nodes{state="tainted"}': "2+0"}, "TaintLimit", id="as many taints as may be"),
    pytest.param(
        {'turnout_idle_gpu_seconds_total{queue="default",reason="fragmented"}': "0+300"},
        "Fragmented",
        id="five scattered GPUs",
    ),
    pytest.param({'turnout_build_info{component="extender"}': "_"}, "ExtenderGone", id="no extender"),
    pytest.param(
        {f'{REQUESTS}{{verb="filter",outcome="no_advice"}}': "0+1"}, "ExtenderNoAdvice", id="answers without advice"
    ),
    pytest.param({f'{ANSWER}_bucket{{verb="filter",le="0.5"}}': "0+58"}, "ExtenderSlow", id="slow answers"),
    pytest.param({'turnout_plans_rejected_total{term="level"}': "0+1"}, "PlanRejected", id="a plan leaves its level"),
    pytest.param({"turnout_topology_map_errors": "2+0"}, "MapErrors", id="a map with errors"),
    pytest.param(
        {"turnout_tls_certificate_expiry_timestamp_seconds": "999999+0"},
        "CertificateExpires",
        id="a certificate that ends in eleven days",
    ),
    pytest.param(
        {"turnout_tls_certificate_expiry_timestamp_seconds": "99999+0"},
        "CertificateExpires",
        id="a certificate that ends in a day",
    ),
    pytest.param({f"turnout_gang_violation_pods{{{GANG}}}": "1+0"}, "GangBreaksRule", id="a gang that is too wide"),
    pytest.param({'turnout_leading{component="nominator"}': "0+0"}, "NominatorNoLeader", id="no nominator leads"),
    pytest.param({'turnout_leading{component="nominator"}': "_"}, "NominatorNoLeader", id="no nominator"),
    pytest.param({'turnout_leading{component="nominator"}': "2+0"}, "NominatorTwoLeaders", id="two nominators"),
    pytest.param(
        {f'{PATCHES}{{what="nomination",error="Rejected"}}': "0+2"}, "PatchesRefused", id="nominations are refused"
    ),
    pytest.param({f'{PATCHES}{{what="gate",error="Forbidden"}}': "0+2"}, "PatchesRefused", id="gates stay"),
    pytest.param({f'turnout_gate_oldest_seconds{{{GANG},reason="planned"}}': "99+0"}, "GateStuck", id="a gate stays"),
    pytest.param({'turnout_leading{component="controller"}': "0+0"}, "ControllerNoLeader", id="no controller leads"),
    pytest.param({'turnout_leading{component="controller"}': "_"}, "ControllerNoLeader", id="no controller"),
    pytest.param({'turnout_leading{component="controller"}': "2+0"}, "ControllerTwoLeaders", id="two controllers"),
    pytest.param(
        {'turnout_controller_internal_errors_total{job_kind="PyTorchJob"}': "0+1"}, "ControllerErrors", id="our fault"
    ),
    pytest.param({"turnout_controller_workqueue_depth": "200+0"}, "ControllerBacklog", id="200 jobs wait"),
    pytest.param({"turnout_controller_clock_jump_seconds": "-30+0"}, "ClockJump", id="a clock that goes back"),
    pytest.param({f"turnout_watch_last_event_age_seconds{WATCH}": "200+0"}, "WatchStale", id="a silent watch"),
    pytest.param({f"turnout_watch_synced{WATCH}": "0+0"}, "WatchStale", id="no list"),
    pytest.param({f'{API},code="403"}}': "0+20"}, "ApiRefused", id="a right is missing"),
    pytest.param({f'turnout_launcher_rank_hung{{{JOB},rank="3"}}': "1+0"}, "JobHung", id="a rank hangs"),
    pytest.param({f'{ROUNDS}"process_failed"}}': "0+0.1"}, "JobRestartsOften", id="six failures in an hour"),
    pytest.param({f'{COORDINATOR}"bert-1"}}': "1+0"}, "JobCoordinator", id="two coordinators"),
    pytest.param({f'{COORDINATOR}"bert-0"}}': "1+0x120 0+0"}, "JobCoordinator", id="the coordinator is gone"),
    pytest.param({f"turnout_job_unsaved_seconds{{{JOB}}}": "20000+0"}, "JobUnsaved", id="five hours without a save"),
    pytest.param({f'{SAVES}"failed"}}': "0+0.1"}, "SavesFail", id="every second save fails"),
    pytest.param(
        {f'{SAVES}"done"}}': "0+0", f'{SAVES}"failed"}}': "0+0.02"}, "SavesFail", id="each of few saves fails"
    ),
    pytest.param(
        {
            f'{SAVES.replace("storage", "memory")}"done"}}': "0+600",
            f'{SAVES}"done"}}': "0+0",
            f'{SAVES}"failed"}}': "0+0.1",
        },
        "SavesFail",
        id="storage refuses every save, and memory takes ten a second",
    ),
    pytest.param({LAST_SAVE: "600+0"}, "SaveOverdue", id="no complete save for two hours"),
    pytest.param({LAST_SAVE: "_"}, "SaveOverdue", id="a job that asks for saves and never had one"),
    pytest.param({f'{GPU_SECONDS}"wasted"}}': "0+300"}, "GoodputBurn", id="steps are repeated"),
    pytest.param(
        {'turnout_queue_elastic_gpu_seconds_total{queue="default"}': "0+0.2"}, "LendingLoses", id="costs above gains"
    ),
    pytest.param({FOREIGN: "0+1"}, "MetricsRejected", id="an exporter with too many series"),
    pytest.param({"turnout_page_data_age_seconds": "400+0"}, "PageStale", id="an old picture"),
]
WRITTEN = f'{SIZES}{{queue="default",direction="grow",reason="IdleRoom",outcome="Written"}}'
REFUSED = f'{SIZES}{{queue="default",direction="grow",reason="IdleRoom",outcome="Refused"}}'
SILENT = [
    pytest.param({}, id="all is well"),
    pytest.param({WRITTEN: "0+0", REFUSED: "0+0x390 1+0"}, id="one refusal is the only resize"),
    pytest.param({REFUSED: "0+1x180 180+0"}, id="refusals that ended four hours ago"),
    pytest.param({f'{PATCHES}{{what="gate",error="Forbidden"}}': "_x300 40+0"}, id="a counter that begins at 40"),
    pytest.param(
        {
            'turnout_queue_gpus{queue="default",type="used"}': "0+0",
            'turnout_queue_gpus{queue="default",type="limit"}': "0+0",
        },
        id="a queue that may have nothing",
    ),
    pytest.param(
        {f'{COORDINATOR}"bert-0"}}': "0+0"}, id="the coordinator has no worker and serves no metrics: it was never seen"
    ),
    pytest.param(
        {f'{COORDINATOR}"bert-0"}}': "1+0x300 0+0", f'{COORDINATOR}"bert-1"}}': "0+0x300 1+0"},
        id="a coordinator that moved",
    ),
    pytest.param(
        {f'{GPU_SECONDS}"productive"}}': "0+480x200 _x10 100800+480"}, id="a gap of ten minutes in the job's totals"
    ),
    pytest.param({f'{SAVES}"failed"}}': "0+0x390 1+0"}, id="one save failed"),
    pytest.param({f'{SAVES}"failed"}}': "0+0.1x120 12+0"}, id="saves that failed five hours ago"),
    pytest.param({f'{SAVES}"superseded"}}': "0+1"}, id="newer saves overtake others on their way to storage"),
    pytest.param({LAST_SAVE: "_", SAVE_INTERVAL: "_"}, id="a job that saves nothing to storage"),
    pytest.param({LAST_SAVE: "0+60x400 24000+0"}, id="a save that is late by one interval"),
    pytest.param({'turnout_queue_jobs{queue="default",state="waiting"}': "0+0"}, id="nobody waits"),
    pytest.param({'turnout_leading{component="autoscaler",pod="b"}': "0+0"}, id="a second replica that does not lead"),
]


@pytest.mark.parametrize(("series", "fires"), FIRES)
def test_an_alert_fires_when_it_should_and_no_other_does(tmp_path, series, fires):
    check(tmp_path, {**WELL, **series}, "alertname", [{"labels": f'{{alertname="Turnout{fires}"}}', "value": 1}])


@pytest.mark.parametrize("series", SILENT)
def test_no_alert_fires(tmp_path, series):
    check(tmp_path, {**WELL, **series}, "alertname", [], LONG_MINUTES)


@pytest.mark.parametrize(
    ("series", "alert"),
    [
        pytest.param('turnout_leading{cluster="west",component="autoscaler"}', "AutoscalerNoLeader", id="autoscaler"),
        pytest.param('turnout_leading{cluster="west",component="controller"}', "ControllerNoLeader", id="controller"),
        pytest.param('turnout_leading{cluster="west",component="nominator"}', "NominatorNoLeader", id="nominator"),
        pytest.param('turnout_build_info{cluster="west",component="extender"}', "ExtenderGone", id="extender"),
    ],
)
def test_a_program_that_disappears_in_one_cluster_of_two_is_missed(tmp_path, series, alert):
    expected = [{"labels": f'{{alertname="Turnout{alert}",cluster="west"}}', "value": 1}]
    check(tmp_path, {**WELL, series: "1+0x100 _"}, "alertname, cluster", expected)


def test_a_nominator_does_not_hide_a_missing_extender(tmp_path):
    of_nominator = {'turnout_build_info{component="nominator"}': "1+0", "turnout_topology_hosts": "8+0"}
    series = {**WELL, **of_nominator, 'turnout_build_info{component="extender"}': "_"}
    check(tmp_path, series, "alertname", [{"labels": '{alertname="TurnoutExtenderGone"}', "value": 1}])


HUNG = {f'turnout_launcher_rank_hung{{{JOB},rank="3"}}': "1+0"}


@pytest.mark.parametrize(
    ("series", "labels"),
    [
        pytest.param(HUNG, 'namespace="ns",queue="default",severity="critical"', id="a job with its queue"),
        pytest.param(
            {**HUNG, f'turnout_job_info{{queue="default",{JOB}}}': "_"},
            'namespace="ns",severity="critical"',
            id="a job that no autoscaler knows",
        ),
        pytest.param(
            {"turnout_tls_certificate_expiry_timestamp_seconds": "99999+0"},
            'severity="critical"',
            id="a certificate that ends in a day",
        ),
        pytest.param(
            {"turnout_tls_certificate_expiry_timestamp_seconds": "999999+0"},
            'severity="warning"',
            id="a certificate that ends in eleven days",
        ),
        pytest.param({REFUSED: "0+1"}, 'queue="default",severity="warning"', id="an alert on a queue"),
        pytest.param(
            {f"turnout_gang_violation_pods{{{GANG}}}": "1+0"}, 'namespace="ns",severity="warning"', id="one on a gang"
        ),
    ],
)
def test_an_alert_has_the_labels_by_which_it_is_routed(tmp_path, series, labels):
    expected = [{"labels": f"{{{labels}}}", "value": 1}]
    check(tmp_path, {**WELL, **series}, "queue, namespace, severity", expected)


def test_a_job_that_moves_between_queues_is_in_one(tmp_path):
    series = {**WELL, **HUNG, f'turnout_job_info{{queue="other",{JOB}}}': "1+0"}
    check(tmp_path, series, "alertname", [{"labels": '{alertname="TurnoutJobHung"}', "value": 1}])


def test_promtool_accepts_the_alerts_and_each_has_a_test():
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert {f"Turnout{case.values[1]}" for case in FIRES} == set(ALERTS)


def test_the_series_of_these_tests_are_those_that_the_code_exports():
    metric_of = exported_series()
    cases = [series for case in (*FIRES, *SILENT) for series in case.values[0]]
    for name, labels in (re.fullmatch(r"(\w+)(?:\{(.*)\})?", series).groups() for series in (*WELL, *cases)):
        if name == FOREIGN:
            continue
        pairs = dict(re.findall(r'(\w+)="([^"]*)"', labels or ""))
        assert name in metric_of
        known = {"pod", "cluster", "le", *labels_of(metric_of[name])}
        known |= {"job_namespace", "job_kind", "job_name"} if "launcher" in name or "_job_" in name else set()
        assert set(pairs) <= known, name
        for label, value in pairs.items():
            allowed = values_of_label(metric_of[name], label)
            assert allowed is None or value in allowed, (name, label, value)


def check(folder, series, labels, expected, minutes=MINUTES):
    """Fail unless exactly the expected alerts fire in the end. labels: those by which the alerts are counted."""
    inputs = [{"series": name, "values": f"{values}x{minutes}"} for name, values in series.items()]
    query = f'count by ({labels}) (ALERTS{{alertstate="firing"}})'
    question = {"expr": query, "eval_time": f"{minutes}m", "exp_samples": expected}
    case = {"interval": "1m", "input_series": inputs, "promql_expr_test": [question]}
    (folder / "rules.yaml").write_text(RULES.read_text())
    tests = {"rule_files": ["rules.yaml"], "evaluation_interval": "2m", "tests": [case]}
    (folder / "case.yaml").write_text(yaml.safe_dump(tests))
    done = promtool("test", "rules", "case.yaml", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr


def promtool(*arguments, cwd=None):
    return subprocess.run(
        [cache.binary("promtool"), *arguments], capture_output=True, text=True, timeout=60, cwd=cwd, check=False
    )
