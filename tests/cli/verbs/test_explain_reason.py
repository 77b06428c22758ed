"""`turnout explain WORD`: a reason is explained without a cluster, and a gang is still a gang."""

import pytest

from turnout.cli.__main__ import main
from turnout.cli.exit_codes import ExitCode
from turnout.kube.reasons import WORDS, explain


@pytest.mark.parametrize("word", sorted(WORDS))
def test_every_reason_is_printed_without_a_cluster(word, capsys):
    assert main(["explain", word, "--kubeconfig", "/nowhere"]) == ExitCode.DONE
    assert capsys.readouterr().out.splitlines() == explain(word)


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        pytest.param("NoRom", "did you mean NoRoom?", id="a slip"),
        pytest.param("Zzzz", "docs/reference/reasons.md lists all", id="a word that is like none"),
    ],
)
def test_a_word_that_no_program_uses_ends_with_2(word, hint, capsys):
    assert main(["explain", word, "--kubeconfig", "/nowhere"]) == ExitCode.USAGE
    assert hint in capsys.readouterr().err


def test_what_begins_with_a_number_is_a_gang(capsys):
    assert main(["explain", "4y8", "--kubeconfig", "/nowhere"]) == ExitCode.USAGE
    assert "PODSxGPUS" in capsys.readouterr().err
