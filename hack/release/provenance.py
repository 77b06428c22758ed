"""Say what the files of a release were made from, as an in-toto statement with SLSA's provenance. It is not signed.

Source: in-toto Statement v1, SLSA provenance v1
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def statement(
    subjects: Mapping[str, str], inputs: Mapping[str, str], revision: str, version: str, url: str
) -> dict[str, Any]:
    """Return the provenance statement, in in-toto's format.

    subjects: SHA-256 in hexadecimal of each file, and of each image's manifest, by its name. inputs: the same of each
    lock. revision: the commit, "" if the tree differs from it. url: of the repository.
    """
    source = [{"uri": f"git+{url}", "digest": {"gitCommit": revision}}] if revision else []
    definition = {
        "buildType": f"{url}/make-release/v1",
        "externalParameters": {"target": "release", "version": version, "url": url},
        "resolvedDependencies": source
        + [{"name": name, "digest": {"sha256": inputs[name]}} for name in sorted(inputs)],
    }
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": subjects[name]}} for name in sorted(subjects)],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": definition,
            "runDetails": {"builder": {"id": f"{url}/make-release"}},
        },
    }
