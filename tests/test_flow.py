"""`hack.lint.flow` counts what a real question passes."""

import threading

import pytest

from hack.lint.flow import Recorder, flows, main
from turnout.kube.pod_shape import base_units


def test_a_gang_is_planned_once_and_its_later_questions_pass_less():
    planned, found = flows("filter")
    assert len(found.modules) < len(planned.modules)
    assert "kube/pod_shape.py" in planned.modules
    assert planned.calls > found.calls >= found.functions > 0
    assert planned.depth > 1


def test_a_decision_passes_the_view_and_the_phases():
    (flow,) = flows("decide")
    assert {"autoscaler/cache.py", "autoscaler/decide.py"} <= set(flow.modules)


def test_calls_of_other_threads_and_only_those_while_recording_count():
    recorder = Recorder()
    recorder.install()
    try:
        base_units("1Gi")
        with recorder.record():
            thread = threading.Thread(target=base_units, args=("1234567Ki",))
            thread.start()
            thread.join()
    finally:
        recorder.remove()
    flow = recorder.flow("another thread")
    assert flow.modules == ("kube/pod_shape.py",)
    assert flow.calls >= 1


def test_the_table_has_a_line_for_each_question(capsys):
    assert main(["filter", "--modules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines if line.startswith("filter")] == ["filter", "filter"]
    assert "  kube/pod_shape.py" in lines


@pytest.mark.parametrize("words", [[], ["save", "nothing"]], ids=["no question", "an unknown one"])
def test_without_a_known_question_usage_is_printed(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
