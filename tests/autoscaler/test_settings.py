"""The settings of the autoscaler that nothing else tests."""

import pytest

from turnout.autoscaler.settings import read_settings


@pytest.mark.parametrize("label", ["owner", "example.com/owner", "a.b/c_d", "a/" + "x" * 63])
def test_the_label_of_owners(label):
    assert read_settings(["--owner-label", label]).owner_label == label


@pytest.mark.parametrize("label", ["two words", "a/b/c", "a..b/x", "/owner", "owner/", "a/" + "x" * 64])
def test_a_key_that_no_label_has_is_refused(label, capsys):
    with pytest.raises(SystemExit) as ended:
        read_settings(["--owner-label", label])
    assert ended.value.code == 2
    assert "--owner-label" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["inf", "nan", "-1"])
def test_a_cooldown_is_finite_and_not_negative(value, capsys):
    with pytest.raises(SystemExit):
        read_settings([f"--cooldown-s={value}"])
    assert "must be a finite number of at least 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        pytest.param("--configmap", "Team A/b?c", id="a ConfigMap with letters of a query"),
        pytest.param("--lease", "a /b", id="a namespace with a blank"),
        pytest.param("--lease", "a/b/c", id="three parts"),
        pytest.param("--lease", "a", id="no namespace"),
        pytest.param("--lease", "x" * 64 + "/b", id="a namespace of 64 characters"),
        pytest.param("--lease", "a/" + "x" * 254, id="a name of 254 characters"),
        pytest.param("--gpu-resource", "", id="an empty resource"),
        pytest.param("--schedulers", ",", id="no scheduler"),
    ],
)
def test_a_name_that_kubernetes_does_not_allow_is_refused(flag, value, capsys):
    with pytest.raises(SystemExit) as ended:
        read_settings([f"{flag}={value}"])
    assert ended.value.code == 2
    assert f"{flag} is" in capsys.readouterr().err


def test_a_name_may_have_dots_and_a_namespace_dashes():
    assert read_settings(["--lease=turnout-system/my.lease-1"]).lease == "turnout-system/my.lease-1"
