"""The port of a launcher's metrics has a name, so that the chart's PodMonitor finds it."""

from pathlib import Path

import pytest
import yaml

from hack.lint.code_blocks import run_by
from tests.controllers import elasticjobs
from tests.controllers.jobs import job, role
from tests.controllers.volcano import volcanojobs
from turnout.controllers.kinds.elasticjob import ELASTICJOB
from turnout.controllers.kinds.pytorchjob import PYTORCHJOB
from turnout.controllers.kinds.volcanojob import VOLCANOJOB
from turnout.controllers.metrics_port import PORT_NAME, metrics_port, with_metrics_port
from turnout.controllers.model import Create, OwnedObjects
from turnout.controllers.reconcile import reconcile

ROOT = Path(__file__).parents[2]
ADDED = {"name": PORT_NAME, "containerPort": 9093, "protocol": "TCP"}
RUN = ["turnout-run", "--nproc-per-node=8", "--metrics-port", "9093", "train.py"]


@pytest.mark.parametrize(("container", "port"), [
    pytest.param({"command": RUN}, 9093, id="an option and its value"),
    pytest.param({"command": ["turnout-run", "--metrics-port=9093", "train.py"]}, 9093, id="an option with ="),
    pytest.param({"command": ["turnout-run", "--metrics_port=9093", "train.py"]}, 9093, id="with an underscore"),
    pytest.param({"command": ["turnout-run"], "args": RUN[1:]}, 9093, id="command and args"),
    pytest.param({"args": ["python", "-m", "turnout.launcher", "--metrics-port", "9093"]}, 9093, id="as a module"),
    pytest.param({"command": ["/opt/bin/dlrover-run", *RUN[1:]]}, 9093, id="a path, and DLRover's name"),
    pytest.param({"command": ["sh", "-c", "cd /w && exec turnout-run --metrics-port 9093 a.py"]}, 9093, id="a shell"),
    pytest.param({"env": [{"name": "TURNOUT_METRICS_PORT", "value": "9093"}]}, 9093, id="a variable"),
    pytest.param(
        {"command": RUN, "env": [{"name": "TURNOUT_METRICS_PORT", "value": "9"}]}, 9093, id="the option comes first"
    ),
    pytest.param({"command": ["turnout-run", "train.py"]}, None, id="no metrics"),
    pytest.param({"command": ["turnout-run", "train.py", "--metrics-port", "9093"]}, None, id="the script's option"),
    pytest.param({"command": ["turnout-run", "--", "x", "--metrics-port", "9093"]}, None, id="behind --"),
    pytest.param({"command": ["serve", "--metrics-port", "9093"]}, None, id="another program"),
    pytest.param({"command": ["turnout-run", "--metrics-port", "0", "train.py"]}, None, id="any free port"),
    pytest.param({"command": ["turnout-run", "--metrics-port", "65536"]}, None, id="no port"),
    pytest.param({"command": ["turnout-run", "--metrics-port", "$(PORT)"]}, None, id="a variable that is unknown here"),
    pytest.param({"command": ["turnout-run", "--metrics-port"]}, None, id="no value"),
    pytest.param({"command": "turnout-run", "args": 3, "env": {}}, None, id="fields of another type"),
    pytest.param({"env": [{"name": "TURNOUT_METRICS_PORT", "valueFrom": {}}, 3]}, None, id="a value from elsewhere"),
])  # fmt: skip
def test_the_port_of_a_launcher(container, port):
    assert metrics_port(container) == port


@pytest.mark.parametrize(("ports", "after"), [
    pytest.param(None, [ADDED], id="no ports"),
    pytest.param([{"containerPort": 23456}], [{"containerPort": 23456}, ADDED], id="other ports stay"),
    pytest.param(
        [{"name": PORT_NAME, "containerPort": 7}], [{"name": PORT_NAME, "containerPort": 7}], id="its own port"
    ),
])  # fmt: skip
def test_a_port_of_that_name_is_added_once(ports, after):
    container = {"name": "c", "command": RUN, **({} if ports is None else {"ports": ports})}
    first = {"name": "sidecar", "command": ["sleep"]}
    found = with_metrics_port({"containers": [first, container], "hostNetwork": True})
    assert found == {"containers": [first, {**container, "ports": after}], "hostNetwork": True}


def test_only_the_first_launcher_of_a_pod_is_named():
    spec = {"containers": [{"command": RUN}, {"command": RUN}]}
    assert [len(each.get("ports", ())) for each in with_metrics_port(spec)["containers"]] == [1, 0]


KINDS = {
    "PyTorchJob": (PYTORCHJOB, job(worker=role(1, containers=[{"name": "pytorch", "image": "i", "command": RUN}]))),
    "ElasticJob": (ELASTICJOB, elasticjobs.job(elasticjobs.worker(1, container={"command": RUN}))),
    "Volcano Job": (VOLCANOJOB, volcanojobs.job(volcanojobs.task(replicas=1, container={"command": RUN}))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_pod_of_ours_has_the_port(kind):
    controlled, raw = KINDS[kind]
    outcome = reconcile(controlled, raw, OwnedObjects(), 0.0)
    bodies = [each.body for each in outcome.writes if isinstance(each, Create)]
    pods = [body for body in bodies if body["kind"] == "Pod"]
    ports = [each["spec"]["containers"][0].get("ports", []) for each in pods]
    assert [ADDED in each for each in ports].count(True) == 1


def test_the_template_of_the_docs_names_the_port():
    (block,) = run_by("tests/controllers/test_metrics_port.py::test_the_template_of_the_docs_names_the_port")
    spec = yaml.safe_load(block.text)
    (container,) = spec["containers"]
    assert metrics_port(container) == container["ports"][0]["containerPort"]
    assert with_metrics_port(spec) == spec


def test_the_charts_podmonitor_scrapes_the_name_that_we_add():
    values = yaml.safe_load((ROOT / "deploy/charts/turnout/values.yaml").read_text())
    assert values["monitoring"]["launchers"]["port"] == PORT_NAME
