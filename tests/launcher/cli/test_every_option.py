"""The table of options is true: each changes what it names, or is told to do nothing, however it is written."""

import re
from pathlib import Path

import pytest

from turnout.launcher.cli.help import EXITS, SHELLS, WARNINGS, completion_script, flatten_settings, markdown, usage
from turnout.launcher.cli.options import Effect, Origin
from turnout.launcher.cli.parser import KEYS, OPTIONS
from turnout.launcher.cli.to_settings import CommandAnswer, read
from turnout.launcher.model import Exit
from turnout.launcher.settings import NoteSubject, Settings

PAGE = Path(__file__).resolve().parents[3] / "docs/launcher-options.md"
THREE = ("--nnodes=3",)  # most options say something of workers that have to meet
BASES = {
    "standalone": (),
    "nnodes": ("--rdzv-endpoint=h:1", "--rdzv-id=j", "--arbiter=none"),
    "exclude-straggler": (*THREE, "--network-check"),
    "node-verdicts": (*THREE, "--network-check"),
    "switchbox-check": (*THREE, "--network-check"),
    "comm-perf-test": (*THREE, "--network-check"),
}
SETTING = [option for option in OPTIONS if not option.prints_page]


def by_name(options):
    return pytest.mark.parametrize("option", options, ids=[option.name for option in options])


def settings(argv, environ=None):
    found = read([*argv, "train.py"], environ or {})
    assert isinstance(found, Settings), found.text
    return found


def given(option, string=None):
    string = string or option.strings[0]
    return [string] if option.flag else [string, option.example]


def changed(after, before):
    usual = dict(flatten_settings(before))
    return {name for name, value in flatten_settings(after) if value != usual[name]}


@by_name(SETTING)
def test_an_option_changes_the_fields_that_the_table_names_and_no_other(option):
    base = BASES.get(option.name, THREE)
    before, after = settings(base), settings([*base, *given(option)])
    assert changed(after, before) == set(option.sets)
    options_of_notes = {note.about for note in after.notes if note.word is NoteSubject.NO_EFFECT}
    assert options_of_notes == ({option.strings[0]} if option.effect is Effect.NONE else set())


@pytest.mark.contract("DL-39")
@by_name(SETTING)
def test_an_option_is_meant_alike_in_each_of_its_spellings(option):
    base = BASES.get(option.name, THREE)
    first = dict(flatten_settings(settings([*base, *given(option)])))
    long = [string for string in option.strings if string.startswith("--")]
    lines = [given(option, string) for string in [*option.strings, *(s[:2] + s[2:].replace("-", "_") for s in long)]]
    if not option.flag:
        lines += [[f"{string}={option.example}"] for string in option.strings]
        lines += [[f"-{option.short}{option.example}"]] if option.short else []
    assert [line for line in lines if dict(flatten_settings(settings([*base, *line]))) != first] == []


@pytest.mark.contract("DL-113")
@by_name(SETTING)
def test_an_option_is_read_from_each_of_its_variables(option):
    base = BASES.get(option.name, THREE)
    first = dict(flatten_settings(settings([*base, *given(option)])))
    for variable in option.variables:
        # A pod's own name says its number as well.
        found = dict(flatten_settings(settings(base, {variable: option.example or "1"})))
        named = {"POD_NAME": ("place.order", "rendezvous.host")}.get(variable, ())
        assert {name for name in first if found[name] != first[name]} == set(named), variable


@by_name(SETTING)
def test_an_empty_variable_never_fails(option):
    flags = ["--standalone"] if option.name == "standalone" else []
    assert changed(settings([], {option.variables[0]: ""}), settings(flags)) == set()


@by_name([option for option in SETTING if option.flag])
def test_a_flag_is_off_when_its_variable_is_0_and_the_line_is_stronger(option):
    base = BASES.get(option.name, THREE)
    assert changed(settings(base, {option.variables[0]: "0"}), settings(base)) == set()
    assert changed(settings([*base, *given(option)], {option.variables[0]: "0"}), settings(base)) == set(option.sets)


@by_name([option for option in SETTING if option.choices])
def test_each_choice_is_taken_and_another_one_refused(option):
    line = [*THREE, "--lease=a/b", "--round-dir=/x", "--master-addr=h"]
    for choice in option.choices:
        settings([*line, f"--{option.name}={choice}"])
    answer = read([f"--{option.name}=frogs", "train.py"], {})
    assert answer.exit is Exit.USAGE
    assert f"--{option.name} is 'frogs': one of {', '.join(option.choices)}" in answer.text


def test_asking_for_no_check_is_fine():
    assert not settings(["--precheck=0"], {"PET_NETWORK_CHECK": "0"}).checks.network


@pytest.mark.parametrize("key", KEYS, ids=[key.name for key in KEYS])
def test_an_rdzv_conf_key_changes_its_fields_or_is_told_to_do_nothing(key):
    after = settings([*THREE, f"--rdzv-conf={key.name}={key.example}"])
    assert changed(after, settings(THREE)) == set(key.sets)
    about = [str(note) for note in after.notes if note not in settings(THREE).notes]
    assert about == ([] if key.sets else [f"--rdzv-conf {key.name}: no effect here: {key.text}"])


def test_the_page_is_the_table():
    assert PAGE.read_text() == markdown()


def test_every_exit_code_and_warning_is_explained():
    assert set(EXITS) == set(Exit)
    assert set(WARNINGS) == set(NoteSubject)
    codes = re.findall(r"^\| (\d+) \| (\w+) \|", PAGE.read_text(), re.M)
    assert codes == [(str(code.value), code.name.lower()) for code in Exit]


def test_no_two_options_share_a_name_or_a_variable():
    strings = [string for option in OPTIONS for string in option.strings]
    variables = [variable for option in OPTIONS for variable in option.variables]
    assert len(set(strings)) == len(strings)
    assert len(set(variables)) == len(variables)
    assert {option.origin for option in OPTIONS} == set(Origin)


@pytest.mark.contract("DL-28")
@pytest.mark.parametrize("program", ["turnout-run", "dlrover-run"])
@pytest.mark.parametrize("line", [["--help"], ["-h"], ["--nnodes=2", "--help", "train.py"]], ids=" ".join)
def test_help_names_every_option_and_ends_with_0(line, program):  # DL-28
    answer = read(line, {}, program)
    assert answer == CommandAnswer(usage(program), Exit.DONE)
    assert answer.text.startswith(f"usage: {program} ")
    options_of_help = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", answer.text))
    assert {string for option in OPTIONS for string in option.strings} <= options_of_help
    assert {f"  {key.name}" for key in KEYS} <= set(answer.text.splitlines())


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_script_knows_every_option(shell):
    answer = read(["--print-completion", shell], {})
    assert answer == CommandAnswer(completion_script(shell, "turnout-run"), Exit.DONE)
    assert [option.name for option in OPTIONS if option.name not in answer.text] == []


def test_a_page_is_only_for_who_types_it():
    assert {option.name for option in OPTIONS if option.prints_page} == {"help", "print-completion", "version"}
    assert settings([], {"PET_HELP": "1", "PET_PRINT_COMPLETION": "frogs", "TURNOUT_HELP": "1"})
