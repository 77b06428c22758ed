"""Readiness probes: what is asked, and what a row of answers means."""

import pytest

from turnout.simulator.processes.container_spec import Readiness, next_readiness, probe_of


def container(**probe):
    return {"name": "main", "ports": [{"name": "metrics", "containerPort": 9090}], "readinessProbe": probe}


@pytest.mark.parametrize(
    ("probe", "url"),
    [
        pytest.param({"path": "/readyz", "port": 80}, "http://127.0.0.9:80/readyz", id="a number"),
        pytest.param({"path": "readyz", "port": "metrics"}, "http://127.0.0.9:9090/readyz", id="the name of a port"),
        pytest.param({"port": 80, "scheme": "HTTPS"}, "https://127.0.0.9:80/", id="TLS, and no path"),
        pytest.param({"port": 80, "host": "127.0.0.1"}, "http://127.0.0.1:80/", id="another host"),
    ],
)
def test_the_address_that_is_asked(probe, url):
    assert probe_of(container(httpGet=probe)).url("127.0.0.9") == url


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param({"name": "main"}, id="none"),
        pytest.param(container(exec={"command": ["true"]}), id="of another kind"),
        pytest.param(container(httpGet={"port": "nobody"}), id="of a port that has no number"),
    ],
)
def test_no_probe_is_asked_for(raw):
    assert probe_of(raw) is None


@pytest.mark.parametrize(
    ("answers", "ready"),
    [
        pytest.param("", False, id="not before the first answer"),
        pytest.param("g", True, id="at the first good one"),
        pytest.param("gbb", True, id="still after two bad ones"),
        pytest.param("gbbb", False, id="no more after three"),
        pytest.param("gbbgbb", True, id="bad ones count in a row"),
        pytest.param("gbbbg", True, id="again after a good one"),
    ],
)
def test_a_container_is_ready(answers, ready):
    probe = probe_of(container(httpGet={"port": 80}))
    found = Readiness()
    for each in answers:
        found = next_readiness(found, each == "g", probe)
    assert found.ready is ready


def test_as_many_good_answers_as_asked_for_make_it_ready():
    probe = probe_of(container(httpGet={"port": 80}, successThreshold=2))
    once = next_readiness(Readiness(), True, probe)
    assert (once.ready, next_readiness(once, True, probe).ready) == (False, True)
