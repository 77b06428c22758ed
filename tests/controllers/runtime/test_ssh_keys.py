"""The keys of a job open its own hosts, and those of no other job."""

import subprocess

import pytest

from turnout.controllers.runtime.writer import new_ssh_files


@pytest.mark.debian("openssh-server")
@pytest.mark.parametrize(("private", "public"), [("id_ecdsa", "id_ecdsa.pub"), ("ssh_host_ecdsa_key", None)])
def test_openssh_reads_a_private_key(tmp_path, private, public):
    keys = new_ssh_files()
    file = tmp_path / private
    file.touch(mode=0o600)
    file.write_text(keys[private])
    argv = ["ssh-keygen", "-y", "-f", str(file)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split()[0] == "ecdsa-sha2-nistp256"
    if public is not None:
        assert done.stdout.split()[:2] == keys[public].split()[:2]


def test_a_users_key_opens_hosts_and_the_hosts_own_key_does_not():
    keys = new_ssh_files()
    assert keys["authorized_keys"] == keys["id_ecdsa.pub"]
    assert keys["ssh_host_ecdsa_key"] != keys["id_ecdsa"]


def test_two_jobs_have_no_key_in_common():
    first, second = new_ssh_files(), new_ssh_files()
    assert not {first[name] for name in first if name != "config"} & set(second.values())
