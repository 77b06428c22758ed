"""The bundle that the wheel holds is made from the sources beside it, and comes with the notices of its libraries."""

from pathlib import Path

from hack.codegen.page import bundle_digest, source_digest


def test_the_bundle_is_made_from_its_sources():
    assert bundle_digest() == source_digest(), "run: python -m hack.codegen.page --write"


def test_the_bundle_asks_no_other_origin():
    """The only addresses in it are names of XML namespaces."""
    text = Path("cli/page/static/page.js").read_text()
    addresses = {word.split('"')[0].split("'")[0].split("`")[0] for word in text.split("://")[1:]}
    assert all(each.startswith("www.w3.org/") for each in addresses), addresses


def test_the_notices_name_every_library():
    text = Path("cli/page/static/notices.txt").read_text()
    assert all(f"\n{name} " in f"\n{text}" for name in ("preact", "uplot"))
    assert text.count("Permission is hereby granted") == 2
