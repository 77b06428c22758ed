"""The bill of materials: every locked package with its hashes, and the same bytes each time."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hack.sbom.cyclonedx import BadLock, Package, document, packages

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "hack/locks").glob("*.txt"))
HASH = "0" * 64
LOCK = f"""# a comment
One_Two[extra]==1.2 ; python_version > "3" \\
    --hash=sha256:{HASH} \\
    --hash=sha256:{"1" * 64}
    # via three
three==4.0 --hash=sha256:{HASH}
"""


def test_a_lock_is_read_by_name_version_and_hashes():
    assert packages({"a.txt": LOCK, "b.txt": f"three==4.0 --hash=sha256:{HASH}\n"}) == [
        Package("one-two", "1.2", ("a.txt",), (HASH, "1" * 64)),
        Package("three", "4.0", ("a.txt", "b.txt"), (HASH,)),
    ]


def test_a_package_without_a_hash_is_refused():
    with pytest.raises(BadLock, match=r"a\.txt: three 4\.0 has no hash"):
        packages({"a.txt": "three==4.0\n"})


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_pin_of_a_shipped_lock_is_in_it(lock):
    text = lock.read_text()
    pins = re.findall(r"(?m)^[A-Za-z0-9][^=\s]*==\S+", text)
    assert len(packages({lock.name: text})) == len(pins) > 0


def test_what_is_written_is_cyclonedx_and_the_same_each_time():
    argv = [sys.executable, "-m", "hack.sbom"]
    outputs = [subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert outputs[0] == outputs[1]
    document = json.loads(outputs[0])
    assert (document["bomFormat"], document["specVersion"], document["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", document["serialNumber"])
    by_name = {each["name"]: each for each in document["components"]}
    assert {"aiohttp", "kubernetes", "torch"} <= by_name.keys()
    assert len({each["bom-ref"] for each in document["components"]}) == len(document["components"])
    assert all(each["hashes"] and each["purl"].startswith("pkg:pypi/") for each in document["components"])


def test_a_changed_hash_is_another_document():
    one, other = (Package("a", "1", ("l",), (digit * 64,)) for digit in "01")
    assert document("t", "1", [one], {})["serialNumber"] != document("t", "1", [other], {})["serialNumber"]
    assert document("t", "1", [one], {"a": "MIT"})["components"][0]["licenses"] == [{"expression": "MIT"}]
