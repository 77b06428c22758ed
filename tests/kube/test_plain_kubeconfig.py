"""Kubeconfigs that the brief transport reads itself, and those that it leaves to the library."""

import base64
from pathlib import Path

import pytest

from turnout.kube.client.plain_kubeconfig import (
    ClusterAccess,
    kubeconfig_path,
    read_cluster_access,
    read_kubeconfig,
    read_namespace,
)

FOLDER = Path("/home/ana/.kube")
PEM = base64.b64encode(b"-----BEGIN-----").decode()


def config(cluster=None, user=None, **more):
    return {
        "current-context": "c",
        "contexts": [
            {"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "team-a"}},
            {"name": "bare", "context": {"cluster": "k"}},
        ],
        "clusters": [{"name": "k", "cluster": {"server": "https://api:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
        **more,
    }


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("https_proxy", "http_proxy", "all_proxy", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("given", "access"),
    [
        pytest.param(config(user={"token": "t"}), ClusterAccess("https://api:6443", "t"), id="a token"),
        pytest.param(
            config(user={"tokenFile": "t"}),
            ClusterAccess("https://api:6443", token_file=FOLDER / "t"),
            id="a file beside it",
        ),
        pytest.param(
            config({"certificate-authority": "/ca"}),
            ClusterAccess("https://api:6443", authority=Path("/ca")),
            id="an authority",
        ),
        pytest.param(
            config({"certificate-authority-data": PEM}, {"client-certificate-data": PEM, "client-key": "key"}),
            ClusterAccess(
                "https://api:6443",
                authority="-----BEGIN-----",
                certificate=b"-----BEGIN-----",
                key=FOLDER / "key",
            ),
            id="certificates as data and as files",
        ),
        pytest.param(
            config({"insecure-skip-tls-verify": True, "tls-server-name": "kube"}),
            ClusterAccess("https://api:6443", verify=False, server_name="kube"),
            id="nobody is verified, by another name",
        ),
        pytest.param(
            config({"server": "http://127.0.0.1:80/path", "extensions": []}),
            ClusterAccess("http://127.0.0.1:80/path"),
            id="path",
        ),
        pytest.param(
            config(
                {"certificate-authority-data": "", "certificate-authority": "ca.pem"},
                {"client-certificate-data": None, "client-certificate": "crt", "client-key": "key"},
            ),
            ClusterAccess(
                "https://api:6443", authority=FOLDER / "ca.pem", certificate=FOLDER / "crt", key=FOLDER / "key"
            ),
            id="files where the data are empty",
        ),
        pytest.param(
            config({"certificate-authority": ""}, {"token": "t", "tokenFile": "", "client-key": None}),
            ClusterAccess("https://api:6443", "t"),
            id="empty paths are absent",
        ),
    ],
)
def test_plain_credentials_are_read(given, access):
    assert read_cluster_access(given, FOLDER, None) == access


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(config(user={"exec": {"command": "aws"}}), id="a program to ask"),
        pytest.param(config(user={"auth-provider": {"name": "oidc"}}), id="a provider to ask"),
        pytest.param(config(user={"username": "ana", "password": "p"}), id="a password"),
        pytest.param(config(user={"token": "t", "tokenFile": "t"}), id="two tokens"),
        pytest.param(config(user={"token": "t", "as": "root"}), id="somebody else's name"),
        pytest.param(config({"proxy-url": "http://proxy"}), id="a proxy"),
        pytest.param(config({"server": "http" + "://ana@localhost"}), id="a name in the URL"),
        pytest.param(config({"server": "api:6443"}), id="no scheme"),
        pytest.param(config({"server": "https://api:port"}), id="no port"),
        pytest.param(config({"certificate-authority-data": "%"}), id="an authority that is none"),
        pytest.param(config({"insecure-skip-tls-verify": "true"}), id="a word for a flag"),
        pytest.param(config(users=[]), id="a user that is not there"),
        pytest.param(config(clusters=[]), id="a cluster that is not there"),
        pytest.param(config(**{"current-context": ""}), id="no context"),
        pytest.param(config(contexts={}), id="contexts that are no list"),
        pytest.param(None, id="no file"),
        pytest.param([], id="a list"),
    ],
)
def test_everything_else_is_left_to_the_library(given):
    assert read_cluster_access(given, FOLDER, None) is None


def test_a_proxy_is_left_to_the_library_except_for_this_machine(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert read_cluster_access(config(), FOLDER, None) is None
    assert read_cluster_access(config({"server": "https://127.0.0.1:6443"}), FOLDER, None) is not None


@pytest.mark.parametrize(
    ("context", "namespace"),
    [
        pytest.param(None, "team-a", id="of the current context"),
        pytest.param("bare", "default", id="default where a context names none"),
        pytest.param("gone", None, id="none of a context that is not there"),
    ],
)
def test_the_namespace_is_the_context_s(context, namespace):
    assert read_namespace(config(), context) == namespace


@pytest.mark.parametrize("value", ["!!bool maybe", "!!timestamp foo", "!!int ''", "!!float ''", "!!binary \u0101"])
def test_a_kubeconfig_with_a_wrong_value_of_a_tag_counts_as_none(tmp_path, value):
    (tmp_path / "config").write_text(f"x: {value}")
    assert read_kubeconfig(tmp_path / "config") is None


def test_a_kubeconfig_that_is_nested_too_deep_counts_as_none(tmp_path):
    (tmp_path / "config").write_text("[" * 3000)
    assert read_kubeconfig(tmp_path / "config") is None


def test_several_files_and_a_pod_are_left_to_the_library(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", "/a:/b")
    assert kubeconfig_path(None) is None
    assert kubeconfig_path("/c") == Path("/c")
    monkeypatch.setenv("KUBECONFIG", "/a")
    assert kubeconfig_path(None) == Path("/a")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert kubeconfig_path(None) is None
