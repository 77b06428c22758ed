/** Nodes: which need somebody? */

import type { ViewProps } from "../app";
import type { NodeList } from "../api";
import { Board, Filter, Heading, JobLink, Outside, Pager, State, queryOf, useAnswer } from "../common";
import { amount, shortened } from "../format";
import { docsAddress } from "../links";

export const MARKS: Record<string, string> = { faulty: "✕", missing: "?", "not ready": "!", cordoned: "▨", ready: "" };

export function NodesView({ query, version, set }: ViewProps) {
  const asked = useAnswer<NodeList>(`nodes${queryOf(query, ["text", "state"])}`, version);
  const rows = asked.data?.items ?? [], states = asked.data?.states ?? {};
  return (
    <>
      <Heading question="Which nodes need somebody, and what runs on them?" links={<><Board uid="turnout-launcher" name="launcher and health" /><Outside href={docsAddress("faulty-nodes.html")}>Runbook: faulty nodes</Outside></>}>Nodes</Heading>
      <p class="choices" role="group" aria-label="State">
        {["faulty", "missing", "not ready", "cordoned", "ready"].map((state) => <button key={state} aria-pressed={query.get("state") === state} onClick={() => set({ state: query.get("state") === state ? null : state, continue: null })}>{MARKS[state]} {state}: {amount(states[state] ?? 0)}</button>)}
      </p>
      <div class="filters"><Filter name="text" label="Node" value={query.get("text") ?? ""} set={set} /></div>
      <State asked={asked} what="the nodes" />
      <div class="wide"><table class="cards">
        <thead><tr><th>Node</th><th>State</th><th class="number">GPUs</th><th class="number">Used</th><th>Leaf switch</th><th>Jobs</th><th>Evidence</th></tr></thead>
        <tbody>{rows.map((row) => (
          <tr key={row.node}>
            <th scope="row" title={row.node}><bdi>{shortened(row.node, 48)}</bdi></th>
            <td data-label="State"><span class={`state ${row.state.replace(" ", "-")}`}>{MARKS[row.state]} {row.state}</span></td>
            <td class="number" data-label="GPUs">{amount(row.gpus)}</td>
            <td class={row.used_gpus ? "number" : "number muted"} data-label="Used">{amount(row.used_gpus)}</td>
            <td data-label="Leaf switch"><bdi>{row.switch || "not on the map"}</bdi></td>
            <td data-label="Jobs">{row.jobs.length ? row.jobs.map((job) => <div key={job}><JobLink job={job} most={30} /></div>) : <span class="muted">none</span>}</td>
            <td data-label="Evidence">{row.evidence}</td>
          </tr>
        ))}</tbody>
      </table></div>
      {asked.data && rows.length === 0 ? <p>No node matches. Remove a filter.</p> : null}
      {asked.data ? <Pager total={asked.data.total} next={asked.data.continue} shown={rows.length} offset={Number(query.get("continue") ?? 0)} set={(at) => set({ continue: at })} /> : null}
    </>
  );
}
