"""Lists: selectors, pages, versions. Watches: from where, what, until when."""

import pytest

from tests.conformance.sides import MERGE, config_map, pod

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

SELECTORS = [
    {"labelSelector": "app=x"},
    {"labelSelector": "app==x"},
    {"labelSelector": "app!=x"},
    {"labelSelector": "app in (x,y),tier"},
    {"labelSelector": "app notin (x)"},
    {"labelSelector": "!tier"},
    {"labelSelector": "tier"},
    {"fieldSelector": "metadata.name=c"},
    {"fieldSelector": "metadata.name!=c,spec.nodeName="},
    {"fieldSelector": "spec.nodeName=n1"},
    {"fieldSelector": "status.phase=Pending", "labelSelector": "tier=1"},
    {"fieldSelector": "spec.colour=red"},
    {"labelSelector": "app in x"},
    {"labelSelector": "=x"},
]


@pytest.mark.parametrize("query", [pytest.param(q, id=" ".join(q.values())) for q in SELECTORS])
async def test_selectors(both, query):
    async def story(side):
        for name, labels, node in (
            ("a", {"app": "x"}, ""),
            ("b", {"app": "x", "tier": "1"}, "n1"),
            ("c", {"app": "z"}, ""),
        ):
            spec = {"nodeName": node} if node else {}
            await side.peek("POST", side.path("pods"), pod(name, labels=labels, spec=spec))
        await side.ask("GET", side.path("pods"), **query)

    await both.agree(story)


async def test_pages_show_one_moment(both):
    async def story(side):
        for number in range(7):
            await side.peek("POST", side.path("configmaps"), config_map(f"m{number}"))
        _, page = await side.ask("GET", side.path("configmaps"), limit="3")
        await side.peek("DELETE", side.path("configmaps", "m4"))
        await side.peek("PATCH", side.path("configmaps", "m5"), {"data": {"late": "1"}}, MERGE)
        versions = {page["metadata"]["resourceVersion"]}
        while token := page["metadata"].get("continue"):
            _, page = await side.ask("GET", side.path("configmaps"), limit="3", **{"continue": token})
            versions.add(page["metadata"]["resourceVersion"])
        assert len(versions) == 1
        await side.ask("GET", side.path("configmaps"))
        await side.ask("GET", side.path("configmaps"), limit="3", **{"continue": "nonsense"})

    await both.agree(story)


async def test_a_watch_goes_on_from_a_version(both):
    async def story(side):
        await side.peek("POST", side.path("configmaps"), config_map("before"))
        _, listed = await side.ask("GET", side.path("configmaps"))
        version = listed["metadata"]["resourceVersion"]

        async def change():
            await side.peek("POST", side.path("configmaps"), config_map("a"))
            await side.peek("PATCH", side.path("configmaps", "a"), {"data": {"x": "1"}}, MERGE)
            await side.peek("DELETE", side.path("configmaps", "a"))

        await side.watch(side.path("configmaps"), 3, change, resourceVersion=version)
        await side.watch(side.path("configmaps"), 3, resourceVersion=version)  # the same, told again from its history
        await side.watch(side.path("configmaps"), 1, resourceVersion="0")

    await both.agree(story)


async def test_a_watch_sees_through_its_selector(both):
    async def story(side):
        _, listed = await side.peek("GET", side.path("configmaps"))

        async def change():
            path = side.path("configmaps", "a")
            await side.peek("POST", side.path("configmaps"), config_map("a"))
            await side.peek("PATCH", path, {"metadata": {"labels": {"app": "x"}}}, MERGE)
            await side.peek("PATCH", path, {"data": {"x": "1"}}, MERGE)
            await side.peek("PATCH", path, {"metadata": {"labels": {"app": "y"}}}, MERGE)

        version = listed["metadata"]["resourceVersion"]
        await side.watch(side.path("configmaps"), 3, change, resourceVersion=version, labelSelector="app=x")

    await both.agree(story)


async def test_initial_events_end_with_a_bookmark(both):
    def ended(event):
        return event["object"]["metadata"].get("annotations", {}).get("k8s.io/initial-events-end")

    async def story(side):
        for name in ("a", "b"):
            await side.peek("POST", side.path("configmaps"), config_map(name))
        query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
        events = await side.watch(side.path("configmaps"), 3, **query)
        side.transcript.append([ended(event) for event in events])

    await both.agree(story)


async def test_a_watch_ends_when_it_was_told_to(both):
    async def story(side):
        events = await side.watch(side.path("configmaps"), 1, resourceVersion="0", timeoutSeconds="1")
        assert events == []
        await side.watch(side.path("configmaps"), 1, resourceVersion="nonsense")

    await both.agree(story)
