"""Code blocks of the docs: each is run or says why not; and what of them needs no cluster is run here."""

import ast
import importlib
import re
import shlex
from contextlib import suppress

import msgspec
import pytest
import yaml

from hack.lint import code_blocks
from hack.lint.code_blocks import Block, blocks, every_block, fault, run_by
from turnout.autoscaler import settings as autoscaler
from turnout.cli.__main__ import parser as cli_parser
from turnout.controllers import settings as controllers
from turnout.jobs.gang import membership
from turnout.kube import labels
from turnout.kube.objects import Container, Pod, PodSpec
from turnout.launcher.cli import to_settings
from turnout.launcher.settings import Settings as AgentSettings
from turnout.scheduler_ext import nominator
from turnout.scheduler_ext import settings as extender
from turnout.scheduler_ext.server.requests import Verb
from turnout.topology import names
from turnout.topology.map_formats import read_map

HERE = "tests/docs/test_code_blocks.py"


def ids(found):
    return [block.place for block in found]


def test_every_code_block_is_run_or_says_why_not():
    assert {block.place: why for block in every_block() if (why := fault(block))} == {}


def test_every_code_block_has_a_fence_that_is_read():
    assert [why for path, text in code_blocks.pages().items() for why in code_blocks.other_fences(path, text)] == []


def test_fences_of_other_forms_are_faults():
    text = "~~~sh\nrm x\n~~~\n\n```sh\n~~~\n```\n\n````md\nq\n````\n"
    assert [block.line for block in blocks("a.md", text)] == [5]
    assert [why.split(": ")[0] for why in code_blocks.other_fences("a.md", text)] == [
        "a.md:1",
        "a.md:3",
        "a.md:9",
        "a.md:11",
    ]


MAPS = "tests/docs/test_code_blocks.py::test_a_map_on_a_page_has_no_faults"


@pytest.mark.parametrize(
    ("comments", "why"),
    [
        pytest.param(("not run: it needs a GPU",), "", id="a reason"),
        pytest.param((f"run by: {MAPS}",), "", id="a test that reads it"),
        pytest.param(("EKS", f"run by: {MAPS}"), "", id="another comment before"),
        pytest.param((), "needs", id="nothing"),
        pytest.param(("not run: ",), "needs", id="an empty reason"),
        pytest.param((f"run by: {MAPS}", "not run: it needs a GPU"), "needs", id="both"),
        pytest.param(("run by: tests/no.py::test_a",), "tests/no.py does not exist", id="no such file"),
        pytest.param((f"run by: {HERE}::test_none",), "has no test_none", id="no such test"),
        pytest.param(
            (f"run by: {HERE}::test_where_blocks_begin",), "does not call run_by", id="a test that reads none"
        ),
    ],
)
def test_what_is_wrong_with_the_comment_of_a_block(comments, why):
    found = fault(Block("docs/jobs.md", 3, "sh", "x\n", comments))
    assert why in found
    assert bool(found) is bool(why)


@pytest.mark.parametrize(
    ("page", "found"),
    [
        pytest.param("a\n\n```sh\nls\n```\n", [(3, "sh", "ls\n", ())], id="no comment"),
        pytest.param("<!-- one -->\n<!-- two -->\n```\nx\n```\n", [(3, "", "x\n", ("one", "two"))], id="two comments"),
        pytest.param(
            "<!-- far -->\n\n```\nx\n```\n", [(3, "", "x\n", ())], id="a comment further up is of something else"
        ),
        pytest.param("- a\n\n  ```yaml\n  a: 1\n  ```\n", [(3, "yaml", "  a: 1\n", ())], id="in a list"),
        pytest.param("```\na\n```\n```\nb\n```\n", [(1, "", "a\n", ()), (4, "", "b\n", ())], id="two blocks"),
    ],
)
def test_where_blocks_begin(page, found):
    fields_of_blocks = [(each.line, each.language, each.text, each.comments) for each in blocks("jobs.md", page)]
    assert fields_of_blocks == found


def test_a_block_that_no_page_has_cannot_be_run():
    with pytest.raises(LookupError):
        run_by("tests/docs/test_code_blocks.py::test_nothing")


MAP_BLOCKS = run_by("tests/docs/test_code_blocks.py::test_a_map_on_a_page_has_no_faults")


@pytest.mark.parametrize("block", MAP_BLOCKS, ids=ids(MAP_BLOCKS))
def test_a_map_on_a_page_has_no_faults(block):
    if "kind: ConfigMap" in block.text:
        reading = read_map(yaml.safe_load(block.text)["data"])
    else:
        key = names.YAML_KEY if block.language == "yaml" else names.TEXT_KEY
        reading = read_map({key: block.text})
    assert reading.faults == ()
    assert reading.entries


GANG_BLOCKS = run_by("tests/docs/test_code_blocks.py::test_objects_on_a_page_are_a_gang")


@pytest.mark.parametrize("block", GANG_BLOCKS, ids=ids(GANG_BLOCKS))
def test_objects_on_a_page_are_a_gang(block):
    objects = {each["kind"]: each for each in yaml.safe_load_all(block.text)}
    gang = membership(msgspec.convert(objects["Pod"], Pod, strict=False))
    assert gang.faults == ()
    assert gang.key.name == "bert"
    minimum = objects["PodGroup"]["spec"]["minMember"] if "PodGroup" in objects else gang.min_members
    assert gang.min_members == minimum
    ours = {name for name in objects["Pod"]["metadata"]["annotations"] if name.startswith(f"{labels.PREFIX}/")}
    assert ours <= labels.NAMES


@pytest.mark.parametrize(
    "block",
    run_by("tests/docs/test_code_blocks.py::test_a_pod_spec_on_a_page_can_be_read"),
    ids=lambda block: block.place,
)
def test_a_pod_spec_on_a_page_can_be_read(block):
    spec = msgspec.convert(yaml.safe_load(block.text)["spec"], PodSpec, strict=False)
    assert spec.containers
    mounted = {
        mount["name"] for each in yaml.safe_load(block.text)["spec"]["containers"] for mount in each["volumeMounts"]
    }
    assert mounted == {volume["name"] for volume in spec.volumes}


@pytest.mark.parametrize(
    "block",
    run_by("tests/docs/test_code_blocks.py::test_a_container_on_a_page_can_be_read"),
    ids=lambda block: block.place,
)
def test_a_container_on_a_page_can_be_read(block):
    document = yaml.safe_load(block.text)
    assert msgspec.convert(document, Container, strict=False) is not None
    command = document.get("command") or document["lifecycle"]["preStop"]["exec"]["command"]
    assert command[:2] == ["bash", "-c"]
    assert "turnout-run" in command[2]


def test_volcanos_file_names_verbs_that_are_served():
    (block,) = run_by("tests/docs/test_code_blocks.py::test_volcanos_file_names_verbs_that_are_served")
    plugins = [plugin for tier in yaml.safe_load(block.text)["tiers"] for plugin in tier["plugins"]]
    (arguments,) = [plugin["arguments"] for plugin in plugins if plugin["name"] == "extender"]
    verbs = {value for key, value in arguments.items() if key.endswith("Verb")}
    assert len(verbs) == 3
    assert {f"volcano/{verb}" for verb in verbs} <= {verb.value for verb in Verb}
    assert arguments["extender.urlPrefix"].endswith("/volcano")


class Ended(Exception):
    """Ends a loop that goes on for as long as the job trains."""


def three_steps():
    steps = []

    def train(step):
        steps.append(step)
        if len(steps) == 3:
            raise Ended

    return steps, train


@pytest.mark.parametrize(
    "block",
    run_by("tests/docs/test_code_blocks.py::test_the_lines_of_steps_run_without_an_agent"),
    ids=lambda block: block.place,
)
def test_the_lines_of_steps_run_without_an_agent(block):
    from turnout import Steps

    met, train = three_steps()
    evaluated = []
    names = {"start": 7, "train": train, "save": None, "steps": Steps(), "evaluate": lambda: evaluated.append(1)}
    with suppress(Ended):
        exec(block.text, names)
    assert (met, evaluated) in (([7, 8, 9], []), ([], [1]))


NOT_RUN = [block for block in every_block() if block.not_run and block.language == "python"]


@pytest.mark.parametrize("block", NOT_RUN, ids=ids(NOT_RUN))
def test_python_that_is_not_run_names_what_is_there(block):
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module == "turnout":
            module = importlib.import_module("turnout")
            assert [each.name for each in node.names if each.name not in module.__all__] == []


PARSERS = {
    "turnout-extender": extender.parser,
    "turnout-nominator": nominator.parser,
    "turnout-autoscaler": autoscaler.parser,
    "turnout-controller": controllers.parser,
}


def commands_of(block):
    """The command lines of ours in a shell block, as words: comments left out, continued lines joined."""
    text = re.sub(r"\\\n", " ", block.text)
    typed = re.findall(r"^\$ (.*)$", text, re.M) if block.language == "console" else text.splitlines()
    for line in typed:
        if re.match(r"(\.venv/bin/)?(turnout(-\w+)?|python -m hack\.\w+) ?", line):
            yield re.split(r" [|&>] ?", line.partition(" #")[0])[0]


LINES = [(block.place, line) for block in every_block() for line in commands_of(block)]


@pytest.mark.parametrize(("place", "line"), LINES, ids=[f"{place} {line}" for place, line in LINES])
def test_a_command_line_of_ours_is_one_that_the_program_takes(place, line):
    program, *words = shlex.split(line)
    if program == "turnout-run":
        assert isinstance(to_settings.read(words, {}), AgentSettings), to_settings.read(words, {})
    elif program in PARSERS:
        PARSERS[program]().parse_args(words)
    elif program == "turnout":
        cli_parser(words[0]).parse_args(words)
    else:
        assert words[1].startswith("hack.")


def test_the_list_counts_every_block(capsys):
    assert code_blocks.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(every_block()) + 1
    assert lines[-1].startswith(f"{len(every_block())} blocks: ")
