/** GPU-hours, as `turnout usage` prints them: by queue, user, job, day, and who lent to whom. */

import { useEffect, useState } from "preact/hooks";
import type { ViewProps } from "../app";
import type { UsageList } from "../api";
import { JobLink, Linked, Pager, QueueLink, State, useAnswer } from "../common";
import { duration } from "../format";
import { docsAddress } from "../links";

const DAYS: [string, string][] = [["1", "today"], ["7", "7 days"], ["30", "30 days"]];
const NAMES: Record<string, string> = { queue: "queue", user: "user", job: "job", day: "day", lending: "lender and borrower" };
const LIMIT = 25;

/** only: what the rows are about, such as one queue. reports: what a row may be; the first one is shown at first. */
export function Hours({ title, level: Level = "h3", only, reports, query, set }: { title: string; level?: "h2" | "h3"; only: Record<string, string>; reports: readonly string[]; query: URLSearchParams; set: ViewProps["set"] }) {
  const named = query.get("by") ?? "", by = reports.includes(named) ? named : reports[0] ?? "queue";
  const days = query.get("days") ?? "7";
  const [from, setFrom] = useState<string | null>(null);
  const [beat, setBeat] = useState(0);
  useEffect(() => { const timer = setInterval(() => setBeat((was) => was + 1), 60_000); return () => clearInterval(timer); }, []);
  const parameters = new URLSearchParams({ ...only, by, days, limit: String(LIMIT), ...(from ? { continue: from } : {}) });
  const asked = useAnswer<UsageList>(`usage?${parameters.toString()}`, beat);
  const answer = asked.data;
  const choose = (changes: Record<string, string>) => { setFrom(null); set(changes); };
  return (
    <section aria-label={title}>
      <Level>{title}</Level>
      <p class="choices" role="group" aria-label="Days">{DAYS.map(([value, name]) => <button key={value} aria-pressed={value === days} onClick={() => choose({ days: value })}>{name}</button>)}</p>
      {reports.length > 1 ? <p class="choices" role="group" aria-label="Rows">{reports.map((each) => <button key={each} aria-pressed={each === by} onClick={() => choose({ by: each })}>by {NAMES[each] ?? each}</button>)}</p> : null}
      <State asked={asked} what="GPU-hours" />
      {answer?.missing ? <p class="muted">{answer.missing}</p> : null}
      {answer && answer.total ? <Rows answer={answer} /> : null}
      {answer && !answer.total && !answer.missing ? <p>The log names no GPU-hours of this time.</p> : null}
      {answer ? <Pager total={answer.total} next={answer.continue} shown={answer.items.length} offset={Number(from ?? 0)} set={setFrom} /> : null}
      {answer && answer.measured_s ? <p class="muted">Measured: {duration(answer.measured_s)}. Days are in UTC. <Linked href={docsAddress("accounting.html#rules")}>Who lends is a convention: in proportion to unused shares.</Linked></p> : null}
    </section>
  );
}

/** Columns that are zero in every row are left out, but not the first number. */
function Rows({ answer }: { answer: UsageList }) {
  const first = answer.columns.find(isNumber);
  const columns = answer.columns.filter((name) => name === first || !isNumber(name) || answer.items.some((row) => Number(row[name] ?? 0) !== 0));
  return (
    <div class="wide"><table class="cards">
      <caption class="hidden">GPU-hours by {NAMES[answer.by] ?? answer.by}</caption>
      <thead><tr>{columns.map((name) => <th key={name} class={isNumber(name) ? "number" : undefined}>{headOf(name)}</th>)}</tr></thead>
      <tbody>{answer.items.map((row, at) => <tr key={at}>{columns.map((name, place) => place ? <td key={name} class={classOf(name, row[name])} data-label={headOf(name)}><Value name={name} value={row[name] ?? ""} /></td> : <th key={name} scope="row"><Value name={name} value={row[name] ?? ""} /></th>)}</tr>)}</tbody>
    </table></div>
  );
}

function Value({ name, value }: { name: string; value: string | number }) {
  if (isNumber(name)) return <>{Number(value).toFixed(2)}</>;
  const text = String(value);
  if (name === "job") return text ? <JobLink job={text} /> : <span class="muted">pods without a job, or of jobs that you may not see</span>;
  return name === "queue" || name === "lender" || name === "borrower" ? <QueueLink queue={text} /> : <bdi>{text}</bdi>;
}

const classOf = (name: string, value: string | number | undefined): string | undefined => isNumber(name) ? Number(value) ? "number" : "number muted" : undefined;
const isNumber = (name: string): boolean => name.endsWith("_hours") || name.endsWith("_gpus");

function headOf(name: string): string {
  if (name === "gpu_hours") return "GPU hours";
  const words = name.replace(/_gpu_hours$/, "").replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}
