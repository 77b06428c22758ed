"""The words by which programs explain themselves: what each reason means, where to look, and what to do about it.

The words are those of the enumerations of the autoscaler, the extender, the nominator and the job controllers; a test
holds that each of these words is here. docs/reference/reasons.md, `turnout explain` and `turnout why` print the texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class Meaning(NamedTuple):
    """The text of one reason, in whole sentences."""

    means: str
    next: str  # what changes it, and by whom
    look: str = ""  # where to see more, "" for the usual place of the program


AUTOSCALER: Mapping[str, Meaning] = {
    "IdleRoom": Meaning(
        "It grows: its queue has room that nobody waits for.",
        "Nothing is to be done. turnout.dev/paused: grow keeps it at its size.",
    ),
    "RoomReturned": Meaning(
        "It grows: it gave workers to a job that left their room unused, and has them back.",
        "Nothing is to be done.",
    ),
    "MakesRoom": Meaning(
        "It shrinks: a waiting job gets its min from these workers.",
        "It grows again once there is room. With a higher turnout.dev/priority others give first.",
    ),
    "RoomTaken": Meaning(
        "It shrinks: workers above its min found no node, since other pods took the room.",
        "Nothing is to be done: it grows again once there is room.",
    ),
    "AtMax": Meaning(
        "It has all the workers that are wanted.",
        "Raise turnout.dev/max-workers, or take away turnout.dev/wish-workers where somebody has set a size by hand.",
    ),
    "Cooldown": Meaning(
        "Its size was changed a short while ago.",
        "Wait until the cooldown is over, or set a shorter turnout.dev/cooldown.",
        "turnout why JOB: the row balance.",
    ),
    "NoFreeRoom": Meaning(
        "There is no room for one more step of it, on the nodes or in its queue.",
        "Wait until somebody leaves, make its workers smaller, or ask the queue's admin for more.",
        "turnout why JOB: the rows queue, quota and room.",
    ),
    "HeadroomKept": Meaning(
        "The room that is left is kept free.",
        "Nothing is to be done. The admin sets it: --headroom-gpus, or turnout.dev/headroom-gpus of the queue.",
    ),
    "RoomSettles": Meaning(
        "There is room for it, but the room has not been idle for as long as a restart takes.",
        "Nothing is to be done: it grows if nobody takes the room meanwhile.",
    ),
    "PendingMin": Meaning(
        "The room is promised to a job that waits for its min, and every min comes first.",
        "Nothing is to be done: it grows when nobody waits any more.",
    ),
    "MarginalGainTooSmall": Meaning(
        "Its next worker would make it hardly faster, or not pay for the restart.",
        "Make it scale better, or correct turnout.dev/scaling-curve and turnout.dev/restart-cost.",
        "turnout why JOB: the rows size and balance, and the job's annotation turnout.dev/scaling-curve.",
    ),
    "RestartBudgetSpent": Meaning(
        "Restarts have cost it more time than lending has gained it.",
        "It grows again once that time is made up for. Cheaper restarts (turnout.dev/restart-cost) make it sooner.",
        "turnout why JOB: the row balance.",
    ),
    "NotReady": Meaning(
        "Its last change is not done yet: not every worker has a node.",
        "Wait until its workers run; if they do not, look at their Events.",
        "kubectl describe of the worker's pods.",
    ),
    "Paused": Meaning(
        "Its owner has forbidden changes of its size.",
        "Take away turnout.dev/paused or turnout.dev/paused-until.",
    ),
    "Rigid": Meaning(
        "Its min equals its max, so it has one size only.",
        "Give it room between turnout.dev/min-workers and turnout.dev/max-workers.",
    ),
    "AdapterRefused": Meaning(
        "It cannot be resized as it is: that would do harm.",
        "Change what is named here; until then it keeps its size and counts in its queue.",
        "turnout why JOB: the decision names the cause.",
    ),
    "QueueClosed": Meaning(
        "Its queue takes nothing new.",
        "Ask the queue's admin to open it, or submit the job to another queue.",
        "turnout queues: the state of its queue.",
    ),
    "Suspended": Meaning(
        "It is suspended.",
        "Resume it: take away spec.suspend, or let Kueue admit it.",
    ),
    "SchedulersTurn": Meaning(
        "It waits, and there is room for its min: its scheduler has to place it.",
        "Wait a few seconds; if it lasts, look at the Events of its pods, and at its PodGroup.",
        "kubectl describe of its pods and of its PodGroup.",
    ),
    "WaitsForRoom": Meaning(
        "It waits, and elastic workers leave for it.",
        "Nothing is to be done: it starts once they are gone.",
    ),
    "NeedsMore": Meaning(
        "It waits: it would not fit even if every elastic worker left.",
        "Wait until running jobs end, lower its min, or make its workers smaller.",
        "turnout why JOB: the rows quota, room and gang.",
    ),
    "OverQuota": Meaning(
        "It waits, and it cannot start: its min is more than its queue may ever have.",
        "Lower its min, or ask the queue's admin for a higher limit.",
        "turnout queues: the limit of its queue.",
    ),
    "Unschedulable": Meaning(
        "It waits, and no scheduler binds it now: no room is made or kept for it.",
        "Look at its pods: their gates, schedulerName, volumes and affinity. It is tried again after a while.",
        "kubectl describe of its pods: gates, schedulerName, volumes, affinity.",
    ),
    "StaleSnapshot": Meaning(
        "The autoscaler's view of the cluster is too old or incomplete, so nothing is changed.",
        "Look at the autoscaler's log and at the API server: a watch has been silent, or a list fails.",
        "The autoscaler's log, and its metric turnout_autoscaler_observation_age_seconds.",
    ),
    "NodesUnready": Meaning(
        "So many nodes are not ready that the autoscaler does not trust what it sees: nothing is changed.",
        "The admin has to look after the nodes; it goes on by itself.",
        "turnout nodes, and kubectl get nodes.",
    ),
    "ClockJumped": Meaning(
        "A clock has jumped: nothing is changed until two looks at the cluster have passed.",
        "Nothing is to be done; the admin sees to the clocks of the nodes.",
        "The clocks of the nodes of the autoscaler and of the API server.",
    ),
    "AllPaused": Meaning(
        "An admin has stopped all changes.",
        "The admin ends it: turnout resume --all.",
        "The ConfigMap that --orders names.",
    ),
    "Released": Meaning(
        "An admin takes back everything that is lent: each job goes to its min.",
        "The admin ends it: turnout resume --all.",
        "The ConfigMap that --orders names.",
    ),
    "GangMinLowered": Meaning(
        "It shrinks below the minCount of its PodGroup, so the minCount was lowered first.",
        "Nothing is to be done: the minCount rises again with the number of pods that run.",
        "The annotations turnout.dev/stated-min-count and turnout.dev/wrote-min-count of the PodGroup.",
    ),
    "GangMinRaised": Meaning(
        "More of its pods run again, so the minCount of its PodGroup was raised, at most to the stated number.",
        "Nothing is to be done.",
        "The annotation turnout.dev/stated-min-count of the PodGroup.",
    ),
    "GangMinRefused": Meaning(
        "The API server refuses to change the minCount of its PodGroup, so a pod that is lost later may have to wait.",
        "Use Kubernetes 1.37 or newer, where minCount may change, or state a minCount of at most the job's min.",
        "The message of the Event, and the PodGroup that it names.",
    ),
    "GangShared": Meaning(
        "Pods of others name its PodGroup, too, and the PodGroup has no owner: its minCount is left as it is.",
        "Give each job a PodGroup of its own, or name the job in the ownerReferences of the PodGroup.",
        "The PodGroup that the Event names.",
    ),
    "GangNotOwned": Meaning(
        "Another object owns the PodGroup that its pods name: its minCount is left as it is.",
        "Name the job in the ownerReferences of the PodGroup, or name a PodGroup of the job's own.",
        "The ownerReferences of the PodGroup that the Event names.",
    ),
    "UnknownAnnotation": Meaning(
        "It has an annotation that begins with turnout.dev/ and that no program reads.",
        "Correct the name: the Event names a similar one where there is one.",
        "The annotations of the job.",
    ),
}
NODES: Mapping[str, Meaning] = {
    "NodeTainted": Meaning(
        "The node is tainted: a check has proven it faulty.",
        "Repair the node. The taint ends by itself once a check passes there or its time is up.",
    ),
    "NodeTaintedAgain": Meaning(
        "The node failed its check on trial, so it is tainted for twice as long.",
        "Repair the node, or take it out of the cluster.",
    ),
    "NodeSuspected": Meaning(
        "Fewer pods than --taint-verdicts needs have reported the node so far.",
        "Nothing is to be done: the next report decides.",
    ),
    "NodeStillFaulty": Meaning(
        "Another pod reports a fault of a node that is tainted already.",
        "Repair the node.",
    ),
    "TaintExpired": Meaning(
        "The time of the taint is up: the node is on trial, and the next check decides.",
        "Nothing is to be done.",
    ),
    "NodeRecovered": Meaning(
        "A check on the node has passed: the taint and the record are removed.",
        "Nothing is to be done.",
    ),
    "FreedByHand": Meaning(
        "A person has removed the taint: it stays away until the node fails again.",
        "Nothing is to be done.",
    ),
    "RecordForgotten": Meaning(
        "No check has reported on the node for a week: its record is removed.",
        "Nothing is to be done.",
    ),
    "ShareReached": Meaning(
        "The node is not tainted: as many nodes are tainted as --taint-share allows.",
        "Repair the tainted nodes, or raise --taint-share.",
    ),
    "TaintedByHand": Meaning(
        "A person has set the taint: the autoscaler leaves the node alone.",
        "Remove the taint by hand once the node is repaired.",
    ),
    "BadVerdict": Meaning(
        "The pod's report on its node cannot be read, or it is too long.",
        "Look at the annotation: only turnout-run writes it.",
        "The annotation turnout.dev/node-verdict of the pod.",
    ),
    "OtherNode": Meaning(
        "The report names another node than the one that the pod runs on, or the pod has no node.",
        "Look who wrote the annotation: a report counts for the pod's own node alone.",
        "The annotation turnout.dev/node-verdict of the pod.",
    ),
    "UnknownNode": Meaning(
        "The report names a node that does not exist.",
        "Nothing is to be done where the node was removed.",
        "kubectl get nodes.",
    ),
    "NodeWithoutGpus": Meaning(
        "The report names a node without GPUs: only nodes with GPUs are tainted.",
        "Nothing is to be done.",
    ),
    "StaleVerdict": Meaning(
        "The report is too old, or its time lies in the future.",
        "Check the clocks of the node and of the API server.",
        "The annotation turnout.dev/node-verdict of the pod.",
    ),
    "OnlySlow": Meaning(
        "The node is slow, and --taint-slow is not given.",
        "Give --taint-slow if slow nodes are to be tainted.",
    ),
    "OnlyALink": Meaning(
        "A link between two nodes is bad: neither of the nodes is tainted.",
        "Look at the network between the two nodes.",
    ),
    "OthersHaveProven": Meaning(
        "A check has passed on the node, in a namespace that had reported no fault: the taint stays.",
        "Wait for a check in the namespace that reported the fault, or for the end of the taint.",
    ),
    "CheckedAlone": Meaning(
        "One node passed a check alone, but the report was about its network: the taint stays.",
        "Wait for a check together with another node, or for the end of the taint.",
    ),
}
EXTENDER: Mapping[str, Meaning] = {
    "Placed": Meaning(
        "The whole gang is bound. The Event on the object that owns the pods gives leaf and spine switches, ring "
        "crossings, and an estimate of what default scheduling would have given on the same capacity.",
        "Nothing is to be done.",
        "turnout topology: who holds which nodes under each switch.",
    ),
    "NoRoom": Meaning(
        "The fabric, or the nodes that the scheduler offered, have not enough room for the minimum of the gang.",
        "Wait, or lower the minimum.",
        "turnout topology: the free GPUs under each switch.",
    ),
    "TierTooNarrow": Meaning(
        "There is room in all, but in no domain of the widest tier that the gang allows.",
        "Raise turnout.dev/topology-tier, or use preferred instead of required.",
        "turnout explain PODSxGPUS --tier N, and turnout topology.",
    ),
    "OffMap": Meaning(
        "Members of the gang run on hosts that the map does not have, or outside the tier that the gang allows.",
        "Complete the map, or delete the gang's pods so that all of them start afresh.",
        "turnout topology: the line (not on the map).",
    ),
    "PlanRejected": Meaning(
        "The plan that was made breaks a term that the gang requires, so it is not used; or the planner ended with an "
        "error for this gang. This is a fault of Turnout. The Event names the term, or the place of the error.",
        "Report it with the Event, the gang's pods and the map. Until then, delete the gang's waiting pods to have the "
        "gang planned anew.",
        "turnout_plans_rejected_total, by term.",
    ),
    "NoMap": Meaning(
        "The gang requires a tier, and the map names no host.",
        "Write the map.",
        "The ConfigMap that --configmap names.",
    ),
    "GangIncomplete": Meaning(
        "The pod is held until as many members exist as must start together.",
        "Create the missing pods, or lower the minimum.",
        "kubectl get pods: how many members exist.",
    ),
    "GangUnknown": Meaning(
        "The PodGroup or owner that says how many pods must start together does not exist. Behind our "
        "scheduling gate the pod waits for it; otherwise the extender waits up to 10 s and then places the "
        "pod without it.",
        "Create the PodGroup, or state the minimum on the pods.",
        "The labels and annotations of the pod, and kubectl get podgroups.",
    ),
    "NobodyPlaces": Meaning(
        "The pod waits behind our scheduling gate, and no nominator has held its Lease for a while.",
        "Start the nominator. The Event says when gates are lifted without a plan.",
        "The pods of turnout-nominator.",
    ),
    "GateWithoutGang": Meaning(
        "The pod carried our scheduling gate and belongs to no gang, so the gate was lifted.",
        "Nothing is to be done, or remove the gate from the pod's template.",
    ),
    "Preempting": Meaning(
        "The pod waits behind our scheduling gate, and pods of a lower priority are leaving for it.",
        "Wait until these pods are gone.",
    ),
    "Preempted": Meaning(
        "The pod was evicted for a gang of a higher priority, which the Event names.",
        "Nothing is to be done: its job makes another pod, which waits.",
    ),
    "EvictionRefused": Meaning(
        "A PodDisruptionBudget keeps a pod that would have to leave for this gang.",
        "Loosen the budget, or wait: the eviction is tried again every 30 s or when the server says.",
        "kubectl get pdb.",
    ),
    "GangPartial": Meaning(
        "Some members of the gang have a host, and the rest finds none.",
        "Free room near the members that run, or delete the gang.",
        "The metric turnout_gangs, and turnout topology.",
    ),
    "GangMoved": Meaning(
        "The pod was evicted with the rest of its gang. The gang was below its minimum, had no room, and fits "
        "elsewhere as a whole (turnout.dev/repair: move).",
        "Nothing is to be done: its controller makes the pods anew.",
    ),
    "GangMoveFailed": Meaning(
        "Hosts were reserved for the move of the gang (turnout.dev/repair: move), and not all of it that must run "
        "together runs there in time. The hosts are given back.",
        "See why the pods wait. For an hour the gang is not moved again.",
        "kubectl describe of the pods, and turnout why.",
    ),
    "GangGivenUp": Meaning(
        "The pod was evicted with the rest of its gang. The gang was below its minimum and had no room "
        "(turnout.dev/repair: give-up).",
        "Nothing is to be done: its controller makes the pods anew, and they wait together.",
    ),
    "PlannedHostMissing": Meaning(
        "The scheduler does not offer hosts that a required gang needs, though these hosts have room.",
        "See which filter of the scheduler refuses them (NUMA, volumes, spread), and set "
        "percentageOfNodesToScore: 100.",
        "kubectl describe of the pod: the reasons of the scheduler's filters.",
    ),
    "OldView": Meaning(
        "The pod was refused from a view of the cluster that may be old. The scheduler asks again.",
        "Nothing is to be done unless it lasts.",
        "The metric turnout_watch_reconnects_total, and the API server.",
    ),
    "BadAnnotation": Meaning(
        "An annotation cannot be read and counts as absent, or its name is nearly one of ours.",
        "Correct the annotation: the Event says how.",
    ),
    "PodUnreadable": Meaning(
        "The extender cannot judge the pod: a quantity cannot be read, or the pod has more than 64 terms of "
        "node affinity, 1,024 values in them, or 64 labels, tolerations, resources or host ports.",
        "Correct the pod: the Event says what is wrong.",
    ),
    "WishNotKept": Meaning(
        "A part of what the gang asks of its place is understood and not kept. The Event is written once a gang.",
        "Compare the request with the table of what is kept in wishes.md.",
    ),
    "MapApplied": Meaning(
        "The new map is in use.",
        "Nothing is to be done.",
        "turnout topology.",
    ),
    "MapRejected": Meaning(
        "The new map has faults, which the Event names with their lines. The last good map stays in use.",
        "Correct the faults.",
        "turnout topology check FILE: all faults.",
    ),
    "MapMissing": Meaning(
        "The ConfigMap of the map is gone. The last good map stays in use.",
        "Create the ConfigMap again.",
        "The ConfigMap that --configmap names.",
    ),
    "MapChangedMuch": Meaning(
        "The new map is in use, and more than 30 % of the hosts have moved in it.",
        "Check that the change was intended.",
        "turnout topology.",
    ),
    "MapHeld": Meaning(
        "The new map is not in use: it moves more than 30 % of the hosts, and --confirm-large-changes is given.",
        "Set turnout.dev/confirmed-map to the digest in the Event, or edit the map again.",
        "turnout topology check FILE.",
    ),
}
NOMINATOR: Mapping[str, Meaning] = {
    "Planned": Meaning(
        "A node of the gang's plan is written to the pod, as nominated node.",
        "Nothing is to be done.",
    ),
    "Replanned": Meaning(
        "The plan of the gang has changed, so another node is written to the pod.",
        "Nothing is to be done.",
    ),
    "Refused": Meaning(
        "The nomination is cleared: the gang has no plan any more.",
        "Look at the Events of the gang's pods for the reason of the refusal.",
    ),
    "Expired": Meaning(
        "The nomination is cleared: the scheduler did not bind the pod there in time (--expire-s).",
        "See whether the scheduler works, and which of its filters refuses the node.",
    ),
    "NotOursToPlace": Meaning(
        "The nomination is cleared: the pod now asks for something that the planner cannot judge.",
        "Nothing is to be done: the scheduler places the pod.",
    ),
    "Cleared": Meaning(
        "The nomination is cleared because a person asked for it (turnout clear-nominations).",
        "Nothing is to be done.",
    ),
    "Placed": Meaning(
        "The scheduling gate is lifted: the pod has a place in the plan of its gang.",
        "Nothing is to be done.",
    ),
    "NotJudged": Meaning(
        "The scheduling gate is lifted with those of its gang: the plan has no place for this pod.",
        "Nothing is to be done: the scheduler places the pod.",
    ),
    "Completing": Meaning(
        "The scheduling gate is lifted: the gang has started and lacks this pod.",
        "Nothing is to be done: the scheduler finds or makes room.",
    ),
    "NoGang": Meaning(
        "The scheduling gate is lifted: no other pod has to start with this one.",
        "Nothing is to be done.",
    ),
    "Released": Meaning(
        "The scheduling gate is lifted because a person or the CronJob of nominator.failOpenAfterSeconds asked "
        "for it (turnout release).",
        "Nothing is to be done.",
    ),
}
CONTROLLER: Mapping[str, Meaning] = {
    "Created": Meaning(
        "The job was accepted, and its pods are being created.",
        "Nothing is to be done.",
    ),
    "GangStarted": Meaning(
        "As many pods as the min of the gang have started, so scheduleTimeoutSeconds no longer ends the job.",
        "Nothing is to be done.",
    ),
    "Running": Meaning("The job runs.", "Nothing is to be done."),
    "Restarting": Meaning(
        "A pod of the job failed and is made anew.",
        "Nothing is to be done unless it happens again and again.",
        "turnout logs JOB, and the Events of the pod.",
    ),
    "Succeeded": Meaning(
        "The job has succeeded. This condition is final.",
        "Nothing is to be done.",
    ),
    "Failed": Meaning(
        "The job has failed. This condition is final.",
        "Correct the cause that the message names, and submit the job again.",
        "The message of the condition, and turnout logs JOB.",
    ),
    "Suspended": Meaning(
        "The job is suspended: it owns no pods (an ElasticJob keeps its master).",
        "Remove spec.suspend, or spec.runPolicy.suspend, or let Kueue admit it.",
        "turnout describe JOB.",
    ),
    "Resumed": Meaning(
        "The job is no longer suspended: its pods are created.",
        "Nothing is to be done.",
    ),
    "Invalid": Meaning(
        "The object cannot be obeyed. The message names the field.",
        "Correct the field.",
    ),
    "TooLarge": Meaning(
        "The pods of the job would have more than 512 MiB together, replicas times template.",
        "Make the template smaller, or ask for fewer replicas.",
        "The message: the bound and the size.",
    ),
    "NameTaken": Meaning(
        "An object of somebody else has the name of a child of this job.",
        "Delete that object, or name the job differently.",
        "The object that the message names.",
    ),
    "Advice": Meaning(
        "The job runs, and may do something that its owner does not expect. The message says what.",
        "Read the message, and change the job if this is not intended.",
    ),
    "NoNodeOffers": Meaning(
        "No node offers a device that the new job asks for. The Event is written once a job.",
        "Install the device plugin, or correct the name of the resource.",
        "kubectl describe nodes: allocatable.",
    ),
    "BackOff": Meaning(
        "Pods failed again and again, so the next pod is made after a pause, which the message names.",
        "Look why the pods fail.",
        "turnout logs JOB, and the Events of the pods.",
    ),
    "CreationFailed": Meaning(
        "The API server refuses a write. The message is the server's own.",
        "Ask the admin for the quota or the policy that the message names.",
    ),
    "ControllerFault": Meaning(
        "An internal error of turnout-controller keeps the job waiting; it is retried.",
        "Report the error with the log.",
        "The controller's log has the trace.",
    ),
    "ClockJumped": Meaning(
        "A clock has jumped: a deadline or a deletion after ttlSecondsAfterFinished is put off until two looks "
        "at the clock have passed, 20 s.",
        "Nothing is to be done; the admin sees to the clocks of the nodes.",
        "The metric turnout_controller_clock_jump_seconds.",
    ),
}


class ReasonGroup(NamedTuple):
    """The reasons of one program."""

    program: str
    about: str  # what its reasons are about, as a sentence
    look: str  # where to see more of a reason that names no place of its own
    meanings: Mapping[str, Meaning]


GROUPS = (
    ReasonGroup(
        "turnout-autoscaler",
        "Why a job keeps or changes its size, or waits.",
        "turnout why JOB.",
        AUTOSCALER,
    ),
    ReasonGroup(
        "turnout-autoscaler, about nodes",
        "What is done about a faulty node, or about a pod's report on a node.",
        "turnout nodes, and the annotation turnout.dev/node-record of the node.",
        NODES,
    ),
    ReasonGroup(
        "turnout-extender and turnout-nominator",
        "What is reported about pods, gangs and the switch map.",
        "The message of the Event: kubectl describe of the pod.",
        EXTENDER,
    ),
    ReasonGroup(
        "turnout-nominator",
        "Why a nomination is written or cleared, or a scheduling gate is lifted: words of its log and metrics.",
        "The nominator's log.",
        NOMINATOR,
    ),
    ReasonGroup(
        "turnout-controller",
        "What is reported about a job: conditions, Events, log and metrics.",
        "turnout describe JOB: its conditions and Events.",
        CONTROLLER,
    ),
)
WORDS = frozenset(word for group in GROUPS for word in group.meanings)
PAGE = "reference/reasons.html"  # of the docs site


def pointer(word: str, base_url: str) -> str:
    """Return where a reason is explained: a URL on the docs site, or the command `turnout explain WORD`.

    word: the reason, which is not checked. base_url: of the docs site, "" for the command.
    """
    return f"{base_url.rstrip('/')}/{PAGE}#{word.lower()}" if base_url else f"turnout explain {word}"


def without_pointer(message: str, word: str) -> str:
    """Return the message of an Event without the pointer that an EventRecorder adds, if it has one.

    word: its reason.
    """
    where = rf" \((?:turnout explain {re.escape(word)}|https?://\S+/{re.escape(PAGE)}#{re.escape(word.lower())})\)$"
    return re.sub(where, "", message)


def explain(word: str) -> list[str]:
    """Return the lines that explain a reason, in any case, for each program that uses it; [] for another word."""
    lines: list[str] = []
    for group in GROUPS:
        for each, meaning in group.meanings.items():
            if each.lower() == word.lower():
                lines += [*([""] if lines else []), f"{each} ({group.program})"]
                lines += [f"  means  {meaning.means}", f"  look   {meaning.look or group.look}"]
                lines.append(f"  next   {meaning.next}")
    return lines
