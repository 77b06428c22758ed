"""Chinese pages: each names its English pages, and tells when one of these has changed since."""

import pytest

from hack.codegen.translations import FOLDER, ROOT, NoSource, digest, read, sources, with_notice, with_present_digests

PAGES = {page.relative_to(ROOT).as_posix(): page.read_text() for page in sorted(FOLDER.glob("*.md"))}
THEN = "# A page\n\nIt says this.\n"
ZH = f"<!-- translated from docs/jobs.md {digest(THEN)} -->\n\n# 一页\n\n这样。\n"
NOTICE = "> **英文版之后有改动**：[docs/jobs.md](../jobs.md)。两者不一致时以英文为准。\n\n"


@pytest.mark.parametrize(("page", "text"), PAGES.items(), ids=list(PAGES))
def test_a_chinese_page_tells_whether_it_is_old(page, text):
    assert sources(page, text)
    assert text == with_notice(page, text, read), "python -m hack.codegen.translations --write"


@pytest.mark.parametrize(
    ("now", "has_notice"),
    [
        pytest.param(THEN, False, id="the English page is as it was"),
        pytest.param("# A page\n\nIt says\nthis.\n", False, id="lines are broken elsewhere"),
        pytest.param("# A page\n\n<!-- a mark -->\nIt says this.\n", False, id="a comment has come"),
        pytest.param("# A page\n\nIt says that.\n", True, id="a word has changed"),
    ],
)
def test_a_notice_comes_when_the_english_words_change(now, has_notice):
    text = with_notice("docs/zh/jobs.md", ZH, lambda _: now)
    assert text == (ZH.replace("# 一页\n\n", f"# 一页\n\n{NOTICE}") if has_notice else ZH)
    assert with_notice("docs/zh/jobs.md", text, lambda _: now) == text, "written once"
    assert with_notice("docs/zh/jobs.md", text, lambda _: THEN) == ZH, "and taken away"


def test_who_brings_a_page_up_to_date_takes_the_notice_away():
    old = with_notice("docs/zh/jobs.md", ZH, lambda _: "# A page\n\nIt says that.\n")
    new = with_present_digests("docs/zh/jobs.md", old, lambda _: "# A page\n\nIt says that.\n")
    assert "英文版之后有改动" not in new
    assert with_notice("docs/zh/jobs.md", new, lambda _: "# A page\n\nIt says that.\n") == new


def test_a_page_that_names_no_english_page_is_a_fault():
    with pytest.raises(NoSource, match=r"docs/zh/jobs\.md"):
        sources("docs/zh/jobs.md", "# 一页\n")
