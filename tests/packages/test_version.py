"""turnout_build_info: every service of ours says on its page which build it is."""

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from turnout.autoscaler.controller.metrics import Metrics as Autoscaler
from turnout.cli.page.metrics import PageMetrics
from turnout.controllers.runtime.controller import Metrics as Controller
from turnout.kube.version import Build, installed_build
from turnout.scheduler_ext.server.metrics import Metrics as Extender


@pytest.mark.parametrize(
    ("component", "page"),
    [
        pytest.param("extender", lambda: Extender().page(), id="the extender"),
        pytest.param("nominator", lambda: Extender("nominator").page(), id="the nominator"),
        pytest.param("autoscaler", lambda: Autoscaler("nvidia.com/gpu").page(), id="the autoscaler"),
        pytest.param("page", lambda: PageMetrics(float, int).page(), id="the page"),
        pytest.param("controller", lambda: Controller(int).page(), id="the job controllers"),
    ],
)
def test_a_service_tells_its_build_on_its_page(component, page):
    (info,) = [family for family in families(page().decode()) if family.name == "turnout_build_info"]
    (sample,) = info.samples
    assert (sample.labels, sample.value) == (
        {"component": component, "version": installed_build().version, "commit": installed_build().commit},
        1,
    )


@pytest.mark.parametrize(
    ("build", "text"),
    [
        pytest.param(Build("0.1.0"), "0.1.0", id="a release"),
        pytest.param(Build("0.1.0", "5af553b1d5a7c8e2"), "0.1.0 (5af553b1d5a7)", id="a commit"),
        pytest.param(installed_build("no-such-package"), "0+unknown", id="nothing that pip installed"),
    ],
)
def test_a_build_is_told_as(build, text):
    assert str(build) == text
