"""An extender whose watches a test plays by hand."""

from turnout.jobs.gang import POD_GROUP_PATHS, Dialect
from turnout.scheduler_ext.planner.plans import plans_by
from turnout.scheduler_ext.server.extender import Extender
from turnout.scheduler_ext.server.watches import WatchState


class PlayedWatches(WatchState):
    """Watches that are current and serve no PodGroups, unless a test says otherwise."""

    old = False
    serves = serves_parents = False
    unseen = None

    def missing(self):
        return self.unseen

    def may_be_old(self):
        return self.old

    def may_show_group(self, dialect):
        assert Dialect(dialect) in POD_GROUP_PATHS, "nobody asks about a dialect without PodGroups"
        return self.serves

    def may_show_parents(self):
        return self.serves_parents


class ShownExtender(Extender):
    """An extender that is shown each object by a test."""

    def __init__(self, rules, clock, metrics, notify):
        super().__init__(rules, clock, metrics, notify, PlayedWatches(plans_by(rules), clock))

    def put_pod(self, pod):
        self.watches.put_pod(pod)

    def drop_pod(self, uid):
        self.watches.drop_pod(uid)

    def use_map(self, fabric):
        self.view.layout.set_map(fabric)
