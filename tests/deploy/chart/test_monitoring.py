"""What the chart installs for Prometheus and Grafana: alerts with runbooks, boards, and what is scraped."""

import json

import pytest
import yaml

from hack.codegen import chart
from tests.deploy.chart.test_rendered import EVERYTHING, TOGGLES, named, rendered

pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    ("base", "address"),
    [
        pytest.param("https://docs.example.com/", "https://docs.example.com/runbooks.html#", id="with a docs site"),
        pytest.param("", None, id="without one"),
    ],
)
def test_an_alert_names_its_runbook(base, address):
    (found,) = (each for each in rendered({**EVERYTHING, "docs.baseUrl": base}) if each["kind"] == "PrometheusRule")
    rules = [rule for group in found["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
    assert len(rules) > 10
    for rule in rules:
        expected = None if address is None else address + rule["alert"].lower()
        assert rule["annotations"].get("runbook_url") == expected


def test_alerts_and_dashboards_are_those_of_the_repository():
    found = rendered(EVERYTHING)
    rules = yaml.safe_load((chart.ROOT / "deploy/prometheus/rules.yaml").read_text())
    assert named(found, "PrometheusRule", "turnout")["spec"] == rules
    fewer = dict.fromkeys(("nominator.enabled", "controller.enabled", "page.enabled"), "false")
    less = rendered({**EVERYTHING, **fewer})
    groups = [group["name"] for group in named(less, "PrometheusRule", "turnout")["spec"]["groups"]]
    assert groups == [
        "turnout-autoscaler",
        "turnout-extender",
        "turnout-programs",
        "turnout-goodput",
        "turnout-launcher",
    ]
    less = rendered({**EVERYTHING, "monitoring.launchers.podMonitor": "false"})
    groups = [group["name"] for group in named(less, "PrometheusRule", "turnout")["spec"]["groups"]]
    assert not {"turnout-goodput", "turnout-launcher"} & set(groups)
    files = sorted((chart.ROOT / "deploy/grafana").glob("*.json"))
    assert len(files) == 7
    for file in files:
        board = named(found, "ConfigMap", f"turnout-dashboard-{file.stem}")
        assert json.loads(board["data"][file.name]) == json.loads(file.read_text())
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    monitored = {each["metadata"]["name"] for each in found if each["kind"] == "PodMonitor"}
    assert monitored == {f"turnout-{part}" for part in (*TOGGLES, "page", "launchers") if part != "networkPolicy"}


def test_the_dashboards_link_to_the_page():
    found = rendered({**EVERYTHING, "monitoring.pageUrl": "https://gpus.example.com/"})
    board = json.loads(named(found, "ConfigMap", "turnout-dashboard-job")["data"]["job.json"])
    (page_url,) = (each for each in board["templating"]["list"] if each["name"] == "page_url")
    assert page_url["query"] == "https://gpus.example.com/"
