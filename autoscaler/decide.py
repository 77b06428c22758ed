"""Decides at one moment, as a pure function of an observation, the policy and the time. docs/design.md 4.

Four phases, each from one `Decision` to the next:

- guard settles what room cannot help, and says who waits and who may grow;
- preempt serves who waits: a job that fits once elastic workers leave makes just enough of them leave, and one that
  would not fit even then disturbs nobody;
- scale_up gives the room left after every min, in whole workers, to the job that gains most by it, as much as it can
  use, then to the next one;
- hold gives everybody else the step that changes nothing.

Every job gets exactly one step with one reason. While nothing else happens, the next plan does not take back what this
one did.
"""

from __future__ import annotations

from turnout.autoscaler.model import Observation, Policy, Step
from turnout.autoscaler.scaling.decision import Decision
from turnout.autoscaler.scaling.guard import guard
from turnout.autoscaler.scaling.preempt import preempt
from turnout.autoscaler.scaling.scale_up import scale_up


def decide(observation: Observation, policy: Policy, now_s: float) -> list[Step]:
    """Return one step for each job, in the order of the jobs. now_s: seconds since 1970."""
    decision = guard(observation, policy, now_s)
    decision = preempt(decision, observation, policy, now_s)
    decision = scale_up(decision, observation, policy, now_s)
    return hold(decision, observation)


def hold(decided: Decision, observation: Observation) -> list[Step]:
    """Return every job's step, in the last phase. A job without a step keeps its size, for a reason of its own."""
    steps = decided.steps
    return [step for each in observation.jobs if (step := steps.get(each.token) or each.hold_step) is not None]
