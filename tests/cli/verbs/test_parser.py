"""The parser of one command is the one that it has among all commands, and costs the imports of that one alone."""

import argparse
import subprocess
import sys

import pytest

from turnout.cli.__main__ import OWN, VERB_MODULES, parser

NAMES = [name for names, _ in VERB_MODULES for name in names]


def commands_of(top):
    """{command: its parser}."""
    (found,) = (each for each in top._actions if isinstance(each, argparse._SubParsersAction))
    return found.choices


def test_every_command_is_in_the_table_or_needs_no_import():
    assert commands_of(parser()).keys() == {*NAMES, *OWN}


@pytest.mark.parametrize("name", [*NAMES, *OWN])
def test_a_command_alone_is_parsed_as_among_all(name):
    single_parser, among_all = parser(name), parser()
    assert single_parser.format_usage() == among_all.format_usage()
    assert commands_of(single_parser)[name].format_help() == commands_of(among_all)[name].format_help()


@pytest.mark.parametrize("word", ["", "-h", "--version", "nothing"])
def test_whoever_names_no_command_gets_all_of_them(word):
    assert set(NAMES) <= commands_of(parser(word)).keys()


def test_asking_why_imports_no_other_command():
    code = "import sys; from turnout.cli.__main__ import parser; parser('why'); print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    why_modules = {module for names, module in VERB_MODULES if "why" in names}
    assert {module for _, module in VERB_MODULES} & set(process.stdout.split()) == why_modules
