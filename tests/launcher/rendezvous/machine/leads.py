"""The coordinator of one agent, on a network that a test bends.

It does what launcher/rendezvous/transport/coordinator_server.py does, and decides by the real state_machine.py
and liveness.py.
"""

from dataclasses import replace

from turnout.launcher.coordinator_messages import Formed, Heartbeat, LastWorld, Redirect, Successor, Welcome
from turnout.launcher.model import Reason
from turnout.launcher.rendezvous.state import (
    Claim,
    Denied,
    Disconnect,
    Granted,
    GrantExpired,
    JobOver,
    Joined,
    Logged,
    Lost,
    MergeStacks,
    MessageSent,
    Phase,
    SendMessage,
    StepDown,
    Ticked,
    Unanswered,
    Wake,
    could_grow_by,
)
from turnout.launcher.rendezvous.state_machine import excuse_silence, silent_members, steps

BEAT_S, SILENCE_S, RENEW_S = 2.0, 10.0, 5.0


class Leads:
    """The coordinator of one agent: launcher/rendezvous/transport/coordinator_server.py."""

    def __init__(self, agent, state, held):
        self.agent, self.network, self.state, self.held = agent, agent.network, state, held
        self.peers, self.heard_s, self.inbox = {}, {}, []
        self.since_s = self.looked_s = self.renewed_s = self.renews_s = self.network.now_s
        self.wakes_s = self.claim = self.merge = None
        self.first = {agent.id: Successor(agent.id, *agent.here)}

    def admit(self, conn, join):
        old = self.peers.get(join.member.id)
        self.peers[join.member.id], conn.host = conn, self
        self.heard_s[join.member.id] = self.network.now_s
        if old is not None:
            old.end(self.network.now_s)
        self.first.setdefault(conn.member.id, Successor(conn.member.id, *conn.member.here))
        first = tuple(self.first.values())
        conn.say("down", self.network.now_s, Welcome(b"", self.state.job.member.id, BEAT_S, SILENCE_S, first))
        arguments = join.elastic_spec, join.base, join.budget, join.worker_count
        self.inbox.append(Joined(join.member, *arguments, importing_s=join.importing_s))

    def reads(self, conn, message):
        id_ = conn.member.id
        if self.peers.get(id_) is not conn:
            return
        self.heard_s[id_] = self.network.now_s
        if message is None:
            self.forget(id_, Reason.MEMBER_LOST)
        else:
            self.inbox.append(MessageSent(id_, message))

    def forget(self, id_, reason):
        del self.peers[id_]
        if id_ != self.agent.id:
            self.first.pop(id_, None)
        self.heard_s.pop(id_, None)
        self.inbox.append(Lost(id_, reason))

    def turn(self):
        events, self.inbox = self.inbox, []
        self.state, effects = steps(self.state, events, self.network.now_s)
        for effect in effects:
            if self.agent.lead is self:
                self.does(effect)

    def does(self, effect):
        now_s = self.network.now_s
        if self.network.nodes is not None:
            self.network.nodes.sees(self, effect)
        match effect:
            case SendMessage(ids=ids, message=message):
                of = None
                if isinstance(message, Formed):
                    of = (self.agent.id, self.since_s, message.round)
                    self.network.formed(of, self.state.world)
                for id_ in ids:
                    if (conn := self.peers.get(id_)) is not None:
                        conn.say("down", now_s, message, of)
            case Wake(at_s=at_s):
                self.wakes_s = min(at_s, self.wakes_s or at_s)
            case MergeStacks():
                self.merge = (effect, now_s)
            case Claim(record=record):
                self.claim = (record, now_s)
            case Disconnect(id=id_):
                if (conn := self.peers.pop(id_, None)) is not None:
                    self.heard_s.pop(id_, None)
                    conn.end(now_s)
            case StepDown():
                self.steps_down(effect)
            case JobOver():
                self.ends()
            case Logged(event=what, reason=reason):
                if (what, reason) == ("round_ended", Reason.MEMBER_JOINED):
                    self.network.grows(self)
                self.network.tell(self.agent.id, f"C {what} {reason} {dict(effect.fields)}")

    def steps_down(self, how):
        if how.handover and self.held is not None and self.network.path(self.agent.name, "arbiter"):
            self.network.register.claim(how.to, self.held)
        for conn in self.peers.values():
            conn.say("down", self.network.now_s, Redirect(how.to.coordinator, how.to.address, how.to.port, how.size))
        self.ends()

    def ends(self):
        """Somebody else decides now, or nobody. The round that we have formed binds us."""
        at, base = self.state.fencing, self.agent.base
        if at.newest_round > base.round:
            self.agent.base = LastWorld(at.newest_round, at.newest_size, False, base.busy)
        self.agent.lead = None
        for conn in self.peers.values():
            conn.end(self.network.now_s)

    def answered(self, lost_answer=False, within=True):
        """The arbiter answers a claim, or does not."""
        record, _ = self.claim
        self.claim = None
        if not within or not self.network.path(self.agent.name, "arbiter"):
            self.inbox.append(Unanswered(record.round, "out of reach"))
            return
        lock_view = self.held or self.network.register.look()
        won = self.network.register.claim(record, lock_view)
        if lost_answer:
            self.inbox.append(Unanswered(record.round, "the answer was lost"))
        elif won is not None:
            self.held, self.renewed_s = won, self.network.now_s
            self.inbox.append(Granted(record.round))
        else:
            self.held = self.network.register.look()
            holder = self.held.record
            if holder.coordinator != self.agent.id:
                self.inbox.append(Denied(holder))
            else:
                self.inbox.append(Unanswered(record.round, "the record has changed"))

    def timers(self):
        now_s = self.network.now_s
        if not excuse_silence(self.heard_s, self.looked_s, now_s, SILENCE_S):
            for id_ in silent_members(self.heard_s, now_s, SILENCE_S):
                self.peers[id_].end(now_s)
                self.forget(id_, Reason.MEMBER_SILENT)
        self.looked_s = now_s
        for id_, conn in self.peers.items():
            member = conn.member
            if member.link is conn and member.hears() and not member.paused and self.listens(id_, member):
                self.inbox.append(MessageSent(id_, Heartbeat(member.step, member.step, member.importing_s)))
        if self.wakes_s is not None and now_s >= self.wakes_s:
            self.wakes_s = None
            self.inbox.append(Ticked())
        if self.merge is not None and now_s >= self.merge[1] + 1.0:
            (merge, _), self.merge = self.merge, None
            self.inbox.append(self.network.nodes.folded(self, merge))
        if self.claim is not None and now_s >= self.claim[1] + 1.0:
            self.answered()
        if self.held is not None and now_s >= self.renews_s + RENEW_S and self.state.phase is not Phase.CLAIMING:
            self.renews_s = now_s
            self.renews()
        if self.inbox:
            self.turn()

    def listens(self, id_, member):
        """True if a heartbeat of it would change anything."""
        return member.base.busy or could_grow_by(self.state, id_, self.network.now_s)

    def renews(self):
        if not self.network.path(self.agent.name, "arbiter"):
            if self.network.now_s - self.renewed_s > self.network.fence_s:
                self.inbox.append(GrantExpired())
            return
        mine = replace(self.held, record=replace(self.held.record, budget=self.state.budget))
        lock_view = self.network.register.renew(mine)
        if lock_view is not None:
            self.held, self.renewed_s = lock_view, self.network.now_s
        elif (record := self.network.register.record) is not None and record.coordinator != self.agent.id:
            self.inbox.append(Denied(record))
