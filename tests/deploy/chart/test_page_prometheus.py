"""The chart lets the page ask a Prometheus, and nobody else."""

import pytest

from tests.deploy.chart.test_rendered import named, rendered

pytestmark = pytest.mark.real


@pytest.mark.parametrize(("url", "port"), [
    pytest.param("http://prometheus.monitoring.svc:9090", 9090, id="a port"),
    pytest.param("https://metrics.example.com/tenant:7", 443, id="https without a port, a path with a number"),
    pytest.param("http://[::1]/", 80, id="an IPv6 address without a port"),
    pytest.param("http://[::1]:9091", 9091, id="an IPv6 address with a port"),
    pytest.param("", None, id="no Prometheus"),
])  # fmt: skip
def test_the_page_may_reach_its_prometheus(url, port):
    chosen = {"page.prometheusUrl": url, "page.prometheusCluster": "east"} if url else {}
    found = rendered({"page.enabled": "true", **chosen})
    (container,) = named(found, "Deployment", "turnout-page")["spec"]["template"]["spec"]["containers"]
    assert (f"--prometheus-url={url}" in container["args"]) == bool(url)
    assert ("--prometheus-cluster=east" in container["args"]) == bool(url)
    _, *more = named(found, "NetworkPolicy", "turnout-page")["spec"]["egress"]
    assert more == ([{"ports": [{"protocol": "TCP", "port": port}]}] if url else [])
    _, *others = named(found, "NetworkPolicy", "turnout-autoscaler")["spec"]["egress"]
    assert others == []
