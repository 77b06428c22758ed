/** Decisions: what was decided, for whom, why, by whom? */

import { useEffect, useState } from "preact/hooks";
import type { ViewProps } from "../app";
import type { Decision, List } from "../api";
import { Board, Filter, GLYPHS, Heading, Linked, Pager, QueueLink, Reason, State, queryOf, useAnswer } from "../common";
import { address, clock, duration, shortened } from "../format";
import { boardAddress } from "../links";

const FILTERS = ["text", "glyph", "queue", "namespace", "component", "object", "reason"] as const;

export function DecisionsView({ query, version, set }: ViewProps) {
  const [paused, setPaused] = useState<number | null>(null);
  const asked = useAnswer<List<Decision>>(`decisions${queryOf(query, FILTERS)}`, paused ?? version);
  const newest = useAnswer<List<Decision>>(paused === null ? null : `decisions${queryOf(query, FILTERS, { limit: "1" })}`, version);
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.key === "p" && !/^(INPUT|SELECT)$/.test((event.target as HTMLElement).tagName)) setPaused((was) => was === null ? version : null);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [version]);
  const rows = asked.data?.items ?? [];
  const more = paused === null || !newest.data || !asked.data ? 0 : newest.data.total - asked.data.total;
  return (
    <>
      <Heading question="What was decided, for whom, why, and by which component?" links={<><Board uid="turnout-controllers" name="controllers" /><Board uid="turnout-extender" name="extender and nominator" /></>}>Decisions</Heading>
      <div class="filters">
        <Filter name="text" label="Text" value={query.get("text") ?? ""} set={set} />
        <Filter name="glyph" label="Kind" value={query.get("glyph") ?? ""} set={set} options={["grow", "shrink", "hold", "fault", "other"]} />
        <Filter name="component" label="Component" value={query.get("component") ?? ""} set={set} options={["turnout-autoscaler", "turnout-controller", "turnout-extender"]} />
        <Filter name="namespace" label="Namespace" value={query.get("namespace") ?? ""} set={set} />
        <button aria-pressed={paused !== null} onClick={() => setPaused(paused === null ? version : null)}>{paused === null ? "Pause" : "Go on"}</button>
        {more > 0 ? <button onClick={() => setPaused(null)}>{more} new</button> : null}
      </div>
      <State asked={asked} what="the decisions" />
      {rows.length ? <DecisionTable rows={rows} withObject /> : asked.data ? <p>No decision matches. Events live for an hour; this page keeps the newest 200 of each namespace, and 2,000 in all.</p> : null}
      {asked.data ? <Pager total={asked.data.total} next={asked.data.continue} shown={rows.length} offset={Number(query.get("continue") ?? 0)} set={(at) => set({ continue: at })} /> : null}
    </>
  );
}

export function DecisionTable({ rows, withObject }: { rows: Decision[]; withObject: boolean }) {
  const now = Date.now() / 1000;
  return (
    <div class="wide"><table class="cards">
      <thead><tr><th>Time</th><th class="number">Ago</th><th>Decision</th>{withObject ? <><th>Object</th><th>Queue</th></> : null}<th>In words</th><th>By</th></tr></thead>
      <tbody>{rows.map((row) => (
        <tr key={`${row.object} ${row.reason} ${row.at_s} ${row.sentence}`}>
          <td data-label="Time">{clock(row.at_s)}</td>
          <td class="number" data-label="Ago">{duration(now - row.at_s)}</td>
          <td data-label="Decision"><span class={`glyph ${row.glyph}`} aria-hidden="true">{GLYPHS[row.glyph] ?? "●"}</span> <Reason word={row.reason} />{row.times > 1 ? <span class="muted"> {row.times} times</span> : null}</td>
          {withObject ? <><td data-label="Object"><a href={address(row.object)} title={row.object}><bdi>{shortened(row.object, 40)}</bdi></a></td><td data-label="Queue"><QueueLink queue={row.queue} /></td></> : null}
          <td data-label="In words">{row.sentence}</td>
          <td data-label="By" class="muted"><Component name={row.component} /></td>
        </tr>
      ))}</tbody>
    </table></div>
  );
}

/** The component that has decided, with a link to its board. */
function Component({ name }: { name: string }) {
  const word = name.replace("turnout-", "");
  return <Linked href={boardAddress(word === "extender" || word === "nominator" ? "turnout-extender" : "turnout-controllers", {})}>{word}</Linked>;
}
