"""The files of a release: the same bytes twice, checksums that hold, and words that fit the content."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata

import pytest
import yaml

from hack.images import python_wheels
from hack.images.layer import Entry
from hack.images.oci import Image, write
from hack.images.recipes import CONTROLLERS, LAUNCHER, LOCK_OF, Sources, layer
from hack.images.wheels import ROOT
from hack.release import chart, krew, provenance
from hack.release.__main__ import NO_ADDRESS, PARTS, Release, assemble, charts, documents, main

VERSION = metadata.version("turnout")
COMMIT = "5af553b1d5a7c8e2f0a1b2c3d4e5f60718293a4b"
URL = "https://example.org/turnout"


def small_image(release):
    """A part in place of the images, which take a minute: an image of one file."""
    image = Image((f"turnout:{release.version}",), (layer({"etc/word": Entry(b"hello")}, "a word"),))
    digest = write(image, release.into / "layout")
    for path in sorted((release.into / "layout").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (release.into / "layout").rmdir()
    return {image.names[0]: digest.removeprefix("sha256:")}


def build_parts(folder, parts, revision=COMMIT):
    sources = Sources(VERSION, revision, python_wheels.cache_folder())
    assemble(Release(folder, sources, URL), parts)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


PARTS_WITHOUT_PACKAGES = (charts, documents, small_image)


def test_the_same_tree_gives_the_same_bytes(tmp_path):
    first = build_parts(tmp_path / "first", PARTS_WITHOUT_PACKAGES)
    assert build_parts(tmp_path / "second", PARTS_WITHOUT_PACKAGES) == first
    assert {"SHA256SUMS", "provenance.intoto.json", chart.name(), "SECURITY-INSIGHTS.yaml"} <= {*first}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_whole_release_twice_is_the_same_byte_for_byte(tmp_path):
    first = build_parts(tmp_path / "first", PARTS)
    assert build_parts(tmp_path / "second", PARTS) == first
    subjects = {each["name"] for each in json.loads(first["provenance.intoto.json"])["subject"]}
    assert {f"{name}:{VERSION}" for name in (*CONTROLLERS, LAUNCHER)} <= subjects
    assert {f"{name}-{VERSION}.oci.tar" for name in (CONTROLLERS[0], LAUNCHER)} <= {*first}
    shown = runs_alone(tmp_path / "first" / krew.name(VERSION), tmp_path / "plugin", "version", "--client")
    assert shown.split() == ["turnout", VERSION]


def runs_alone(archive, folder, *arguments):
    """Run the plugin as krew installs it: through a link, without this environment. Gives what it printed."""
    folder.mkdir()
    with tarfile.open(archive) as opened:
        opened.extractall(folder / "store", filter="data")
    (folder / "kubectl-turnout").symlink_to(folder / "store/kubectl-turnout")
    (folder / f"python{krew.PYTHON}").symlink_to(os.path.realpath(sys.executable))
    env = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder)}
    argv = [folder / "kubectl-turnout", *arguments]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


def test_checksums_and_provenance_name_every_file(tmp_path):
    files = build_parts(tmp_path / "release", PARTS_WITHOUT_PACKAGES)
    check = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=tmp_path / "release", check=True, timeout=20)
    listed = {line.split("  ")[1] for line in files["SHA256SUMS"].decode().splitlines()}
    assert listed == {*files} - {"SHA256SUMS"}
    statement = json.loads(files["provenance.intoto.json"])
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    assert {*subjects} == {*files} - {"SHA256SUMS", "provenance.intoto.json"} | {f"turnout:{VERSION}"}
    for name in {*subjects} & {*files}:
        assert subjects[name] == hashlib.sha256(files[name]).hexdigest()
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    definition = statement["predicate"]["buildDefinition"]
    assert {"uri": f"git+{URL}", "digest": {"gitCommit": COMMIT}} in definition["resolvedDependencies"]
    locks = {each["name"] for each in definition["resolvedDependencies"] if "name" in each}
    assert {f"hack/locks/{name}" for name in LOCK_OF.values()} | {"hack/images/debian.lock"} <= locks


def test_provenance_of_a_changed_tree_names_no_commit():
    statement = provenance.statement({"a": "0"}, {"lock": "1"}, "", VERSION, URL)
    assert "gitCommit" not in json.dumps(statement)


def test_the_public_address_is_put_in_everywhere(tmp_path):
    files = build_parts(tmp_path / "release", PARTS_WITHOUT_PACKAGES)
    assert NO_ADDRESS.encode() not in files["SECURITY-INSIGHTS.yaml"]
    assert NO_ADDRESS not in krew.manifest(VERSION, URL, "0" * 64)


def test_the_manifest_for_krew_says_where_the_archive_is_and_what_it_is():
    manifest = yaml.safe_load(krew.manifest(VERSION, URL, "ab" * 32))
    assert (manifest["apiVersion"], manifest["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert manifest["metadata"]["name"] == "turnout"
    spec = manifest["spec"]
    assert spec["version"] == f"v{VERSION}"
    assert len(spec["shortDescription"]) <= 80
    (platform,) = spec["platforms"]
    assert platform["uri"] == f"{URL}/{krew.name(VERSION)}"
    assert (platform["sha256"], platform["bin"]) == ("ab" * 32, "kubectl-turnout")


def test_the_plugin_runs_from_where_krew_links_it(tmp_path):
    with zipfile.ZipFile(wheel := tmp_path / "turnout-1-py3-none-any.whl", "w") as opened:
        opened.writestr("turnout/__init__.py", "")
        opened.writestr("turnout/cli/__init__.py", "")
        opened.writestr("turnout/cli/programs.py", "def kubectl_turnout():\n    print('it runs')\n    return 0\n")
    (tmp_path / "setuptools-1-py3-none-any.whl").write_bytes(b"no wheel: it is left out unread")
    archive = tmp_path / "plugin.tar.gz"
    archive.write_bytes(krew.archive([wheel, tmp_path / "setuptools-1-py3-none-any.whl"]))
    assert runs_alone(archive, tmp_path / "plugin") == "it runs\n"


def test_the_chart_is_packed_with_all_that_git_knows(tmp_path, capsys):
    assert main(["chart", f"--into={tmp_path}"]) == 0
    file = tmp_path / "chart" / chart.name()
    assert hashlib.sha256(file.read_bytes()).hexdigest() in capsys.readouterr().out
    with tarfile.open(file) as opened:
        names = {each.name for each in opened.getmembers() if each.isfile()}
        assert {each.mtime for each in opened.getmembers()} == {1_767_225_600}
    tracked = subprocess.run(
        ("git", "ls-files", chart.CHART), cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    expected = {f"turnout/{each.removeprefix(f'{chart.CHART}/')}" for each in tracked} - {"turnout/.helmignore"}
    assert expected <= names


def test_chart_and_packages_have_one_version():
    about = chart.read_chart_yaml()
    assert (about["version"], about["appVersion"]) == (VERSION, VERSION)


def test_artifact_hub_is_told_of_the_images_and_definitions_that_there_are():
    notes = chart.read_chart_yaml()["annotations"]
    images = {each["image"] for each in yaml.safe_load(notes["artifacthub.io/images"])}
    assert images == {f"{name}:{VERSION}" for name in CONTROLLERS}
    kinds = {(each["name"], each["kind"], each["version"]) for each in yaml.safe_load(notes["artifacthub.io/crds"])}
    definitions = [yaml.safe_load(file.read_text()) for file in (ROOT / chart.CHART / "files/crds").iterdir()]
    assert kinds == {
        (each["metadata"]["name"], each["spec"]["names"]["kind"], each["spec"]["versions"][0]["name"])
        for each in definitions
    }


# The fields that OpenSSF's Security Insights 2.0.0 requires, by object.
REQUIRED = {
    "header": {"schema-version", "last-updated", "last-reviewed", "url"},
    "project": {"name", "administrators", "repositories", "vulnerability-reporting"},
    "repository": {
        "url",
        "status",
        "accepts-change-request",
        "accepts-automated-change-request",
        "core-team",
        "license",
        "security",
    },
}


def test_security_insights_has_what_the_specification_requires():
    document = yaml.safe_load((ROOT / "SECURITY-INSIGHTS.yaml").read_text())
    assert {*document} == {*REQUIRED}
    for part, fields in REQUIRED.items():
        assert fields <= {*document[part]}, part
    assert {"url", "expression"} == {*document["repository"]["license"]}
    assert "self" in document["repository"]["security"]["assessments"]
    assert {"reports-accepted", "bug-bounty-available"} <= {*document["project"]["vulnerability-reporting"]}
