"""The parts of an image: a layer's bytes, a layout's digests, what a Debian package and a wheel install."""

import io
import json
import re
import subprocess
import tarfile
import zipfile
from importlib import metadata

import pytest
import yaml

from hack.images import debian, python_wheels
from hack.images.__main__ import main
from hack.images.bill import bill
from hack.images.layer import Entry, pack_layer
from hack.images.oci import REFERENCE, Image, config, config_and_layers, digest, write
from hack.images.recipes import CONTROLLERS, LAUNCHER, LOCK_OF, USER, layer
from hack.images.wheels import ROOT

IMAGES = ROOT / "deploy" / "images"


def members(tar):
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:*") as opened:
        return {each.name: each for each in opened}


def test_a_layer_is_a_function_of_its_files_whatever_their_order():
    files = {"b/x": Entry(b"1", 0o755), "a": Entry(link="b/x"), "tmp": Entry(mode=0o1777, folder=True)}
    plain, gzipped = pack_layer(files)
    assert pack_layer(dict(reversed(files.items()))) == (plain, gzipped)
    found = members(gzipped)
    assert list(found) == ["a", "b", "b/x", "tmp"]
    assert {(each.uid, each.gid, each.uname, each.mtime) for each in found.values()} == {(0, 0, "", 1_767_225_600)}
    assert [oct(each.mode) for each in found.values()] == ["0o777", "0o755", "0o755", "0o1777"]


@pytest.fixture
def image():
    first_layer = layer({"etc/word": Entry(b"hello")}, "a word")
    annotations = {"org.opencontainers.image.version": "1"}
    return Image(("x:1", "y:1"), (first_layer,), "65532:65532", {"PATH": "/bin"}, ("run",), annotations)


def test_a_layout_has_every_blob_under_its_digest_and_each_of_its_names(tmp_path, image):
    named = write(image, tmp_path / "layout")
    blobs = list((tmp_path / "layout/blobs/sha256").iterdir())
    assert [digest(blob.read_bytes()) for blob in blobs] == [f"sha256:{blob.name}" for blob in blobs]
    entries = json.loads((tmp_path / "layout/index.json").read_text())["manifests"]
    assert {entry["digest"] for entry in entries} == {named}
    assert [entry["annotations"][REFERENCE] for entry in entries] == ["x:1", "y:1"]
    found, (one,) = config_and_layers(tmp_path / "layout")
    assert found == config(image)
    assert members(one.read_bytes())["etc/word"].size == 5
    assert write(image, tmp_path / "again") == named


def test_a_configuration_says_who_runs_what(image):
    configuration = config(image)
    assert configuration["config"]["User"] == "65532:65532"
    assert configuration["config"]["Env"] == ["PATH=/bin"]
    assert configuration["rootfs"]["diff_ids"] == [digest(pack_layer({"etc/word": Entry(b"hello")})[0])]


def deb(**files):
    """A package as dpkg reads it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    parts = [("debian-binary", b"2.0\n"), ("data.tar.xz", data.getvalue())]
    heads = [
        (f"{name:<16}{'0':<12}{'0':<6}{'0':<6}{'100644':<8}{len(body):<10}`\n".encode(), body) for name, body in parts
    ]
    return b"!<arch>\n" + b"".join(head + body + b"\n" * (len(body) % 2) for head, body in heads)


@pytest.mark.parametrize(
    ("path", "at"),
    [
        pytest.param("usr/bin/a", "usr/bin/a", id="a file where it says"),
        pytest.param("lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6", id="/lib is below /usr"),
        pytest.param("usr/share/doc/a/copyright", "usr/share/doc/a/copyright", id="its licence"),
        pytest.param("usr/share/doc/a/changelog.gz", None, id="no changelog"),
        pytest.param("usr/share/man/man1/a.1.gz", None, id="no manual"),
    ],
)
def test_a_debian_package_is_unpacked(path, at):
    found = debian.files(deb(**{path: b"1", "usr/lib/b": "../a"}))
    assert found.pop("usr/lib/b") == Entry(link="../a")
    assert found == ({at: Entry(b"1")} if at else {})


@pytest.mark.parametrize(
    "content",
    [pytest.param(b"<html>", id="a page"), pytest.param(b"!<arch>\n", id="an archive without data")],
)
def test_what_is_no_package_is_refused(content):
    with pytest.raises(debian.NoPackage, match="no Debian package"):
        debian.files(content)


def uris(names, algorithm="SHA256", digits=64):
    """The output of `apt-get download --print-uris`."""
    return "".join(
        f"'http://deb/debian/pool/{name}.deb' {name}_1%3a2_all.deb 9 {algorithm}:{'0' * digits}\n" for name in names
    )


def test_a_new_lock_has_each_wanted_package():
    lines = debian.lock_text(uris(debian.WANTED)).splitlines()
    assert len(lines) == 1 + len(debian.WANTED)
    assert lines[1] == f"base-files 1:2 {'0' * 64} debian/pool/base-files.deb"


@pytest.mark.parametrize(
    ("output", "missing"),
    [
        pytest.param(uris(debian.WANTED[1:]), debian.WANTED[0], id="a package is missing"),
        pytest.param(uris(debian.WANTED, "SHA512", 128), debian.WANTED[-1], id="another hash"),
    ],
)
def test_a_lock_without_a_wanted_package_is_not_made(output, missing):
    with pytest.raises(debian.NoPackage, match=missing):
        debian.lock_text(output)


def test_a_package_that_a_mirror_exchanged_is_refused(tmp_path, monkeypatch):
    (tmp_path / "pool").write_bytes(b"another")
    monkeypatch.setenv(debian.MIRROR_ENV, tmp_path.as_uri())
    with pytest.raises(debian.NoPackage, match=r"a 1: file:.* has SHA-256 \w+, not 00"):
        debian.fetch_package(debian.Deb("a", "1", "00", "pool"), tmp_path / "cache")


def test_the_lock_of_debian_pins_each_package_that_is_wanted():
    locked = debian.lock()
    assert {each.name for each in locked} == set(debian.WANTED)
    assert [each for each in locked if not re.fullmatch("[0-9a-f]{64}", each.sha256)] == []
    assert {each.path.split("/")[0] for each in locked} <= {"debian", "debian-security"}


def test_a_wheel_is_unpacked_with_its_programs(tmp_path):
    with zipfile.ZipFile(wheel := tmp_path / "a-1-py3-none-any.whl", "w") as opened:
        opened.writestr("a/__init__.py", "x = 1\n")
        opened.writestr("a-1.dist-info/entry_points.txt", "[console_scripts]\nrun-a = a.b:main\n[other]\nx = y\n")
        opened.writestr("a-1.data/scripts/old", "#!python\nprint()\n")
        opened.writestr("a-1.data/scripts/versioned", "#!python3\nprint()\n")
        opened.writestr("a-1.data/scripts/windows", "#!pythonw\r\nprint()\n")
        opened.writestr("a-1.data/purelib/c.py", "")
        opened.writestr("a/templates/entry_points.txt", "[console_scripts]\nno-script = a:b\n")
        opened.writestr("a-1.data/headers/a.h", "")
    found = python_wheels.files(wheel, "site", "bin", "/usr/bin/env python3")
    assert sorted(found) == [
        "bin/old",
        "bin/run-a",
        "bin/versioned",
        "bin/windows",
        "site/a-1.dist-info/entry_points.txt",
        "site/a/__init__.py",
        "site/a/templates/entry_points.txt",
        "site/c.py",
    ]
    assert found["bin/old"] == Entry(b"#!/usr/bin/env python3\nprint()\n", 0o755)
    assert found["bin/versioned"].data == found["bin/old"].data
    assert found["bin/windows"].data == b"#!/usr/bin/env python3\r\nprint()\n"
    assert found["bin/run-a"].mode == 0o755
    assert found["bin/run-a"].data.startswith(b"#!/usr/bin/env python3\nimport sys\nfrom a.b import main\n")


def test_wheels_that_are_cached_with_their_hashes_are_not_fetched_again(tmp_path):
    """The package is on no index, so pip would fail."""
    (tmp_path / "cache").mkdir()
    wheel = tmp_path / "cache/turnout_unpublished-1-py3-none-any.whl"
    wheel.write_bytes(b"its content")
    lock = tmp_path / "lock.txt"
    lock.write_text(f"turnout-unpublished==1 \\\n    --hash=sha256:{digest(b'its content').removeprefix('sha256:')}\n")
    assert python_wheels.fetch_wheels(lock, "3.11", tmp_path / "cache") == [wheel]
    wheel.write_bytes(b"another content")
    with pytest.raises(subprocess.CalledProcessError):
        python_wheels.fetch_wheels(lock, "3.11", tmp_path / "cache")


def test_a_bill_of_materials_names_wheels_and_debian_packages_by_hash():
    document = bill("turnout", "1")
    kinds = {each["purl"].split("/")[0] for each in document["components"]}
    assert kinds == {"pkg:pypi", "pkg:deb"}
    assert [each["name"] for each in document["components"] if not each["hashes"]] == []
    assert "torch" not in {each["name"] for each in document["components"]}


@pytest.mark.contract("MS-14", "MS-34")
@pytest.mark.parametrize("name", ["controllers", "launcher"])
def test_a_containerfile_starts_from_an_image_that_can_be_exchanged(name):
    text = (IMAGES / f"{name}.Containerfile").read_text()
    (base,) = re.findall(r"^ARG PYTHON=(\S+)$", text, re.M)
    assert base.startswith("docker.io/library/python:3.11-slim")
    assert set(re.findall(r"^FROM (\S+)", text, re.M)) <= {"${PYTHON}", "scratch"}
    assert "--require-hashes" in text


def test_the_containerfiles_install_what_the_builder_does():
    controllers, launcher = ((IMAGES / f"{name}.Containerfile").read_text() for name in ("controllers", "launcher"))
    assert f"hack/locks/{LOCK_OF['turnout']}" in controllers
    assert f"USER {USER}" in controllers
    assert f"hack/locks/{LOCK_OF['turnout-launcher']}" in launcher
    assert "/opt/turnout/dlrover-names" in launcher


@pytest.mark.contract("MS-34")
def test_nothing_that_builds_an_image_comes_from_gcr():
    files = [*IMAGES.glob("*.Containerfile"), *(ROOT / "hack/images").iterdir(), ROOT / "Makefile"]
    assert [file.name for file in files if file.is_file() and "gcr.io" in file.read_text()] == []


@pytest.mark.parametrize("name", ["gang", "gated-gang"])
def test_the_gang_of_the_examples_uses_an_image_that_is_built(name):
    job = yaml.safe_load((ROOT / f"examples/{name}.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    built = {f"{each}:{metadata.version('turnout')}" for each in (*CONTROLLERS, LAUNCHER)}
    assert container["image"] in built
    assert container["command"][0] == "python3", "the image has no shell"


@pytest.mark.contract("DL-04", "DL-05")
def test_the_controllers_image_has_the_names_of_dlrovers_values():
    values = (ROOT / "deploy/charts/turnout/values.yaml").read_text()
    for name in CONTROLLERS:
        assert f"`{name}`" in values


def test_a_program_needs_an_image_and_a_name(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", "turnout"])
    assert ended.value.code == 2
    assert "run needs NAME and PROGRAM" in capsys.readouterr().err


def test_an_image_that_was_not_built_is_named(capsys):
    assert main(["run", "no-image", "true"]) == 1
    assert "no-image" in capsys.readouterr().err


def test_a_subprocess_that_takes_too_long_ends_with_a_message(capsys):
    def wait(sources):
        raise subprocess.TimeoutExpired(["pip"], 600)

    assert main(["turnout"], {"turnout": wait}) == 1
    assert "timed out" in capsys.readouterr().err
