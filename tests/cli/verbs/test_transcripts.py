"""Each verb prints what docs/cli.md says that it prints, and the tables of the page are those of the program."""

import argparse
import re

import pytest
import pytest_asyncio

from hack.lint.code_blocks import run_by
from tests.cli.verbs.transcripts import PAGE, commands, scene, still, typed
from turnout.cli.__main__ import parser
from turnout.cli.exit_codes import MEANS

TYPED = commands(run_by("tests/cli/verbs/test_transcripts.py::test_the_page_tells_what_a_command_prints"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def config(tmp_path_factory):
    async with scene(tmp_path_factory.mktemp("transcripts")) as scene_config:
        yield scene_config


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("command", "printed"), TYPED, ids=[command for command, _ in TYPED])
async def test_the_page_tells_what_a_command_prints(command, printed, config):
    assert still(await typed(command, config)) == still(printed)


def test_the_page_has_the_table_of_exit_codes():
    for code, means in MEANS.items():
        assert f"| {int(code)} | {means} |" in PAGE.read_text()


def test_the_page_names_every_verb():
    (found,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    offered = {each.dest for each in found._choices_actions if each.help is not argparse.SUPPRESS}
    verbs_of_page = set(
        re.findall(r"`([a-z-]+)", "".join(re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE)))
    )
    assert offered - verbs_of_page - {"check"} == set()
