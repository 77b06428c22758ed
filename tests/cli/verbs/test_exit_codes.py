"""Every verb ends with a code of the one table, and says in a line why."""

import argparse
import ast
import json
from pathlib import Path

import pytest

from turnout.cli import exit_codes
from turnout.cli.__main__ import COMMANDS, main, parser
from turnout.cli.exit_codes import MEANS, ExitCode
from turnout.cli.verbs.version import component_lines
from turnout.kube.version import installed_build

CLI = Path(exit_codes.__file__).parent
JOB = "PyTorchJob/team-a/bert"
# Verbs that ask an API server, with as little as each takes.
ASKING = [
    ["jobs"],
    ["describe", JOB],
    ["logs", JOB],
    ["suspend", JOB],
    ["unsuspend", JOB],
    ["submit", "--name", "a", "--image", "i"],
    ["pause", JOB],
    ["resume", JOB],
    ["why", "bert"],
    ["page", "--port", "0"],
    ["queues"],
    ["top"],
    ["topology"],
    ["explain", "2x8"],
    ["history", "bert"],
    ["goodput", JOB],
    ["nodes"],
    ["nodes", "untaint", "n1"],
    ["clear-nominations"],
    ["check"],
    ["release", "--all"],
]
# Verbs that ask none, or start their own.
ALONE = {"demo", "preprocess", "stacks", "local", "completion", "simulate", "usage", "version"}
USAGE = [
    ["explain", "2y8"],
    ["explain", "2x8", "--selector", "gpu"],
    ["queues", "--configmap", "no-namespace"],
    ["why", "bert", "--cooldown-s", "-1"],
    ["jobs", "-o", "xml"],
    ["top", "--by", "colour"],
    ["topology", "--svg", "-o", "json"],
    ["history"],
    ["pause", JOB, "--for", "soon"],
    ["describe", "Foo/bert"],
    ["describe", "BERT!"],
    ["logs", "a/b/c/d"],
    ["logs", "bert", "-f", "--previous"],
    ["logs", "bert", "--since", "yesterday"],
    ["goodput", "bert", "--since", "yesterday"],
    ["goodput", "a/b/c/d"],
    ["suspend", "Foo/team-a/bert"],
    ["unsuspend", "bert//x"],
    ["pause", "Foo/team-a/bert"],
    ["resume", "Bert"],
    ["why", "Foo/team-a/bert"],
    ["why", "PyTorchJob/team-a/bert", "-n", "team-b"],
    ["history", "b e r t"],
    ["explain", "4"],
    ["pause", "--all", "--orders", "no-namespace"],
    ["resume", "--all", "--orders", "a/b/c"],
    ["release", "--all", "--lease", "no-namespace"],
    ["release", "--all", "--if-unplaced"],
    ["submit", "--image", "i", "--name", "BERT", "--", "true"],
    ["submit", "--image", "i", "--name", "bert", "--workers", "0", "--", "true"],
    ["submit", "--image", "i", "--name", "bert", "--min", "0", "--", "true"],
    ["submit", "--image", "i", "--name", "bert", "--max", "0", "--", "true"],
    ["submit", "--image", "i", "--name", "bert", "--gpus", "-3", "--", "true"],
    ["nodes", "untaint", "GPU 7"],
    ["jobs", "--sort-by", "colour"],
    ["usage"],
    ["usage", "--decision-log", "log", "--by", "colour"],
    ["usage", "--decision-log", "log", "--since", "yesterday"],
    ["jobs", "--request-timeout", "soon"],
]
# Names of a job as kubectl takes them; each is taken by every verb that is about a job.
NAMED = [
    ["bert"],
    ["bert", "-n", "team-a"],
    ["pytorchjob/bert", "-n", "team-a"],
    ["pytorchjobs.kubeflow.org/bert"],
    [JOB],
]
ABOUT_A_JOB = ["describe", "logs", "suspend", "unsuspend", "pause", "resume", "why", "history", "goodput"]


def away(folder):
    """A kubeconfig that leads nowhere."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    (folder / "config").write_text(json.dumps(config))
    return str(folder / "config")


def verbs():
    """The names of all verbs."""
    (found,) = (each for each in parser()._actions if isinstance(each, argparse._SubParsersAction))
    return {each.dest for each in found._choices_actions}


def test_every_verb_is_in_this_table():
    assert {argv[0] for argv in ASKING} | ALONE >= verbs()


@pytest.mark.parametrize("argv", ASKING, ids=" ".join)
def test_without_an_api_server_a_verb_fails_in_a_line(argv, tmp_path, capsys):
    more = ["--", "true"] if argv[0] == "submit" else []
    assert main([*argv, "--kubeconfig", away(tmp_path), *more]) == ExitCode.FAILED
    out, complaint = capsys.readouterr()
    assert out == ""
    assert complaint.startswith(f"turnout {argv[0]}")
    assert complaint.count("\n") == 1


@pytest.mark.parametrize("text", ["hello", "contexts: 5", "- a", "{", "\0", "contexts: [{name: a, context: text}]"])
def test_a_malformed_kubeconfig_is_a_failure_in_one_line(text, tmp_path, capsys):
    (tmp_path / "config").write_text(f"{text}\ncurrent-context: a" if "name" in text else text)
    assert main(["why", "bert", "--kubeconfig", str(tmp_path / "config")]) == ExitCode.FAILED
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"turnout why: {tmp_path / 'config'} cannot be used: ")
    assert complaint.count("\n") == 1


@pytest.mark.parametrize("argv", [*ASKING, ["version"]], ids=" ".join)
def test_without_a_kubeconfig_a_verb_says_what_to_do_next(argv, tmp_path, capsys, caplog):
    more = ["--", "true"] if argv[0] == "submit" else []
    assert main([*argv, "--kubeconfig", str(tmp_path / "none"), *more]) == ExitCode.FAILED
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert f"there is no kubeconfig {tmp_path / 'none'}" in complaint
    assert "turnout local up" in complaint
    assert not caplog.records


def test_without_words_the_help_lists_every_command_once(capsys):
    assert main([]) == ExitCode.DONE
    lists, _ = capsys.readouterr().out.split("\nexamples:\n")
    assert sorted(line.split()[0] for line in lists.splitlines() if line.startswith("  ")) == sorted(COMMANDS)


def test_the_help_of_all_has_the_exit_codes(capsys):
    assert main([]) == ExitCode.DONE
    out = capsys.readouterr().out
    for code, means in MEANS.items():
        assert f"  {int(code):<4}{means}\n" in out


def parsers_of(top, words=()):
    """Each command with the words that lead to it, and its parser."""
    for found in (each for each in top._actions if isinstance(each, argparse._SubParsersAction)):
        for name, subparser in found.choices.items():
            yield (*words, name), subparser
            yield from parsers_of(subparser, (*words, name))


@pytest.mark.parametrize("words", [words for words, _ in parsers_of(parser()) if words != ("explain",)], ids=" ".join)
def test_a_help_says_what_the_command_does_and_shows_it(words):
    command_parser = dict(parsers_of(parser()))[words]
    help_text = command_parser.format_help()
    assert command_parser.description
    _, examples = help_text.split("\nexamples:\n")
    assert f"  turnout {' '.join(words)}" in examples
    assert "exit codes: " in examples


@pytest.mark.parametrize("verb", ABOUT_A_JOB)
@pytest.mark.parametrize("named", NAMED, ids=" ".join)
def test_a_job_is_named_as_kubectl_names_it(verb, named, tmp_path, capsys):
    assert main([verb, *named, "--kubeconfig", away(tmp_path)]) == ExitCode.FAILED
    assert "127.0.0.1:9" in capsys.readouterr().err, "the cluster was asked"


@pytest.mark.parametrize(
    ("word", "says"),
    [
        pytest.param("queus", "did you mean `turnout queues`?", id="a slip of the fingers"),
        pytest.param("frobnicate", "`turnout` lists all", id="a word like no command"),
    ],
)
def test_an_unknown_command_is_answered_in_one_line(word, says, capsys):
    assert main([word]) == ExitCode.USAGE
    complaint = capsys.readouterr().err
    assert complaint.count("\n") == 1
    assert says in complaint


def test_the_version_of_this_program_needs_no_cluster(capsys):
    assert main(["version", "--client"]) == ExitCode.DONE
    assert capsys.readouterr().out == f"turnout     {installed_build()}\n"


def test_the_version_of_each_installed_part_is_told_with_its_namespace():
    def deployment(component, version):
        marks = {"app.kubernetes.io/component": component, "app.kubernetes.io/version": version}
        return {"metadata": {"name": f"turnout-{component}", "namespace": "turnout-system", "labels": marks}}

    parts = [deployment("nominator", "0.1.0"), deployment("autoscaler", "0.0.9")]
    assert component_lines(parts) == ["autoscaler  0.0.9 in turnout-system", "nominator   0.1.0 in turnout-system"]


@pytest.mark.parametrize("argv", USAGE, ids=" ".join)
def test_what_makes_no_sense_is_usage_before_anybody_is_asked(argv, tmp_path, capsys):
    try:
        code = main([*argv[:1], "--kubeconfig", away(tmp_path), *argv[1:]])
    except SystemExit as ended:
        code = ended.code
    assert code == ExitCode.USAGE
    complaint = capsys.readouterr().err
    assert "127.0.0.1:9" not in complaint
    assert complaint.count("\n") == 1


def test_no_module_has_numbers_of_its_own():
    """A verb returns a name of the table, or what another function returned, or 0."""
    for path in sorted(
        {*CLI.glob("verbs/*.py"), *CLI.glob("verb_support/*.py"), CLI / "__main__.py", CLI / "programs.py"}
    ):
        tree = ast.parse(path.read_text())
        for function in (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)):
            if not isinstance(function.returns, ast.Name) or function.returns.id not in ("int", "Exit"):
                continue
            if function.name in ("_gangs",):  # reads a number
                continue
            for each in (each for each in ast.walk(function) if isinstance(each, ast.Return)):
                literal = each.value.value if isinstance(each.value, ast.Constant) else 0
                assert literal == 0, f"{path.name}:{each.lineno}: a code of its own"


def test_the_table_says_what_every_code_means():
    assert set(MEANS) == set(ExitCode)
    assert len(set(MEANS.values())) == len(MEANS)
