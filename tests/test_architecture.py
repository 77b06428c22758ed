"""The house is built as planned, and a house that is not would be told: each rule meets a planted violation."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import dedent

import pytest

from hack.lint.architecture import LAYERS, faults, read_tree
from hack.lint.source_tree import BESIDE, PACKAGE

ROOT = Path(__file__).resolve().parents[1]
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
CONTRACTS = {each["id"]: each["name"] for each in LINTER["contracts"]}


def plant(root, files):
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))
    return read_tree(root)


def check_tree(root, files):
    return [(fault.rule, fault.path, fault.line) for fault in faults(plant(root, files))]


@pytest.mark.slow  # `make check` runs it
def test_our_house_is_as_planned():
    assert [str(fault) for fault in faults(read_tree(ROOT))] == []


def test_every_package_stands_on_a_floor_and_tells_its_types():
    packages = {init.parent.name for init in ROOT.glob("*/__init__.py")}
    assert packages - {*LAYERS, *BESIDE} == {PACKAGE}
    assert [name for name in sorted(packages - {*BESIDE}) if not (ROOT / name / "py.typed").is_file()] == []


def test_the_import_package_has_only_links_to_rooms_and_what_is_public():
    links = {path.name: path.readlink() for path in (ROOT / PACKAGE).iterdir() if path.is_symlink()}
    assert links == {room: Path("..", room) for room in LAYERS}
    files = {path.name for path in (ROOT / PACKAGE).iterdir() if path.is_file()}
    assert files == {"__init__.py", "py.typed"}


def broken(root, files):
    """Say which contracts of pyproject.toml a tree breaks that has an empty room for each floor, and these files."""
    rooms = {f"{room}/__init__.py": "" for room in (*LAYERS, "hack", PACKAGE)}
    plant(root, rooms | files)
    for room in LAYERS:
        (root / PACKAGE / room).symlink_to(Path("..", room))
    shutil.copy(ROOT / "pyproject.toml", root)
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache", "--no-logo"], cwd=root, capture_output=True, text=True, timeout=60)
    found = {contract for contract, name in CONTRACTS.items() if f"{name} BROKEN" in done.stdout}
    assert (done.returncode != 0) is bool(found), done.stdout + done.stderr
    return found


def test_the_contracts_of_imports_have_the_floors_of_the_plan():
    (layers,) = [each["layers"] for each in LINTER["contracts"] if each["id"] == "floors"]
    floors = [{*layer.split(" | ")} for layer in reversed(layers)]
    assert floors == [{room for room, at in LAYERS.items() if at == floor} for floor in range(len(floors))]
    (modules,) = [each["forbidden_modules"] for each in LINTER["contracts"] if each["id"] == "whole-names"]
    assert modules == sorted(LAYERS)


@pytest.mark.parametrize(
    ("path", "text", "contract"),
    [
        pytest.param("topology/a.py", "import turnout.jobs", "floors", id="nobody looks upwards"),
        pytest.param(
            "cli/a.py", "def f():\n from tests import world", "beside", id="nobody imports tests, even lazily"
        ),
        pytest.param("hack/a.py", "import tests.kit.world", "hack", id="hack does not import tests"),
        pytest.param("jobs/a.py", "import topology.plan", "whole-names", id="a room by less than its whole name"),
        pytest.param("apart/__init__.py", "", "floors", id="a room on no floor"),
    ],
)
def test_an_import_that_points_up_or_sideways_breaks_a_contract(tmp_path, path, text, contract):
    files = {path: text, "kube/client/__init__.py": "", "topology/model.py": "", "hack/bench.py": ""}
    if path.startswith("apart/"):
        (tmp_path / PACKAGE).mkdir()
        (tmp_path / PACKAGE / "apart").symlink_to(Path("..", "apart"))
    assert broken(tmp_path, files) == {contract}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        pytest.param({"p/a.py": "from turnout.kube.q import b", "q/b.py": ""}, set(), id="one way"),
        pytest.param(
            {
                "p/a.py": "import turnout.kube.q.b",
                "q/b.py": "import turnout.kube.m",
                "m.py": "import turnout.kube.p.d",
                "p/d.py": "",
            },
            {"rooms"},
            id="a way round by a module",
        ),
    ],
)
def test_no_two_rooms_of_a_package_import_each_other(tmp_path, files, found):
    rooms = {f"kube/{path.rsplit('/', 1)[0]}/__init__.py": "" for path in files if "/" in path} | {
        "kube/p/__init__.py": ""
    }
    assert broken(tmp_path, rooms | {f"kube/{path}": text for path, text in files.items()}) == found


def test_imports_that_point_down_break_no_contract(tmp_path):
    files = {
        "scheduler_ext/a.py": "import turnout.topology.plan, turnout.kube.objects, turnout.jobs",
        "topology/plan.py": "from . import b\nfrom .sources import c",
        "topology/b.py": "",
        "topology/sources/__init__.py": "",
        "topology/sources/c.py": "",
        "kube/objects.py": "",
        "launcher/a.py": "import turnout.topology.b",
        "hack/a.py": "import turnout.cli, turnout.kube.objects",
    }
    assert broken(tmp_path, files) == set()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param(
            "topology/a.py", "f('')\ng = lambda: import_module('turnout.kube.client.api_client')", id="sideways"
        ),
        pytest.param("jobs/a.py", "import_module('topology.plan')", id="by less than the whole name"),
    ],
)
def test_an_import_by_a_string_keeps_the_floors(tmp_path, path, text):
    assert [(rule, at) for rule, at, _ in check_tree(tmp_path, {path: text})] == [("layer", path)]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        pytest.param("launcher/a.py", "def f():\n    import turnout.kube.client.lease", id="its pure part"),
        pytest.param("launcher/event_log.py", "import turnout.kube.client.lease", id="its I/O, at once"),
    ],
)
def test_only_the_launchers_io_imports_kube_and_lazily(tmp_path, path, text):
    assert [(rule, at) for rule, at, _ in check_tree(tmp_path, {path: text})] == [("layer", path)]
    lazily = "def f():\n    import turnout.kube.client.lease"
    assert check_tree(tmp_path, {path: "", "launcher/event_log.py": lazily}) == []


def test_tests_import_from_the_package_as_users_may_have_such_folders(tmp_path):
    faults_ = faults(plant(tmp_path, {"tests/a.py": "import topology.plan"}))
    assert [(each.rule, each.text) for each in faults_] == [
        ("layer", "topology.plan is imported as turnout.topology.plan")
    ]
    assert check_tree(tmp_path, {"tests/a.py": "import hack.bench, turnout.cli, tests.b"}) == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("import asyncio", id="asyncio"),
        pytest.param("def f():\n    import logging", id="a log, lazily"),
        pytest.param("async def f():\n    pass", id="waiting"),
        pytest.param("def f(p):\n    return open(p)", id="a file"),
        pytest.param("def f(p):\n    return p.read_text()", id="a file, by its path"),
        pytest.param("import random\nN = random.random()", id="dice"),
        pytest.param("import random\nDICE = random.Random()", id="dice that the machine seeds"),
        pytest.param("def f(x):\n    print(x)", id="the terminal"),
    ],
)
def test_a_pure_module_that_touches_the_world_is_told(tmp_path, text):
    assert {rule for rule, _, _ in check_tree(tmp_path, {"topology/sources/a.py": text})} == {"purity"}
    assert check_tree(tmp_path, {"topology/sources/a.py": "", "kube/client/a.py": text}) == []
    assert check_tree(tmp_path, {"kube/client/a.py": "", "topology/__main__.py": text}) == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("from random import Random\nDICE = Random(7)", id="dice with a seed"),
        pytest.param("from urllib.parse import quote", id="the text part of urllib"),
    ],
)
def test_what_is_only_a_value_is_pure(tmp_path, text):
    assert check_tree(tmp_path, {"kube/a.py": text}) == []


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(
            {"kube/a.py": "import turnout.kube.b", "kube/b.py": "from turnout.kube import a"}, id="two modules"
        ),
        pytest.param(
            {"kube/a.py": "def f():\n    import turnout.kube.b", "kube/b.py": "import turnout.kube.a"}, id="a lazy one"
        ),
    ],
)
def test_a_circle_of_imports_is_told(tmp_path, files):
    assert [rule for rule, _, _ in check_tree(tmp_path, files)] == ["cycle"]


def test_a_circle_is_told_by_the_names_on_it(tmp_path):
    (fault,) = faults(plant(tmp_path, {"kube/a.py": "import turnout.kube.b", "kube/b.py": "import turnout.kube.a"}))
    assert fault.text in ("kube.a imports kube.b imports kube.a", "kube.b imports kube.a imports kube.b")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({"kube/a.py": "x = 1\n" * 601}, [("size", "kube/a.py", 1)], id="a module of 601 lines"),
        pytest.param({"kube/a.py": "x = 1\n" * 600}, [], id="a module of 600 lines"),
        pytest.param(
            {"kube/a.py": "\n\ndef f():\n" + "    x = 1\n" * 40}, [("size", "kube/a.py", 3)], id="a function of 41"
        ),
        pytest.param({"kube/a.py": "def f():\n" + "    x = 1\n" * 39}, [], id="a function of 40 lines"),
    ],
)
def test_a_room_that_is_too_large_is_told(tmp_path, files, expected):
    assert check_tree(tmp_path, files) == expected


@pytest.mark.parametrize(
    ("package", "call", "expected"),
    [
        pytest.param("launcher", "msgspec.json.decode(raw, type=Note)", ["decoder"], id="a structure in the launcher"),
        pytest.param("preprocess", "msgspec.msgpack.decode(raw, type=list[Note])", ["decoder"], id="a list of them"),
        pytest.param("preprocess", "msgspec.json.decode(raw, type=list[str])", [], id="a built-in type"),
        pytest.param("preprocess", "msgspec.json.decode(raw)", [], id="no type"),
        pytest.param("preprocess", "msgspec.convert(raw, Note)", ["decoder"], id="a conversion to a structure"),
        pytest.param("preprocess", "msgspec.convert(raw, type=Note)", ["decoder"], id="the same by keyword"),
        pytest.param("preprocess", "msgspec.convert(raw, list[str])", [], id="a conversion to a built-in type"),
        pytest.param(
            "preprocess", "msgspec.msgpack.Decoder(Note).decode(raw)", ["decoder"], id="a decoder of the call"
        ),
        pytest.param("preprocess", "msgspec.json.Decoder(defstruct('A', []))", [], id="a structure of the call"),
        pytest.param("preprocess", "NOTES.decode(raw)", [], id="a decoder of the module"),
        pytest.param("autoscaler", "msgspec.json.decode(raw, type=Note)", [], id="a program without threads"),
    ],
)
def test_threads_meet_no_type_that_is_decoded_first(tmp_path, package, call, expected):
    files = {f"{package}/a.py": f"def read(raw):\n    return {call}\n"}
    assert [rule for rule, _, _ in check_tree(tmp_path, files)] == expected
