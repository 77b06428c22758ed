/** Charts over time, drawn by uPlot. */

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import type { QueueSample } from "./api";
import { clock } from "./format";

export type Made = { options: Omit<uPlot.Options, "width" | "height">; data: uPlot.AlignedData };
export type Make<T> = (data: T[], colour: (name: string) => string) => Made;

const HEIGHT = 220;

/** One chart. It is drawn again when its data, its width or the theme changes. */
export function Chart<T>({ make, data, label }: { make: Make<T>; data: T[]; label: string }) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const box = place.current;
    if (box === null) return;
    let plot: uPlot | null = null;
    const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    const draw = () => {
      plot?.destroy();
      const made = make(data, colour);
      plot = new uPlot({ ...made.options, width: Math.max(280, box.clientWidth), height: HEIGHT }, made.data, box);
    };
    draw();
    const resized = new ResizeObserver(() => plot?.setSize({ width: Math.max(280, box.clientWidth), height: HEIGHT }));
    resized.observe(box);
    addEventListener("theme", draw);
    return () => { resized.disconnect(); removeEventListener("theme", draw); plot?.destroy(); };
  }, [make, data]);
  return <div class="chart" ref={place} role="img" aria-label={label} />;
}

function axes(colour: (name: string) => string, unit: string, below = ""): uPlot.Axis[] {
  const look = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
  const across: uPlot.Axis = below ? { ...look, label: below } : { ...look, values: (_, times) => marks(times), space: 80 };
  return [across, { ...look, label: unit, size: 56 }];
}

/** The times of the marks, with seconds where the chart shows less than ten minutes. */
function marks(times: number[]): string[] {
  const whole = times.length > 1 && times[times.length - 1]! - times[0]! < 600;
  return times.map((atS) => whole ? new Date(1000 * atS).toLocaleTimeString("en-GB") : clock(atS));
}

/** Show a minute at least: few samples are no reason for marks within a second. */
const aMinute: uPlot.Range.Function = (_, least, most) => [Math.min(least, most - 60), most];

const stepped = uPlot.paths.stepped!({ align: 1 });

/** Min, elastic, lent and idle fill the quota exactly; what is borrowed stands above the line of the quota. */
export const stackedQueue: Make<QueueSample> = (samples, colour) => {
  const at = samples.map((sample) => sample[0]);
  const own = samples.map((sample) => sample[2] === null ? null : Math.max(0, sample[2] + (sample[3] ?? 0) - (sample[6] ?? 0)));
  const min = samples.map((sample, index) => sample[2] === null ? null : Math.min(sample[2], own[index]!));
  const levels: [string, (number | null)[]][] = [["min", min], ["elastic", own]];
  const above = (below: (number | null)[], part: 4 | 5 | 6) => below.map((value, index) => value === null ? null : value + (samples[index]![part] ?? 0));
  const lent = above(own, 4), idle = above(lent, 5), all = above(idle, 6);
  levels.push(["lent", lent], ["idle", idle], ["borrowed", all]);
  const series = levels.map(([name]) => ({ label: name, stroke: colour(name), width: 1, paths: stepped, points: { show: false } }));
  const quota = samples.map((sample) => sample[1]);
  return {
    data: [at, ...levels.map(([, values]) => values), quota] as uPlot.AlignedData,
    options: {
      legend: { show: false }, axes: axes(colour, "GPUs"), scales: { x: { range: aMinute }, y: { range: (_, __, most) => [0, Math.max(1, most * 1.05)] } },
      series: [{}, ...series.map((each, index) => index === 0 ? { ...each, fill: colour("min") } : each), { label: "quota", stroke: colour("ink"), width: 2, paths: stepped, points: { show: false } }],
      bands: levels.slice(1).map(([name], index) => ({ series: [index + 2, index + 1] as [number, number], fill: colour(name) })),
    },
  };
};

export function steppedSize(min: number, max: number, nowS: number): Make<[number, number]> {
  return (sizes, colour) => {
    const last = sizes[sizes.length - 1]!;
    const all = [...sizes, [Math.max(nowS, last[0]), last[1]] as [number, number]];
    const line = (label: string, name: string, dash?: number[]) => ({ label, stroke: colour(name), width: dash ? 1 : 2, paths: stepped, points: { show: false }, ...(dash ? { dash } : {}) });
    return {
      data: [all.map(([at]) => at), all.map(([, workers]) => workers), all.map(() => min), all.map(() => max)],
      options: {
        legend: { show: false }, axes: axes(colour, "workers"), scales: { x: { range: aMinute }, y: { range: (_, __, most) => [0, Math.max(1, most * 1.1)] } },
        series: [{}, line("workers", "min"), line("min", "muted", [4, 4]), line("max", "muted", [4, 4])],
      },
    };
  };
}

type Pair = [number, number, number];

function twoLines(colour: (name: string) => string): uPlot.Series[] {
  const line = (label: string, name: string, width: number): uPlot.Series => ({ label, stroke: colour(name), width, paths: stepped, points: { show: false } });
  return [{}, line("without lending", "g9", 2), line("with lending", "min", 1.5)];
}

/** Two runs over time, in hours since the begin. most: a line at the top, null for none. */
export function linesOverTime(unit: string, most: number | null): Make<Pair> {
  return (rows, colour) => ({
    data: [rows.map(([at]) => at / 3600), rows.map(([, without]) => without), rows.map(([, , lent]) => lent), ...(most === null ? [] : [rows.map(() => most)])] as uPlot.AlignedData,
    options: {
      legend: { show: false }, axes: axes(colour, unit, "hours"),
      scales: { x: { time: false }, y: { range: (_, __, top) => [0, Math.max(1, top * 1.05)] } },
      series: [...twoLines(colour), ...(most === null ? [] : [{ label: "all", stroke: colour("ink"), width: 1, dash: [4, 4], points: { show: false } }])],
    },
  });
}

/** Durations by percentile, in minutes or hours. */
export function linesOverPercent(): Make<Pair> {
  return (rows, colour) => {
    const longest = Math.max(...rows.flatMap(([, without, lent]) => [without, lent]));
    const [unit, by] = longest > 3 * 3600 ? ["hours", 3600] as const : ["minutes", 60] as const;
    return {
      data: [rows.map(([at]) => at), rows.map(([, without]) => without / by), rows.map(([, , lent]) => lent / by)] as uPlot.AlignedData,
      options: {
        legend: { show: false }, axes: axes(colour, unit, "percent of jobs"),
        scales: { x: { time: false }, y: { range: (_, __, top) => [0, Math.max(1, top * 1.05)] } }, series: twoLines(colour),
      },
    };
  };
}
