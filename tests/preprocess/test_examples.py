"""examples/preprocess: what is typed and applied from there is valid, restricted, and does what its page says."""

import argparse
import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from hack.controlplane import schemas
from hack.lint.code_blocks import run_by
from tests.preprocess.corpus import lines, output, reference, run, texts, tokenizer_json, zst
from turnout.preprocess import options
from turnout.preprocess.options import OnError

ROOT = Path(__file__).parents[2]
TEXTS = texts(30, seed=2)
EXAMPLES = ROOT / "examples" / "preprocess"
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def objects():
    return [each for file in MANIFESTS for each in yaml.safe_load_all(file.read_text())]


def test_the_page_preprocesses_on_one_machine(tmp_path):
    (block,) = run_by("tests/preprocess/test_examples.py::test_the_page_preprocesses_on_one_machine")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "one.jsonl").write_bytes(lines(TEXTS))
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = ["sh", "-euc", block.text]
    environment = {"PATH": PATH, "HOME": str(tmp_path), "WORKERS": "1"}
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "tokens/corpus_text_document: good" in done.stdout
    made = tuple((tmp_path / f"tokens/corpus_text_document.{suffix}").read_bytes() for suffix in ("bin", "idx"))
    assert made == reference(TEXTS)


def test_the_first_commands_of_the_guide(tmp_path):
    (block,) = run_by("tests/preprocess/test_examples.py::test_the_first_commands_of_the_guide")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "corpus" / "one.jsonl.zst").write_bytes(zst(lines(TEXTS)))
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    environment = {"PATH": PATH, "HOME": str(tmp_path)}
    done = subprocess.run(
        ["sh", "-euc", block.text],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "data/corpus_text_document: good" in done.stdout
    made = tuple((tmp_path / f"data/corpus_text_document.{suffix}").read_bytes() for suffix in ("bin", "idx"))
    assert made == reference(TEXTS)


def test_the_pods_of_the_indexed_job_make_the_dataset_together(tmp_path):
    (tmp_path / "corpus").mkdir()
    for number in range(10):  # each is a chunk
        (tmp_path / "corpus" / f"{number}.jsonl.zst").write_bytes(zst(lines(TEXTS[3 * number : 3 * number + 3])))
    (tmp_path / "tokenizer.json").write_text(tokenizer_json())
    (job,) = [each for each in objects() if each["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["turnout", "preprocess"]
    indexes = [5, 1, 7, 0, 2, 6, 4, 3]
    assert sorted(indexes) == list(range(job["spec"]["completions"]))
    totals = []
    for index in indexes:
        words = [word.replace("$(JOB_COMPLETION_INDEX)", str(index)) for word in container["args"]]
        of = replace(read([word.replace("/data/", f"{tmp_path}/") for word in words]), chunk_bytes=1)
        assert of.indexes == len(indexes)
        totals.append(run(of))
    assert totals[:-1] == [None] * 7
    assert totals[-1].documents == len(TEXTS)
    assert output(of) == reference(TEXTS)


@pytest_asyncio.fixture
async def api(control_plane):
    async with control_plane.api() as api:
        meta = {"name": "team-a", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
        await api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
        yield api


@pytest.mark.real
@pytest.mark.asyncio
async def test_every_manifest_is_valid_and_its_pods_are_restricted(api, control_plane, tmp_path):
    schemas.write(control_plane.request("GET", "/openapi/v2"), tmp_path)
    results = schemas.kubeconform(tmp_path, MANIFESTS)
    assert schemas.faults(results) == []
    assert {Path(each["filename"]) for each in results} == set(MANIFESTS)
    for each in objects():
        await api.create(each, "team-a", "?fieldValidation=Strict")
        if template := each["spec"].get("template") if each["kind"] == "Job" else None:
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "trial"}, "spec": template["spec"]}
            await api.create(pod, "team-a", "?dryRun=All")


def submit(tmp_path, plane, *options):
    """Type the script of the page as an administrator of this cluster would."""
    environment = {
        "PATH": PATH,
        "HOME": str(tmp_path),
        "KUBECONFIG": str(plane.kubeconfig),
        "API": plane.url,
        "NAMESPACE": "team-a",
        "SPARK_SUBMIT_OPTS": "-Dspark.kubernetes.submission.waitAppCompletion=false",
    }
    command = ["sh", EXAMPLES / "spark-on-kubernetes.sh", *options]
    return subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.debian("openjdk-17-jre-headless")
@pytest.mark.asyncio
async def test_spark_submit_starts_a_driver_with_its_account_and_folder(api, control_plane, tmp_path):
    await api.create(next(each for each in objects() if each["kind"] == "ServiceAccount"), "team-a")
    done = await asyncio.to_thread(submit, tmp_path, control_plane, "--on-error", "quarantine")
    assert done.returncode == 0, done.stdout + done.stderr
    (pod,) = (await api.get("/api/v1/namespaces/team-a/pods"))["items"]
    assert pod["metadata"]["labels"]["spark-role"] == "driver"
    assert pod["spec"]["serviceAccountName"] == "preprocess-spark"
    (container,) = pod["spec"]["containers"]
    script, *words = container["args"][container["args"].index("org.apache.spark.deploy.PythonRunner") + 1 :]
    assert container["args"][0] == "driver"
    assert script.endswith("/turnout/preprocess/pyspark_preprocess.py")
    assert read(words).on_error is OnError.QUARANTINE
    assert {"name": "data", "mountPath": "/data"} in container["volumeMounts"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "training-data"}} in pod["spec"]["volumes"]


def read(words):
    """The options of a command line."""
    parser = argparse.ArgumentParser()
    options.add_arguments(parser)
    return options.read_options(parser.parse_args(words))
