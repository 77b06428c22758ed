/** One job: is it well? Where is it? What changed its size? */

import type { ViewProps } from "../app";
import type { JobDetail } from "../api";
import { Chart, steppedSize } from "../chart";
import { Fact, Heading, QueueLink, State, useAnswer } from "../common";
import { amount, crossingsText, duration, shortened } from "../format";
import { DecisionTable } from "./decisions";
import { WaitingTable } from "./queues";

export function JobView({ query, version, stale }: ViewProps) {
  const id = query.get("id") ?? "";
  const asked = useAnswer<JobDetail>(`jobs/${id.split("/").map(encodeURIComponent).join("/")}`, version);
  const detail = asked.data;
  if (detail === null) return <><Heading question="Is it well, where is it, and what changed its size?"><bdi>{shortened(id, 60)}</bdi></Heading><State asked={asked} what="the job" /></>;
  const job = detail.item;
  return (
    <>
      <Heading question={`${job.kind} in namespace ${job.namespace}`}><bdi class="whole">{job.name}</bdi></Heading>
      <p class="sentence">{detail.sentence}</p>
      <dl class="facts">
        <Fact name="Queue"><QueueLink queue={job.queue} /></Fact>
        <Fact name={job.state === "waiting" ? "Waits for" : "Runs for"}>{duration(job.since_at_s === null ? null : Date.now() / 1000 - job.since_at_s)}</Fact>
        <Fact name="Workers">{job.workers} of {job.min_workers} to {job.max_workers}</Fact>
        <Fact name="GPUs">{amount(job.gpus)}</Fact>
        <Fact name="Elastic GPUs">{amount(job.elastic_gpus)}</Fact>
        <Fact name="Reason"><code>{job.reason}</code></Fact>
        {detail.ring ? <Fact name="Leaf switches">{detail.ring.switches[0]} ({detail.ring.fewest_leaves} at least)</Fact> : null}
      </dl>
      {job.state === "waiting" ? <WaitingTable jobs={[job]} stale={stale} /> : null}
      <p><a href={`#/fabric?job=${encodeURIComponent(job.job)}`}>Show it on the fabric</a></p>
      {job.state === "waiting" ? null : (
        <section>
          <h2>Workers over time</h2>
          {detail.sizes.length > 1 ? <Chart make={steppedSize(job.min_workers, job.max_workers, detail.observed_at_s)} data={detail.sizes} label="Workers over time" /> : <p class="muted">Its size has not changed since this page began to observe.</p>}
        </section>
      )}
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
