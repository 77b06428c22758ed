"""Which programs of the control plane are built for which tests."""

from __future__ import annotations

import pytest

from hack.controlplane.tools.parts import NEXT
from tests.kit.needed_parts import KUBERNETES, ROOT, imported, needed


@pytest.mark.parametrize(
    ("fixtures", "release", "text", "parts"),
    [
        pytest.param([], "", "x = 1\n", set(), id="nothing"),
        pytest.param([], "", 'cache.binary("helm")', {"helm"}, id="a program that the module names"),
        pytest.param([], "", 'cache.binary("vim")', set(), id="a program that is no part of ours"),
        pytest.param([], "", "plane.start_kwok()", {"kwok"}, id="a method that starts one"),
        pytest.param(["control_plane"], "", "", set(KUBERNETES), id="a control plane"),
        pytest.param(
            ["control_plane"],
            NEXT,
            "",
            {*KUBERNETES, f"kube-apiserver{NEXT}", f"kube-scheduler{NEXT}"},
            id="a control plane of the newer Kubernetes",
        ),
    ],
)
def test_what_one_test_needs(fixtures, release, text, parts):
    assert needed(fixtures, release, [text]) == parts


@pytest.mark.parametrize(
    ("module", "found"),
    [
        pytest.param("tests/deploy/chart/test_readme.py", "hack/chaos/chart/world.py", id="through an import"),
        pytest.param("tests/e2e/test_gang_lands.py", "tests/e2e/stage.py", id="from a neighbour"),
    ],
)
def test_helpers_of_a_test_count_too(module, found):
    assert ROOT / found in set(imported(ROOT / module))
