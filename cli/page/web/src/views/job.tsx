/** One job: is it well? Where is it? What changed its size? */

import type { ViewProps } from "../app";
import { useEffect, useState } from "preact/hooks";
import type { JobDetail, JobItem, JobSizes, JobTime } from "../api";
import { Chart, steppedSize } from "../chart";
import { Board, Fact, Heading, Linked, QueueLink, Reason, State, useAnswer } from "../common";
import { amount, clock, crossingsText, duration, percent, shortened } from "../format";
import { docsAddress } from "../links";
import { DecisionTable } from "./decisions";
import { WaitingTable } from "./queues";
import { Hours } from "./usage";

export function JobView({ query, set, version, stale }: ViewProps) {
  const id = query.get("id") ?? "";
  const asked = useAnswer<JobDetail>(`jobs/${id.split("/").map(encodeURIComponent).join("/")}`, version);
  const detail = asked.data;
  if (detail === null) return <><Heading question="Is it well, where is it, and what changed its size?"><bdi>{shortened(id, 60)}</bdi></Heading><State asked={asked} what="the job" /></>;
  const job = detail.item;
  return (
    <>
      <Heading question={`${job.kind} in namespace ${job.namespace}`} links={<Boards job={job} />}><bdi class="whole">{job.name}</bdi></Heading>
      <p class="sentence">{detail.sentence}</p>
      <dl class="facts">
        <Fact name="Queue"><QueueLink queue={job.queue} /></Fact>
        <Fact name={job.state === "waiting" ? "Waits for" : "Runs for"}>{duration(job.since_at_s === null ? null : Date.now() / 1000 - job.since_at_s)}</Fact>
        <Fact name="Workers">{job.workers} of {job.min_workers} to {job.max_workers}</Fact>
        <Fact name="GPUs">{amount(job.gpus)}</Fact>
        <Fact name="Elastic GPUs">{amount(job.elastic_gpus)}</Fact>
        <Fact name="Reason"><Reason word={job.reason} /></Fact>
        {detail.ring ? <Fact name="Leaf switches">{detail.ring.switches[0]} ({detail.ring.fewest_leaves} at least)</Fact> : null}
      </dl>
      {job.state === "waiting" ? <WaitingTable jobs={[job]} stale={stale} /> : null}
      <p><a href={`#/fabric?job=${encodeURIComponent(job.job)}`}>Show it on the fabric</a></p>
      {job.state === "waiting" ? null : (
        <section>
          <h2>Workers over time</h2>
          <Sizes key={job.job} id={id} detail={detail} />
        </section>
      )}
      {job.state === "waiting" ? null : <Time key={job.job} id={id} job={job} />}
      <Hours title="GPU-hours of this job" level="h2" only={{ job: job.job }} reports={["job"]} query={query} set={set} />
      <section>
        <h2>Why is it as it is?</h2>
        {detail.why.length ? <dl class="why">{detail.why.map(([label, text]) => <><dt>{label}</dt><dd>{text}</dd></>)}</dl> : <p class="muted">Nothing is decided on it.</p>}
      </section>
      <section>
        <h2>Decisions</h2>
        {detail.decisions.length ? <DecisionTable rows={detail.decisions} withObject={false} /> : <p class="muted">No component has told a decision in the last hour.</p>}
      </section>
      {detail.ranks.length ? <Ranks detail={detail} /> : null}
    </>
  );
}

/** What Prometheus tells of the time before, then what this page has observed. */
function Sizes({ id, detail }: { id: string; detail: JobDetail }) {
  const [beat, setBeat] = useState(0);
  useEffect(() => { const timer = setInterval(() => setBeat((was) => was + 1), 30_000); return () => clearInterval(timer); }, []);
  const before = useAnswer<JobSizes>(`jobs/${id.split("/").map(encodeURIComponent).join("/")}/sizes`, beat).data;
  const job = detail.item, own = detail.sizes[0]?.[0] ?? detail.observed_at_s;
  const past = (before?.sizes ?? []).filter(([at]) => at < own);
  const sizes = [...past, ...detail.sizes];
  return (
    <>
      {sizes.length > 1 ? <Chart make={steppedSize(job.min_workers, job.max_workers, detail.observed_at_s)} data={sizes} label="Workers over time" /> : <p class="muted">Its size has not changed since this page began to observe.</p>}
      {past.length ? <p class="muted">Before {clock(own)} from Prometheus.</p> : before?.note ? <p class="muted">{before.note}</p> : null}
    </>
  );
}

function Boards({ job }: { job: JobItem }) {
  return <Board uid="turnout-job" name="this job" variables={{ queue: job.queue, namespace: job.namespace, kind: job.kind, job: job.name }} />;
}

/** What its time was spent on: the productive share, then each loss on a scale of its own. */
function Time({ id, job }: { id: string; job: JobItem }) {
  const [beat, setBeat] = useState(0);
  useEffect(() => { const timer = setInterval(() => setBeat((was) => was + 1), 60_000); return () => clearInterval(timer); }, []);
  const asked = useAnswer<JobTime>(`jobs/${id.split("/").map(encodeURIComponent).join("/")}/goodput`, beat);
  const time = asked.data;
  return (
    <section>
      <h2>What was its time spent on?</h2>
      <State asked={asked} what="its goodput" />
      {time === null ? null : time.missing ? <p class="muted">{time.missing}</p> : <Spent time={time} />}
      {time === null ? null : <p class="muted">The board of the job in Grafana counts all saves. <Boards job={job} /></p>}
    </section>
  );
}

function Spent({ time }: { time: JobTime }) {
  const losses = time.kinds.filter((row) => row.kind !== "productive");
  const largest = Math.max(0.0001, ...losses.map((row) => row.share));
  return (
    <>
      <p class="sentence">{time.productive === null ? "It reports no steps, so its goodput is not known." : `Goodput ${percent(time.productive, 1)} of ${duration(time.wall_s)}.`} <span class="muted">Measured until {clock(time.until_at_s)}.</span></p>
      <div class="wide"><table class="cards">
        <caption class="hidden">The time of the job by kind</caption>
        <thead><tr><th>Kind</th><th class="number">Share</th><th class="number">Time</th><th class="number">GPU hours</th><th>Losses, compared</th></tr></thead>
        <tbody>{time.kinds.map((row) => (
          <tr key={row.kind}>
            <th scope="row"><Linked href={docsAddress("goodput.html#kinds")}>{row.kind}</Linked></th>
            <td class="number" data-label="Share">{percent(row.share, 1)}</td>
            <td class="number" data-label="Time">{duration(row.seconds)}</td>
            <td class="number" data-label="GPU hours">{row.gpu_hours.toFixed(2)}</td>
            <td data-label="Losses, compared">{row.kind === "productive" ? null : <svg class="quota" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect class="fill-lost" x="0" y="1" width={Math.max(0, 100 * row.share / largest)} height="8" /></svg>}</td>
          </tr>
        ))}</tbody>
      </table></div>
      <h3>Restarts and faults</h3>
      {time.rounds.length ? (
        <div class="wide"><table class="cards">
          <thead><tr><th>Time</th><th class="number">Ago</th><th class="number">Round</th><th>It ended because of</th></tr></thead>
          <tbody>{time.rounds.map((row) => <tr key={row.round}><td data-label="Time">{clock(row.at_s)}</td><td class="number" data-label="Ago">{duration(Date.now() / 1000 - row.at_s)}</td><td class="number" data-label="Round">{row.round}</td><td data-label="It ended because of"><code>{row.reason}</code></td></tr>)}</tbody>
        </table></div>
      ) : <p class="muted">No round has ended: nothing was started again.</p>}
      <h3>Saves</h3>
      {time.saves.length ? (
        <div class="wide"><table class="cards">
          <caption class="hidden">Complete saves in storage, and saves that failed, the newest first</caption>
          <thead><tr><th>Time</th><th class="number">Ago</th><th class="number">Step</th><th>Where</th><th>Outcome</th><th class="number">It took</th></tr></thead>
          <tbody>{time.saves.map((row, at) => <tr key={at}><td data-label="Time">{clock(row.at_s)}</td><td class="number" data-label="Ago">{duration(Date.now() / 1000 - row.at_s)}</td><td class="number" data-label="Step">{row.step}</td><td data-label="Where"><Linked href={docsAddress("checkpoints.html#metrics")}>{row.tier}</Linked></td><td data-label="Outcome">{row.outcome}{row.rank === null ? "" : ` on rank ${row.rank}`}</td><td class="number" data-label="It took">{row.took_s === null ? "not known" : duration(row.took_s)}</td></tr>)}</tbody>
        </table></div>
      ) : <p class="muted">Its logs name no save that is complete in storage, and none that failed.</p>}
    </>
  );
}

const TIERS = ["same node", "same leaf", "same block", "same spine"];

function Ranks({ detail }: { detail: JobDetail }) {
  const ring = detail.ring;
  return (
    <section>
      <h2>Workers and their ring</h2>
      {ring ? <p>Ring: {crossingsText(ring.crossings)}.</p> : <p class="muted">A node of this job is not on the map of switches: its ring is not known.</p>}
      <div class="wide"><table class="cards">
        <thead><tr><th class="number">Rank</th><th>Worker</th><th>Node</th><th>Leaf switch</th><th>To the next rank</th><th>Part</th></tr></thead>
        <tbody>{detail.ranks.map((row) => (
          <tr key={row.pod}>
            <td class="number" data-label="Rank">{row.rank}</td>
            <td data-label="Worker" title={row.pod}><bdi>{shortened(row.pod)}</bdi></td>
            <td data-label="Node"><a href={`#/nodes?text=${encodeURIComponent(row.node)}`}><bdi>{shortened(row.node)}</bdi></a></td>
            <td data-label="Leaf switch"><bdi>{row.switch || "not on the map"}</bdi></td>
            <td data-label="To the next rank">{row.tier_to_next === null ? "not known" : TIERS[row.tier_to_next] ?? `same switch of tier ${row.tier_to_next}`}</td>
            <td data-label="Part">{row.elastic ? "elastic" : "min"}</td>
          </tr>
        ))}</tbody>
      </table></div>
    </section>
  );
}
