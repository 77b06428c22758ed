"""Runs the tests of tests/gpu: on a GPU those marked `gpu`, else the fast ones that need none."""

from __future__ import annotations

import re
import subprocess
import sys

from hack.gpu.figures import arguments

_ON_CPU = ("tests/gpu/test_device_copies.py", "tests/gpu/test_states.py")
_OPTIONS = ("-p", "no:cacheprovider", "-o", "filterwarnings=default", "--timeout=60")


def main() -> int:
    """Run the tests of the device; report how many passed, failed and were skipped, and the failed ones. Return
    pytest's code.
    """
    args = arguments()
    chosen = ["-m", "gpu", "tests/gpu"] if args.device == "cuda" else ["-m", "not gpu and not slow", *_ON_CPU]
    command = [sys.executable, "-m", "pytest", "-rfEs", "--tb=short", "--confcutdir=tests/gpu", *_OPTIONS, *chosen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if found := re.match(r"(FAILED|ERROR|SKIPPED) (.*)", line):
                args.report(found[1].lower(), found[2][:300])
            if re.match(r"=+ .*\d+ (passed|failed|error)", line):
                for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", line):
                    args.report(f"tests_{word}", int(count))
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
