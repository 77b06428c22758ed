/** The report of `turnout simulate --report`: one document with its values inside, opened from a disk. */

import { render } from "preact";
import { Chart, linesOverTime, linesOverPercent } from "./chart";
import { Heading } from "./common";
import { duration } from "./format";

interface Curve { at_s: number[]; used_gpus: number[]; waiting_jobs: number[] }
interface Outcome {
  name: string; min_gpus: number; max_gpus: number; wait_without_s: number; wait_s: number;
  completion_without_s: number; completion_s: number; resizes: number;
}
interface Report {
  trace: string; scene: string; verdict: string; gpus: number; rows: [string, string, string][]; without: Curve; lent: Curve;
  wait_without_s: number[]; wait_s: number[]; completion_without_s: number[]; completion_s: number[];
  winners: Outcome[]; losers: Outcome[];
}

const report = JSON.parse(document.getElementById("report")!.textContent!) as Report;

/** Both runs have their own moments: each line keeps its value until its next moment. */
function joined(values: (curve: Curve) => number[]): [number, number, number][] {
  const rows: [number, number, number][] = [];
  let left = 0, right = 0;
  const { without, lent } = report;
  while (left < without.at_s.length || right < lent.at_s.length) {
    const at = Math.min(without.at_s[left] ?? Infinity, lent.at_s[right] ?? Infinity);
    while ((without.at_s[left] ?? Infinity) <= at) left++;
    while ((lent.at_s[right] ?? Infinity) <= at) right++;
    rows.push([at, values(without)[left - 1] ?? 0, values(lent)[right - 1] ?? 0]);
  }
  return rows;
}

const USED = joined((curve) => curve.used_gpus), WAITING = joined((curve) => curve.waiting_jobs);
const byPercent = (without: number[], lent: number[]): [number, number, number][] => without.map((value, at) => [at, value, lent[at]!]);
const WAITS = byPercent(report.wait_without_s, report.wait_s);
const COMPLETIONS = byPercent(report.completion_without_s, report.completion_s);
const used = linesOverTime("GPUs", report.gpus), waiting = linesOverTime("jobs", null), shares = linesOverPercent();

function Legend() {
  return <p class="legend"><span><span class="swatch back-g9" />without lending</span><span><span class="swatch back-min" />with lending</span></p>;
}

function Jobs({ title, jobs, empty }: { title: string; jobs: Outcome[]; empty: string }) {
  if (!jobs.length) return <><h2>{title}</h2><p class="muted">{empty}</p></>;
  const later = (job: Outcome) => job.completion_s - job.completion_without_s;
  return (
    <>
      <h2>{title}</h2>
      <div class="wide" tabIndex={0} role="region" aria-label={title}>
        <table>
          <thead><tr><th>job</th><th class="number">min, max GPUs</th><th class="number">wait</th><th class="number">with lending</th><th class="number">completion</th><th class="number">with lending</th><th class="number">difference</th><th class="number">resizes</th></tr></thead>
          <tbody>{jobs.map((job) => (
            <tr key={job.name}>
              <th scope="row"><bdi>{job.name}</bdi></th><td class="number">{job.min_gpus}, {job.max_gpus}</td>
              <td class="number">{duration(job.wait_without_s)}</td><td class="number">{duration(job.wait_s)}</td>
              <td class="number">{duration(job.completion_without_s)}</td><td class="number">{duration(job.completion_s)}</td>
              <td class="number">{duration(Math.abs(later(job)))} {later(job) > 0 ? "later" : "earlier"}</td><td class="number">{job.resizes}</td>
            </tr>
          ))}</tbody>
        </table>
      </div>
    </>
  );
}

function App() {
  return (
    <main>
      <Heading question="What does lending give and cost on these jobs?">Replay of <bdi>{report.trace}</bdi></Heading>
      <p class="sentence">{report.verdict}</p>
      <p class="muted">{report.scene}</p>
      <table class="figures">
        <thead><tr><th>figure</th><th class="number">without lending</th><th class="number">with lending</th></tr></thead>
        <tbody>{report.rows.map(([name, without, lent]) => <tr key={name}><th scope="row">{name}</th><td class="number">{without}</td><td class="number">{lent}</td></tr>)}</tbody>
      </table>
      <h2>GPUs in use</h2>
      <Legend />
      <Chart make={used} data={USED} label="GPUs in use over time, without lending and with lending" />
      <h2>Jobs that wait</h2>
      <Chart make={waiting} data={WAITING} label="Waiting jobs over time, without lending and with lending" />
      <h2>How long jobs wait</h2>
      <p class="muted">A point says how many percent of the jobs wait no longer.</p>
      <Chart make={shares} data={WAITS} label="Waits by percentile, without lending and with lending" />
      <h2>How long jobs take from submission to end</h2>
      <Chart make={shares} data={COMPLETIONS} label="Completion times by percentile, without lending and with lending" />
      <Jobs title="Jobs that gain most" jobs={report.winners} empty="No job ends earlier." />
      <Jobs title="Jobs that lose most" jobs={report.losers} empty="No job ends later." />
    </main>
  );
}

document.documentElement.dataset["theme"] = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
const app = document.getElementById("app")!;
app.replaceChildren();
render(<App />, app);
