"""The papers are true: links lead somewhere, targets and flags exist, words and metrics are those of the code."""

import ast
import difflib
import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from hack.bench.__main__ import names_of_benchmarks
from hack.codegen.reference import registries
from hack.lint.architecture import IO_MODULES, LAYERS
from hack.lint.code_blocks import run_by
from hack.lint.source_tree import definitions
from turnout.kube import labels
from turnout.kube.reasons import WORDS
from turnout.simulator.cluster import kubelet
from turnout.topology import names
from turnout.topology.map_formats import read_map
from turnout.topology.names import CONFIRMED_MAP_ANNOTATION

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for room in ("docs", "deploy", "examples") for page in ROOT.glob(f"{room}/**/*.md"))]
)
BY_NAME = {paper.relative_to(ROOT).as_posix(): paper for paper in PAGES}
EVERY_PAGE = pytest.mark.parametrize("paper", PAGES, ids=list(BY_NAME))
# These quote the commands, flags and files of guides and of other projects.
OWN = {
    name: paper
    for name, paper in BY_NAME.items()
    if not name.startswith(("docs/contract.md", "docs/guide-index.md", "docs/facts/"))
}
EVERY_PAGE_OF_OWN_WORDS = pytest.mark.parametrize("paper", OWN.values(), ids=list(OWN))

OF_PODS = {kubelet.RUNS_FOR, kubelet.EXIT_CODE, kubelet.IGNORES_TERM}
ELSEWHERE = {"venv", "pip", "pytest", "torch.distributed.run"}  # not ours, as `python -m` names them
# of our bench and CLI, of helm, kube-scheduler and kubectl
OTHER_PROGRAMS_FLAGS = {
    *("--quick", "--set", "--config", "--server-side", "--tail", "--follow", "--previous"),
    *("--nnodes", "--node_unit", "--min-np", "--max-np"),  # of torchrun, DLRover and Horovod
    "--json",  # of py-spy
    *("--num-executors", "--executor-cores"),  # of spark-submit
}
ANNOTATION = r"(?:\w+\.)?turnout\.dev/[a-z-]+"


def text(name):
    return BY_NAME[name].read_text()


def code(page):
    """Give what a reader may type or look up: fenced blocks and code spans."""
    fences = re.findall(r"^```[a-z]*\n(.*?)^```", page, re.M | re.S)
    rest = re.sub(r"^```.*?^```", "", page, flags=re.M | re.S)
    return "\n".join([*fences, *re.findall(r"`([^`\n]+)`", rest)])


def typed(console):
    """Return what is typed in a console block, without what programs answer."""
    lines = re.findall(r"^[$] (.*)$", console[1], re.M)
    return "\n".join(["```sh", *lines, "```"])


def anchors(page):
    headings = re.findall(r"^#+ +(.+?) *$", re.sub(r"^```.*?^```", "", page, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def yaml_blocks(page):
    for block in re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S):
        yield from yaml.safe_load_all(block)


@cache
def help_of(*command):
    environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    return done.stdout if done.returncode == 0 else ""


def flags(words):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", words))


@EVERY_PAGE
def test_every_link_leads_somewhere(paper):
    page = paper.read_text()
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked_file = (paper.parent / path).resolve() if path else paper
        if not linked_file.exists() or (anchor and anchor not in anchors(linked_file.read_text())):
            dead.append(target)
    assert dead == []


@EVERY_PAGE_OF_OWN_WORDS
def test_every_make_target_and_program_that_is_named_is_there(paper):
    code_of_page = code(re.sub(r"^```console\n(.*?)^```", typed, paper.read_text(), flags=re.M | re.S))
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?<![\w/-])make ([a-z][a-z-]*)", code_of_page)) - targets == set()
    for module in set(re.findall(r"python(?:3\.11)? -m ([\w.]+)", code_of_page)) - ELSEWHERE:
        spec = importlib.util.find_spec(module)
        assert spec is not None, module
        if spec.submodule_search_locations:
            assert importlib.util.find_spec(f"{module}.__main__"), module
    for name in set(re.findall(r"python -m hack\.bench ([a-z_]+)", code_of_page)):
        assert name in names_of_benchmarks()


@EVERY_PAGE_OF_OWN_WORDS
def test_every_command_of_turnout_that_is_named_is_there(paper):
    commands = re.findall(
        r"(?<![\w./-])(?<!from )(?<!--install )turnout ((?:[a-z]+(?:-[a-z]+)* ?)+)", code(paper.read_text())
    )
    assert [command for command in sorted(set(commands)) if not help_of("turnout.cli", *command.split())] == []


@EVERY_PAGE_OF_OWN_WORDS
def test_every_file_and_folder_that_is_named_is_there(paper):
    named = re.findall(
        r"(?<![\w./:~-])((?:[\w.-]+/)+(?:[\w.-]+\.(?:py|md|yaml|txt|cfg|toml))?)(?![\w/])", code(paper.read_text())
    )
    ours = {path for path in named if (ROOT / path.split("/", 1)[0]).exists()} - {"build/bench/"}
    assert sorted(path for path in ours if not (ROOT / path).exists()) == []


def test_the_picture_of_the_house_names_every_room():
    page = text("docs/architecture.md")
    rooms = {init.parent for floor in (*LAYERS, "hack") for init in (ROOT / floor).rglob("__init__.py")}
    small = {"hack/bench"}  # its own folders are named by its benchmarks
    paths = {room.relative_to(ROOT).as_posix() for room in rooms}
    paths = {path for path in paths if not any(path.startswith(f"{above}/") for above in small)}
    assert sorted(path for path in paths if f"{path}/" not in page) == []


def test_the_tables_of_the_architecture_say_what_may_do_io():
    rows = re.findall(r"^\| `([\w/]+)/` \|.*\| ([^|]*) \|$", text("docs/architecture.md"), re.M)
    io_packages = {folder.replace("/", ".") for folder, io in rows if "**I/O**" in io}
    io_packages |= {
        f"{folder.replace('/', '.')}.{name}" for folder, io in rows for name in re.findall(r"`(\w+)\.py`", io)
    }
    assert io_packages == set(IO_MODULES)


def test_ci_runs_the_test_command_of_the_readme():
    (block,) = run_by("tests/test_docs.py::test_ci_runs_the_test_command_of_the_readme")
    assert "the test command" in block.comments
    assert block.text == "make test\n"
    assert "<!-- the test command -->" in (ROOT / ".ci/run").read_text()


@EVERY_PAGE
def test_yaml_that_is_shown_can_be_used(paper):
    maps = [block for block in yaml_blocks(paper.read_text()) if block.get("kind") == "ConfigMap"]
    assert [read_map(block["data"]).faults for block in maps] == [()] * len(maps)


def test_both_forms_of_the_map_are_shown_to_an_admin():
    blocks = (block for block in yaml_blocks(text("docs/start/admin.md")) if block.get("kind") == "ConfigMap")
    assert {key for block in blocks for key in block["data"]} == {names.YAML_KEY}
    (lines,) = re.findall(r"topology\.txt <<'EOF'\n(.*?)EOF\n", text("README.md"), re.S)
    assert read_map({names.TEXT_KEY: lines}).faults == ()


def test_the_extender_block_for_admins_is_that_of_the_shipped_file():
    shipped = yaml.safe_load((ROOT / "deploy/scheduler/kube-scheduler-config.yaml").read_text())
    (block,) = run_by("tests/test_docs.py::test_the_extender_block_for_admins_is_that_of_the_shipped_file")
    shown = yaml.safe_load(block.text)
    assert shown["percentageOfNodesToScore"] == shipped["percentageOfNodesToScore"]
    (ours,), (theirs,) = shown["extenders"], shipped["extenders"]
    assert ours.items() <= theirs.items()


def test_the_notes_of_helm_agree_with_the_shipped_scheduler_file():
    shipped = yaml.safe_load((ROOT / "deploy/scheduler/kube-scheduler-config.yaml").read_text())["extenders"][0]
    notes = (ROOT / "deploy/charts/turnout/templates/NOTES.txt").read_text()
    for key in ("caFile", "certFile", "keyFile"):
        assert f"{key}: {shipped['tlsConfig'][key]}\n" in notes
    (devices,) = re.findall(r"range list (.*) }}", notes)
    assert devices.replace('"', "").split() == [each["name"] for each in shipped["managedResources"]]


def test_every_flag_is_told_and_every_told_flag_is_there():
    flags_of_programs = flags(help_of("turnout.scheduler_ext") + help_of("turnout.scheduler_ext.nominator")) - {
        "--help"
    }
    flags_of_page = flags(code(text("docs/extender.md")))
    assert flags_of_programs - flags_of_page == set()
    assert flags_of_page - flags_of_programs - OTHER_PROGRAMS_FLAGS == set()


@EVERY_PAGE_OF_OWN_WORDS
def test_no_paper_tells_a_flag_of_ours_that_is_not_there(paper):
    reference_pages = "".join(
        text(f"docs/{page}.md") for page in ("reference/flags", "reference/commands", "launcher-options")
    )
    flags_of_programs = flags(reference_pages + help_of("hack.bench"))
    # In the open, only flags of our own programs: those in shell blocks belong to anybody.
    spans = re.findall(r"`(--[a-z-]+)`", paper.read_text())
    assert set(spans) - flags_of_programs - OTHER_PROGRAMS_FLAGS == set()


def test_every_flag_of_the_job_controllers_is_told():
    page = text("docs/jobs.md")
    flags_of_program = flags(help_of("turnout.controllers")) - {"--help", "--kubeconfig", "--context", "--log-level"}
    assert flags_of_program - flags(code(page)) == set()


def test_every_flag_of_the_autoscaler_is_told():
    page = text("docs/autoscaler.md")
    flags_of_program = flags(help_of("turnout.autoscaler")) - {"--help"}
    assert flags_of_program
    assert flags_of_program - flags(code(page)) == set()


def test_every_reason_has_one_heading_on_one_page():
    headings = re.findall(r"^## (\w+)$", text("docs/reference/reasons.md"), re.M)
    assert sorted(headings) == sorted(WORDS)
    # The page by symptoms names the usual reasons of each symptom, and leads to the reference.
    own = ("docs/reference/reasons.md", "docs/troubleshooting.md")
    pages = {name: page for name, page in OWN.items() if name not in own}
    tables = {name: set(re.findall(r"^\| `([A-Z]\w+)` \|", page.read_text(), re.M)) for name, page in pages.items()}
    assert {name: sorted(found & WORDS) for name, found in tables.items() if len(found & WORDS) > 2} == {}


def test_every_flag_of_the_local_cluster_is_told():
    flags_of_program = flags(help_of("turnout.cli", "local", "up")) - {"--help"}
    assert flags_of_program
    assert flags_of_program - flags(code(text("docs/local-cluster.md"))) == set()


@cache
def metrics():
    pages = "".join(generate_latest(registry).decode() for registry in registries().values())
    return set(re.findall(r"^# TYPE (turnout_\w+) ", pages, re.M))


def test_every_metric_is_told():
    pages = ("extender", "autoscaler", "launcher", "jobs", "page")
    text_of_pages = "".join(text(f"docs/{page}.md") for page in pages)
    assert sorted(metrics() - set(re.findall(r"turnout_\w+", text_of_pages))) == []


@pytest.mark.contract("VE-09")
@EVERY_PAGE_OF_OWN_WORDS
def test_every_told_metric_is_there(paper):
    metrics_of_page = set(re.findall(r"`(turnout_\w+)`", paper.read_text()))
    assert sorted(metrics_of_page - metrics()) == []


@EVERY_PAGE_OF_OWN_WORDS
def test_every_told_annotation_is_ours(paper):
    ours = {value for value in vars(labels).values() if isinstance(value, str)} | {CONFIRMED_MAP_ANNOTATION} | OF_PODS
    assert set(re.findall(ANNOTATION, paper.read_text())) - ours == set()


def test_every_annotation_of_ours_is_told():
    ours = {value for value in vars(labels).values() if isinstance(value, str) and value.startswith("turnout.dev/")}
    pages = text("docs/start/admin.md") + text("docs/extender.md") + text("docs/autoscaler.md")
    annotations_of_pages = set(re.findall(ANNOTATION, pages))
    assert ours - annotations_of_pages == set()
    assert OF_PODS - set(re.findall(ANNOTATION, text("docs/local-cluster.md"))) == set()


@pytest.mark.contract("DL-124")
def test_koordinators_install_is_told_with_what_works_beside_it():
    page = text("docs/install-koordinator.md")
    code_of_page = code(page)
    for word in ("helm install koordinator koordinator-sh/koordinator", "imageRepositoryHost", "-n koordinator-system"):
        assert word in code_of_page, word
    go_mod = (ROOT / "hack/controlplane/modules/kube/go.mod").read_text()
    (kubernetes_version,) = re.findall(r"^\s*k8s\.io/kubernetes v([\d.]+)", go_mod, re.M)
    matrix = [line for line in page.splitlines() if re.match(r"\| (kube-scheduler|koord-scheduler|Volcano)", line)]
    assert len(matrix) == 4
    assert f"{kubernetes_version} in the tests" in matrix[0]
    group = next(block for block in yaml_blocks(page) if block["kind"] == "PodGroup")
    assert group["spec"] == {"scheduleTimeoutSeconds": 100, "minMember": 4}


@EVERY_PAGE
def test_every_test_that_is_named_is_there(paper):
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", paper.read_text()))
    names_by_path = {
        path: {each.name for each in definitions(ast.parse((ROOT / path).read_text()))} for path, _ in named
    }
    assert [f"{path}::{name}" for path, name in sorted(named) if name not in names_by_path[path]] == []


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_lines_that_differ_from_plain_torchrun_are_those_of_the_scripts(kind):
    plain, elastic = ((ROOT / f"examples/{kind}/{name}.py").read_text().splitlines() for name in ("plain", "elastic"))
    found = list(difflib.unified_diff(plain, elastic, n=0, lineterm=""))[2:]
    block = "\n".join("" if line.startswith("@@") else line for line in found).strip()
    page = text("examples/README.md")
    shown = run_by("tests/test_docs.py::test_lines_that_differ_from_plain_torchrun_are_those_of_the_scripts")
    assert f"{block}\n" in [each.text for each in shown]
    removals, come = (sum(line.startswith(mark) and line != mark for line in found) for mark in "-+")
    assert f"{removals} lines go, {come} come" in page


def test_each_class_of_the_glossary_is_defined_in_its_package():
    classes = re.findall(r"`(\w+)` of `(\w+)/`", (ROOT / "docs/glossary.md").read_text())
    assert len(classes) > 30
    sources = {package: "".join(path.read_text() for path in (ROOT / package).rglob("*.py")) for _, package in classes}
    assert [name for name, package in classes if not re.search(rf"^class {name}\b", sources[package], re.M)] == []
