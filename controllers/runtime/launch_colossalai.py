"""Start the training of a ColossalAIJob, in the container of its launcher.

The script waits until every worker's sshd answers, runs the command, and writes the end of its output into the
termination log, where the job controller reads how each host ended. It runs in the user's image with Python's own
library only: `launch_colossalai.py HOSTFILE PORT SECONDS LOG COMMAND…`. It ends with the code of the command, or with 3
if a host never answered.

The runner exports its whole environment on every host, each value as it is between double quotes. A quote in a value,
or a name that is invalid in a shell, would end all hosts before they have begun. So values are escaped, and such names
are left out.
"""

from __future__ import annotations

import collections
import os
import re
import socket
import subprocess
import sys
import time

LINES, BYTES = 60, 2_000  # of the end of the output; the kubelet keeps 4,096 bytes of a termination log
NO_ANSWER = 3  # exit code if a host never answered
# A shell refuses to set these variables. HOSTNAME differs between the hosts.
OWN = {"BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID", "HOSTNAME"}


def ssh_answers(host: str, port: int) -> bool:
    """Return True if a server at host and port sends an SSH greeting.

    Waits up to 2 s for the connection and up to 2 s for the greeting. False for every network error.
    """
    try:
        with socket.create_connection((host, port), 2.0) as connection:
            connection.settimeout(2.0)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def wait_for(hosts: list[str], port: int, seconds: float) -> list[str]:
    """Return the hosts whose SSH server has not answered when the time is over; [] once all have answered.

    hosts: names. seconds: how long to wait. The hosts are asked in turn, up to 4 s each, and a round that has begun is
    finished, so the call may take longer.
    """
    end = time.monotonic() + seconds
    silent = [host for host in hosts if not ssh_answers(host, port)]
    while silent and time.monotonic() < end:
        time.sleep(0.2)
        silent = [host for host in silent if not ssh_answers(host, port)]
    return silent


def exportable_variables(env: dict[str, str]) -> dict[str, str]:
    """Return the variables that a shell can export, their values escaped for double quotes."""
    named = {name: text for name, text in env.items() if re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name)}
    return {name: re.sub(r'([\\"$`])', r"\\\1", text) for name, text in named.items() if name not in OWN}


def run(command: list[str], env: dict[str, str]) -> tuple[int, str]:
    """Run the command and copy its output to stdout. Return (exit code, its last LINES lines).

    The code is 128 + n after signal n. stderr is included. Raises OSError if the command cannot be started.
    """
    last_lines: collections.deque[str] = collections.deque(maxlen=LINES)
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            sys.stdout.write(line)
            sys.stdout.flush()
            last_lines.append(line)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode, "".join(last_lines)


def main(argv: list[str]) -> int:
    """Wait for the hosts, run the command, write the last BYTES of its output to the log. Return the exit code.

    argv: HOSTFILE PORT SECONDS LOG COMMAND… . NO_ANSWER if a host never answered: then the command is not run.
    """
    hostfile, port, seconds, log, *command = argv
    with open(hostfile, encoding="utf-8") as file:
        hosts = file.read().split()
    silent = wait_for(hosts, int(port), float(seconds))
    if silent:
        code, output = NO_ANSWER, f"no SSH server answers on port {port} in {seconds} s: {', '.join(silent)}\n"
        sys.stderr.write(output)
    else:
        code, output = run(command, exportable_variables(dict(os.environ)))
    with open(log, "w", encoding="utf-8") as file:
        file.write(output.encode("utf-8", "replace")[-BYTES:].decode("utf-8", "ignore"))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
