/** Queues: my quota, used, lent, borrowed, idle, by whom? Who waits, why, until when? */

import { useEffect, useState } from "preact/hooks";
import type { ViewProps } from "../app";
import type { JobItem, List, QueueHistory, QueueItem, QueueList } from "../api";
import { Board, Filter, Heading, JobLink, QueueLink, Reason, State, queryOf, useAnswer } from "../common";
import { Chart, stackedQueue } from "../chart";
import { DASH, amount, clock, duration } from "../format";
import { Hours } from "./usage";

const WINDOWS = ["1h", "12h", "7d"];

export function QueuesView({ query, version, set, stale }: ViewProps) {
  const asked = useAnswer<QueueList>(`queues${queryOf(query, ["text"], { limit: "200" })}`, version);
  const rows = asked.data?.items ?? [];
  const selected = query.get("queue") ?? (rows.find((row) => !row.hidden && (row.used_gpus || row.waiting_jobs)) ?? rows.find((row) => !row.hidden))?.queue ?? "";
  const idle = rows.reduce((sum, row) => sum + (row.idle_gpus ?? 0), 0);
  const largest = Math.max(1, ...rows.map((row) => Math.max(row.quota_gpus ?? 0, row.used_gpus ?? 0)));
  return (
    <>
      <Heading question="What is each queue's quota, who uses it, and what is lent, borrowed and idle?">Queues</Heading>
      <State asked={asked} what="the queues" />
      <div class="filters"><Filter name="text" label="Queue" value={query.get("text") ?? ""} set={set} /></div>
      {asked.data ? <p>{amount(idle)} GPUs of quotas are idle, and {amount(asked.data.free_gpus)} GPUs are free on open nodes.{idle > asked.data.free_gpus ? " More quota is idle than GPUs are free: quotas promise more than the open nodes have." : ""}</p> : null}
      <div class="wide">
        <table class="cards">
          <caption class="hidden">Queues, in GPUs</caption>
          <thead><tr><th>Queue</th>{["Quota", "Limit", "Used", "Lent", "Borrowed", "Idle", "Running", "Waiting", "Missing"].map((name) => <th key={name} class="number">{name}</th>)}<th>Use of the quota</th></tr></thead>
          <tbody>{rows.map((row) => <QueueLine key={row.queue} row={row} largest={largest} selected={row.queue === selected} />)}</tbody>
        </table>
      </div>
      {asked.data && rows.length === 0 ? <p>No queue matches. Remove the filter, or describe a queue: without one, the nodes alone bound a job.</p> : null}
      {selected ? <Selected key={selected} queue={selected} row={rows.find((row) => row.queue === selected)} version={version} stale={stale} query={query} set={set} /> : null}
      <Hours title="GPU-hours of all queues" level="h2" only={{}} reports={["queue"]} query={query} set={set} />
    </>
  );
}

function QueueLine({ row, largest, selected }: { row: QueueItem; largest: number; selected: boolean }) {
  const numbers: [string, number | null][] = [["Quota", row.quota_gpus], ["Limit", row.limit_gpus], ["Used", row.used_gpus], ["Lent", row.lent_gpus], ["Borrowed", row.borrowed_gpus], ["Idle", row.idle_gpus], ["Running", row.running_jobs], ["Waiting", row.waiting_jobs], ["Missing", row.waiting_gpus]];
  return (
    <tr class={selected ? "selected" : undefined}>
      <th scope="row"><QueueLink queue={row.queue} />{row.open ? null : " (closed)"}</th>
      {row.hidden ? <td colSpan={10} class="muted">You may not list the pods of a namespace of this queue.</td> : (
        <>
          {numbers.map(([name, value]) => <td key={name} class={value ? "number" : "number muted"} data-label={name}>{amount(value)}</td>)}
          <td data-label="Use"><Bar row={row} largest={largest} /></td>
        </>
      )}
    </tr>
  );
}

/** Min, elastic, lent and idle fill the quota; what is borrowed stands behind the line of the quota. */
function Bar({ row, largest }: { row: QueueItem; largest: number }) {
  const own = row.quota_gpus ?? 0, within = Math.max(0, (row.used_gpus ?? 0) - (row.borrowed_gpus ?? 0));
  const min = Math.min(row.min_gpus ?? 0, within);
  const parts: [string, number][] = [["min", min], ["elastic", within - min], ["lent", row.lent_gpus ?? 0], ["idle", row.idle_gpus ?? 0], ["borrowed", row.borrowed_gpus ?? 0]];
  const text = parts.filter(([, gpus]) => gpus).map(([name, gpus]) => `${name} ${gpus}`).join(", ") || "nothing";
  const scale = 100 / largest;
  let x = 0;
  return (
    <svg class="quota" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label={text}>
      <title>{text}</title>
      {parts.map(([name, gpus]) => { const left = x; x += gpus * scale; return gpus ? <rect key={name} class={`fill-${name}`} x={left} y="1" width={gpus * scale} height="8" /> : null; })}
      {row.quota_gpus === null ? null : <line class="quota-line" x1={own * scale} x2={own * scale} y1="0" y2="10" />}
    </svg>
  );
}

function Selected({ queue, row, version, stale, query, set }: { queue: string; row: QueueItem | undefined; version: number; stale: boolean; query: URLSearchParams; set: ViewProps["set"] }) {
  const window = query.get("window") ?? "1h";
  const [beat, setBeat] = useState(0);
  useEffect(() => { const timer = setInterval(() => setBeat((was) => was + 1), 10_000); return () => clearInterval(timer); }, []);
  const past = useAnswer<QueueHistory>(row && !row.hidden ? `queues/${encodeURIComponent(queue)}/history?window=${window}` : null, version + beat);
  const waiting = useAnswer<List<JobItem>>(row && !row.hidden ? `jobs?state=waiting&limit=50&queue=${encodeURIComponent(queue)}` : null, version);
  const running = useAnswer<List<JobItem>>(row && !row.hidden ? `jobs?state=running&limit=10&sort=-gpus&queue=${encodeURIComponent(queue)}` : null, version);
  if (!row || row.hidden) return null;
  return (
    <section aria-label={`Queue ${queue}`}>
      <h2><bdi>{queue}</bdi></h2>
      <p class="outside"><Board uid="turnout-queue" name="this queue" variables={{ queue }} /></p>
      <p class="choices" role="group" aria-label="Time">{WINDOWS.map((each) => <button key={each} aria-pressed={each === window} onClick={() => set({ window: each })}>{each}</button>)}
        <span class="muted">{past.data && past.data.samples.length > 1 ? sourceOf(past.data) : " as this page has observed it"}</span></p>
      {past.data?.note ? <p class="muted">{past.data.note}</p> : null}
      {past.data && past.data.samples.length > 1 ? <Chart make={stackedQueue} data={past.data.samples} label={`GPUs of queue ${queue} over time`} /> : <p class="muted">The curve begins with the second sample, ten seconds after the page has started.</p>}
      <ul class="legend">{["min", "elastic", "lent", "idle", "borrowed"].map((name) => <li key={name}><span class={`swatch back-${name}`} />{name}</li>)}</ul>
      <h3>Who waits, and why?</h3>
      <WaitingTable jobs={waiting.data?.items ?? []} stale={stale} />
      {waiting.data?.total === 0 ? <p>No job waits.</p> : null}
      <h3>Who holds the most?</h3>
      <div class="wide"><table class="cards">
        <thead><tr><th>Job</th><th class="number">GPUs</th><th class="number">elastic</th><th class="number">workers</th><th>since</th></tr></thead>
        <tbody>{(running.data?.items ?? []).map((job) => <tr key={job.job}><th scope="row"><JobLink job={job.job} /></th><td class="number" data-label="GPUs">{amount(job.gpus)}</td><td class="number" data-label="elastic">{amount(job.elastic_gpus)}</td><td class="number" data-label="workers">{job.workers} of {job.max_workers}</td><td data-label="since">{clock(job.since_at_s)}</td></tr>)}</tbody>
      </table></div>
      {running.data?.total === 0 ? <p>No job runs in it.</p> : null}
      <Hours title="GPU-hours of this queue" only={{ queue }} reports={["day", "user", "job", "lending"]} query={query} set={set} />
    </section>
  );
}

/** Where the curve is from. */
function sourceOf(past: QueueHistory): string {
  const first = past.samples[0]?.[0], own = past.own_since_at_s;
  if (own === null) return ` since ${clock(first)} from Prometheus`;
  return first !== undefined && first < own ? ` since ${clock(first)} from Prometheus, since ${clock(own)} as this page has observed it` : ` as this page has observed it since ${clock(own)}`;
}

export function WaitingTable({ jobs, stale }: { jobs: JobItem[]; stale: boolean }) {
  const now = Date.now() / 1000;
  if (jobs.length === 0) return null;
  return (
    <div class="wide"><table class="cards">
      <thead><tr><th>Job</th><th class="number">Needs</th><th class="number">Waits</th><th class="number">Before it</th><th>Reason</th><th>Evidence</th><th>Next step</th><th>Start</th></tr></thead>
      <tbody>{jobs.map((job) => (
        <tr key={job.job}>
          <th scope="row"><JobLink job={job.job} /></th>
          <td class="number" data-label="Needs">{job.min_workers} × {job.gpus_per_worker} GPUs</td>
          <td class="number" data-label="Waits">{duration(job.since_at_s === null ? null : now - job.since_at_s)}</td>
          <td class="number" data-label="Before it">{job.before_jobs ? `${job.before_jobs} jobs, ${job.before_gpus} GPUs` : "none"}</td>
          <td data-label="Reason"><Reason word={job.reason} /></td>
          <td data-label="Evidence">{job.evidence}</td>
          <td data-label="Next step">{job.next_step}</td>
          <td data-label="Start">{stale ? DASH : startText(job)}</td>
        </tr>
      ))}</tbody>
    </table></div>
  );
}

/** A forecast is an interval. */
export function startText(job: JobItem): string {
  const start = job.start;
  if (start === null || start.likely_at_s === null) return job.reason === "NeedsMore" || job.reason === "OverQuota" ? "never at this size" : "not known";
  return `about ${clock(start.likely_at_s)}, ${clock(start.earliest_at_s)} to ${clock(start.latest_at_s)}`;
}
