"""Random operations on the store agree with a plain model: 200 runs of 50 steps."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.kit.hypothesis_examples import scaled
from turnout.simulator.api.garbage_collector import collect
from turnout.simulator.api.kinds.catalogue import ROWS
from turnout.simulator.api.model import ApiRefusal
from turnout.simulator.api.store import Store
from turnout.simulator.api.writes.deletion import DeleteOptions

CONFIG_MAPS = next(kind for kind in ROWS if kind.is_named("configmaps"))
NAMES = st.sampled_from("abcdefgh")
HOLD = "turnout.dev/hold"


def everything(obj):
    return True


def refused(reason, write, *args):
    with pytest.raises(ApiRefusal) as refusal:
        write(*args)
    assert refusal.value.reason == reason


class Machine(RuleBasedStateMachine):
    """The model: name -> [uid, data, held by a finalizer, on its way out, its owners' uids]."""

    pages = Bundle("pages")

    def __init__(self):
        super().__init__()
        self.store = Store(lambda later_s: "2026-01-01T00:00:00Z", map("u{:06}".format, itertools.count()).__next__)
        self.model = {}
        self.seen = {0: {}}  # version -> what a list showed then
        self.steps = itertools.count(1)

    def note(self):
        collect(self.store)
        self.seen[self.store.objects.version] = {name: entry[1] for name, entry in self.model.items()}

    def tidy_model(self):
        """Owners that are gone take their dependents along, again and again."""
        while True:
            living = {entry[0] for entry in self.model.values()}
            due = [n for n, entry in self.model.items() if entry[4] and not entry[4] & living and not entry[3]]
            for name in due:
                self.drop(name)
            for entry in self.model.values():
                if entry[4] & living and not entry[3]:
                    entry[4] &= living
            if not due:
                return

    def drop(self, name):
        if self.model[name][2]:
            self.model[name][3] = True
        else:
            del self.model[name]

    @rule(name=NAMES, has_finalizer=st.booleans(), owners=st.lists(NAMES, max_size=2, unique=True))
    def create(self, name, has_finalizer, owners):
        owned = [(o, self.model[o][0]) for o in owners if o in self.model and not self.model[o][3]]
        meta = {"name": name, "finalizers": [HOLD] if has_finalizer else []}
        meta["ownerReferences"] = [{"kind": "ConfigMap", "apiVersion": "v1", "name": o, "uid": uid} for o, uid in owned]
        body = {"metadata": meta, "data": {"n": "0"}}
        if name in self.model:
            refused("AlreadyExists", self.store.create, CONFIG_MAPS, "default", body)
            return
        stored = self.store.create(CONFIG_MAPS, "default", body)
        self.model[name] = [stored.obj["metadata"]["uid"], {"n": "0"}, has_finalizer, False, {uid for _, uid in owned}]
        self.note()

    @rule(name=NAMES, stale=st.booleans())
    def update(self, name, stale):
        data = {"n": str(next(self.steps))}
        if name not in self.model:
            return
        old = self.store.objects.get(CONFIG_MAPS, "default", name)
        version = str(old.version - 1) if stale else str(old.version)
        new = {**old.obj, "metadata": {**old.obj["metadata"], "resourceVersion": version}, "data": data}
        if stale:
            refused("Conflict", self.store.update, CONFIG_MAPS, "default", name, new)
            return
        stored = self.store.update(CONFIG_MAPS, "default", name, new)
        assert stored.version > old.version
        self.model[name][1] = data
        self.note()

    @rule(name=NAMES)
    def delete(self, name):
        if name not in self.model:
            refused("NotFound", self.store.delete, CONFIG_MAPS, "default", name)
            return
        self.store.delete(CONFIG_MAPS, "default", name)
        self.drop(name)
        self.tidy_model()
        self.note()

    @rule(name=NAMES)
    def delete_another(self, name):
        if name in self.model:
            wish = DeleteOptions(only_if=(("uid", "somebody-else"),))
            refused("Conflict", self.store.delete, CONFIG_MAPS, "default", name, wish)

    @rule(name=NAMES)
    def release(self, name):
        """Take the finalizer off."""
        if name not in self.model:
            return
        old = self.store.objects.get(CONFIG_MAPS, "default", name)
        new = {**old.obj, "metadata": {**old.obj["metadata"], "finalizers": []}}
        self.store.update(CONFIG_MAPS, "default", name, new)
        self.model[name][2] = False
        if self.model[name][3]:
            del self.model[name]
            self.tidy_model()
        self.note()

    @rule(target=pages, size=st.integers(1, 3))
    def first_page(self, size):
        page = self.store.objects.page(CONFIG_MAPS, "default", everything, size, None)
        return page, size, [stored.obj["metadata"]["name"] for stored in page.items]

    @rule(begun=consumes(pages))
    def other_pages(self, begun):
        """Whatever happened in between, the pages show one moment, whole."""
        page, size, names = begun
        while page.rest is not None:
            page = self.store.objects.page(CONFIG_MAPS, "default", everything, size, page.rest, page.version)
            names = names + [stored.obj["metadata"]["name"] for stored in page.items]
        past = [version for version in self.seen if version <= page.version]
        assert names == sorted(self.seen[max(past)])

    @rule(data=st.data())
    def replay(self, data):
        """From any version that was seen, the history leads to what is there."""
        version = data.draw(st.sampled_from(sorted(self.seen)))
        shown = dict(self.seen[version])
        journal = self.store.objects.journal(CONFIG_MAPS)
        for change in journal.since(journal.after(version)):
            name = change.now.obj["metadata"]["name"]
            assert (change.before is None) == (name not in shown)
            shown[name] = change.now.obj["data"]
            if change.deleted:
                del shown[name]
        assert shown == {name: entry[1] for name, entry in self.model.items()}

    @invariant()
    def they_agree(self):
        found = {s.obj["metadata"]["name"]: s for s in self.store.objects.find(CONFIG_MAPS, "", everything)}
        assert found.keys() == self.model.keys()
        for name, (uid, data, _, leaving, owners) in self.model.items():
            meta = found[name].obj["metadata"]
            assert (meta["uid"], found[name].obj["data"]) == (uid, data)
            assert bool(meta.get("deletionTimestamp")) == leaving
            assert {o["uid"] for o in meta.get("ownerReferences") or ()} >= owners
            assert meta["resourceVersion"] == str(found[name].version)


TestStore = Machine.TestCase
TestStore.settings = settings(max_examples=scaled(200), stateful_step_count=50, deadline=None)
