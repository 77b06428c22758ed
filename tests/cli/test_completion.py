"""`turnout completion`: shells can read what it prints, and bash completes by it."""

import subprocess

import pytest

from turnout.cli.__main__ import SHELLS, main

PROBE = """
source "$1"
COMP_WORDS=(turnout "${@:2}")
COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
_shtab_turnout turnout "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    file = tmp_path_factory.mktemp("completion") / "turnout"
    with pytest.MonkeyPatch.context() as patch, file.open("w") as out:
        patch.setattr("sys.stdout", out)
        assert main(["completion", "bash"]) == 0
    return file


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        pytest.param(["lo"], {"local", "logs"}, id="a command"),
        pytest.param(["local", ""], {"up", "down", "status"}, id="the verbs of a command"),
        pytest.param(["local", "up", "--no"], {"--nodes", "--no-extender"}, id="an option of a verb"),
        pytest.param(["ya"], {""}, id="nothing where no command begins so"),
        pytest.param(["demo", "--part", "le"], {"lending"}, id="a choice of an option"),
    ],
)
def test_bash_completes(script, typed, offered):
    argv = ["bash", "--norc", "-c", PROBE, "probe", str(script), *typed]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert set(done.stdout.split("\n")[:-1]) == offered


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_a_script_that_names_the_verbs(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    verbs = ("local", "untaint", "queues", "top", "topology", "explain", "history", "simulate")
    assert all(verb in script for verb in verbs)


def test_another_shell_is_usage(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["completion", "elvish"])
    assert ended.value.code == 2
    assert "invalid choice" in capsys.readouterr().err
