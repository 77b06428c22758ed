"""examples/preprocess: what is typed and applied from there is valid, restricted, and does what its page says.

For Spark on Kubernetes a test does a kubelet's part: it runs what spark-submit and the driver put into pods, by the
entry point of the image. A real API server admits the pods, and holds the driver to its Role.
"""

import argparse
import asyncio
import contextlib
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from hack.controlplane import schemas
from hack.controlplane.errors import ApiError
from hack.lint.code_blocks import run_by
from tests.preprocess.corpus import lines, output, reference, run, texts, tokenizer_json, zst
from turnout.preprocess import options, pyspark_preprocess
from turnout.preprocess.options import InputLimits, OnError

ROOT = Path(__file__).parents[2]
TEXTS = texts(30, seed=2)
PODS = "/api/v1/namespaces/team-a/pods"
MAPS = "/api/v1/namespaces/team-a/configmaps"
SCRIPT = Path(pyspark_preprocess.__file__)
SITE = "/usr/local/lib/python3.11/site-packages"  # of the image
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
    assert "tokens/corpus_text_document: valid" in done.stdout
    dataset = tuple((tmp_path / f"tokens/corpus_text_document.{suffix}").read_bytes() for suffix in ("bin", "idx"))
    assert dataset == reference(TEXTS)


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
    assert "data/corpus_text_document: valid" in done.stdout
    dataset = tuple((tmp_path / f"data/corpus_text_document.{suffix}").read_bytes() for suffix in ("bin", "idx"))
    assert dataset == reference(TEXTS)


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
        of = replace(
            read([word.replace("/data/", f"{tmp_path}/") for word in words]), limits=InputLimits(chunk_bytes=1)
        )
        assert of.share.count == len(indexes)
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


def test_the_image_has_what_the_locks_pin_and_the_user_of_the_pods():
    text = (EXAMPLES / "Containerfile").read_text()
    ((*sources, _),) = map(str.split, re.findall(r"^COPY (.*)$", text, re.M))
    let_in = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line != "*"]
    assert [source for source in sources if not source.startswith(tuple(let_in))] == []
    locks = {Path(source).name for source in sources if (ROOT / source).is_file()}
    assert (
        locks == set(re.findall(r"--require-hashes -r /wheels/(\S+)$", text, re.M)) == {"preprocess.txt", "spark.txt"}
    )
    (user,) = re.findall(r"^USER (\d+):\d+$", text, re.M)
    specs = [each["spec"].get("template", each)["spec"] for each in objects() if each["kind"] in ("Job", "Pod")]
    assert {str(spec["securityContext"]["runAsUser"]) for spec in specs} == {user}
    assert "turnout.preprocess.spark_pod" in text


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
@pytest.mark.debian("default-jre-headless")
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


class Kubelet:
    """Runs pods as processes of this machine. A folder stands for the root of every container."""

    def __init__(self, root, plane):
        self.root, self.plane, self.running = root, plane, {}

    async def start(self, pod, api):
        """Mount a pod's ConfigMaps below the root and start its container."""
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        (container,) = pod["spec"]["containers"]
        for mount in container["volumeMounts"]:
            folder = self.path(mount["mountPath"])
            folder.mkdir(parents=True, exist_ok=True)
            if source := volumes[mount["name"]].get("configMap"):
                data = (await api.get(f"{MAPS}/{source['name']}"))["data"]
                paths = {each["key"]: each["path"] for each in source.get("items", ())} or {key: key for key in data}
                for key, path in paths.items():
                    (folder / path).write_text(self.below(data[key]))
        name = pod["metadata"]["name"]
        values = {each["name"]: each.get("value", "127.0.0.1") for each in container.get("env", ())}
        environment = {name: self.below(value) for name, value in values.items()}
        environment |= {"PATH": PATH, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "turnout.preprocess.spark_pod", *map(self.below, container["args"])]
        self.running[name] = await asyncio.to_thread(self.process, name, command, environment)

    def process(self, name, command, environment):
        with (self.root / f"{name}.log").open("w") as log:
            return subprocess.Popen(
                command, env=environment, cwd=self.root, stdout=log, stderr=log, start_new_session=True
            )

    def path(self, path):
        return Path(self.below(path))

    def below(self, text):
        """Put a container's folders below the root, and the addresses of the cluster on this machine."""
        for folder in ("/data", "/opt/spark", "/var/data"):
            text = text.replace(folder, f"{self.root}{folder}")
        lines_ = text.replace(SITE, str(ROOT)).splitlines(keepends=True)
        return "".join(line for line in map(self.local, lines_))

    def local(self, line):
        """Change a line of spark.properties that names the network of pods."""
        key, _, _ = line.partition("=")
        token = self.root / "token"
        local = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.port": "0",
            "spark.driver.blockManager.port": "0",
            "spark.kubernetes.driver.pod.name": line.partition("=")[2].strip()
            + f"\nspark.kubernetes.driver.master={self.plane.url}"
            + f"\nspark.kubernetes.authenticate.driver.mounted.oauthTokenFile={token}"
            + f"\nspark.kubernetes.authenticate.driver.mounted.caCertFile={self.plane.ca}",
        }
        return f"{key}={local[key]}\n" if key in local else line

    def stop(self):
        for process in self.running.values():
            if process.poll() is None:
                os.killpg(process.pid, 9)
            process.wait(30)

    def logs(self):
        return "\n".join(f"== {path.name}\n{path.read_text()[-6000:]}" for path in sorted(self.root.glob("*.log")))


async def executors_started(kubelet, api, driver):
    """Start each executor's pod that the driver creates, until the driver ends. Returns the pods.

    Spark creates the first pods before their ConfigMap, and removes it when the driver ends. So a pod without it is
    tried again at each look, as a kubelet tries to mount again.
    """
    pods = {}
    while kubelet.running[driver].poll() is None:
        for pod in (await api.get(f"{PODS}?labelSelector=spark-role=executor"))["items"]:
            name = pod["metadata"]["name"]
            pods[name] = pod
            if name not in kubelet.running:
                with without_config_map():
                    await kubelet.start(pod, api)
        await asyncio.sleep(0.2)
    return list(pods.values())


@contextlib.contextmanager
def without_config_map():
    """Pass over a pod whose ConfigMap does not exist."""
    try:
        yield
    except ApiError as error:
        if error.status != 404:
            raise


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.debian("default-jre-headless")
@pytest.mark.asyncio
async def test_the_pods_of_driver_and_executors_make_the_dataset(api, control_plane, tmp_path):
    for each in yaml.safe_load_all((EXAMPLES / "spark-account.yaml").read_text()):
        await api.create(each, "team-a")
    corpus = tmp_path / "data" / "corpus"
    corpus.mkdir(parents=True)
    for number in range(10):  # each is a chunk
        (corpus / f"{number}.jsonl.zst").write_bytes(zst(lines(TEXTS[3 * number : 3 * number + 3])))
    (tmp_path / "data" / "tokenizer.json").write_text(tokenizer_json())
    (tmp_path / "token").write_text(control_plane.service_account_token("team-a", "preprocess-spark"))
    done = await asyncio.to_thread(submit, tmp_path, control_plane, "--chunk-bytes=1")
    assert done.returncode == 0, done.stdout + done.stderr
    (driver,) = (await api.get(PODS))["items"]
    kubelet = Kubelet(tmp_path, control_plane)
    try:
        await kubelet.start(driver, api)
        async with asyncio.timeout(150):
            executors = await executors_started(kubelet, api, driver["metadata"]["name"])
    except TimeoutError:
        pytest.fail(f"the driver still runs\n{kubelet.logs()}")
    finally:
        kubelet.stop()
    assert kubelet.running[driver["metadata"]["name"]].returncode == 0, kubelet.logs()
    dataset = tuple((tmp_path / f"data/tokens/corpus_text_document.{suffix}").read_bytes() for suffix in ("bin", "idx"))
    assert dataset == reference(TEXTS)
    assert len(executors) == 2
    for pod in executors:
        assert pod["metadata"]["name"].startswith("preprocess-")  # as --name says
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        assert {"name": "data", "persistentVolumeClaim": {"claimName": "training-data"}} in pod["spec"]["volumes"]
    assert not (await api.get(f"{PODS}?labelSelector=spark-role=executor"))["items"]
