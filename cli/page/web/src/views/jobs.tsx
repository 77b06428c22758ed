/** Jobs: which wait, which run, and why? */

import type { ViewProps } from "../app";
import type { JobItem, List } from "../api";
import { Filter, Heading, JobLink, Pager, QueueLink, Reason, State, queryOf, useAnswer } from "../common";
import { amount, clock, duration } from "../format";
import { startText } from "./queues";

const FILTERS = ["text", "state", "queue", "namespace", "kind", "reason"] as const;

export function JobsView({ query, version, set, stale }: ViewProps) {
  const asked = useAnswer<List<JobItem>>(`jobs${queryOf(query, FILTERS)}`, version);
  const rows = asked.data?.items ?? [];
  return (
    <>
      <Heading question="Which jobs wait and run, how large are they, and why?">Jobs</Heading>
      <div class="filters">
        <Filter name="text" label="Name" value={query.get("text") ?? ""} set={set} />
        <Filter name="state" label="State" value={query.get("state") ?? ""} set={set} options={["waiting", "running", "suspended"]} />
        <Filter name="queue" label="Queue" value={query.get("queue") ?? ""} set={set} />
        <Filter name="namespace" label="Namespace" value={query.get("namespace") ?? ""} set={set} />
      </div>
      <State asked={asked} what="the jobs" />
      <div class="wide"><table class="cards">
        <caption class="hidden">Jobs, those that wait first</caption>
        <thead><tr><th>Job</th><th>Queue</th><th>State</th><th class="number">Workers</th><th class="number">GPUs</th><th class="number">elastic</th><th class="number">For</th><th>Reason</th><th>Start</th></tr></thead>
        <tbody>{rows.map((job) => (
          <tr key={job.job}>
            <th scope="row"><JobLink job={job.job} /></th>
            <td data-label="Queue"><QueueLink queue={job.queue} /></td>
            <td data-label="State"><span class={`state ${job.state}`}>{job.state}</span></td>
            <td class="number" data-label="Workers">{job.workers} of {job.min_workers}–{job.max_workers}</td>
            <td class={job.gpus ? "number" : "number muted"} data-label="GPUs">{amount(job.gpus)}</td>
            <td class={job.elastic_gpus ? "number" : "number muted"} data-label="elastic">{amount(job.elastic_gpus)}</td>
            <td class="number" data-label="For" title={clock(job.since_at_s)}>{duration(job.since_at_s === null ? null : Date.now() / 1000 - job.since_at_s)}</td>
            <td data-label="Reason" title={job.evidence}><Reason word={job.reason} /></td>
            <td data-label="Start">{job.state === "waiting" && !stale ? startText(job) : "–"}</td>
          </tr>
        ))}</tbody>
      </table></div>
      {asked.data && rows.length === 0 ? <p>No job matches. {[...query.keys()].length ? "Remove a filter." : "Nobody asks for GPUs."}</p> : null}
      {asked.data ? <Pager total={asked.data.total} next={asked.data.continue} shown={rows.length} offset={Number(query.get("continue") ?? 0)} set={(at) => set({ continue: at })} /> : null}
    </>
  );
}
