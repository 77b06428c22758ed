"""The settings of the autoscaler that nothing else tests."""

import pytest

from turnout.autoscaler.settings import read_settings


@pytest.mark.parametrize("label", ["owner", "example.com/owner", "a.b/c_d", "a/" + "x" * 63])
def test_the_label_of_owners(label):
    assert read_settings(["--owner-label", label]).owner_label == label


@pytest.mark.parametrize("label", ["two words", "a/b/c", "/owner", "owner/", "a/" + "x" * 64])
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
