/** Fabric: who holds what, on which leaves? What is idle? Which gang fits? Where would a gang land? */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { ViewProps } from "../app";
import { ask, type FabricTree, type Failure, type GpuCells, type JobDetail, type Landing, type LargestGangs, type QueueList, type Summary } from "../api";
import { Board, Fact, Heading, JobLink, State, useAnswer } from "../common";
import { FREE, HIDDEN, STATES, cellsOf, drawBase, drawMarks, type Camera, type Cells, type Colours, type Marks } from "../draw";
import { amount, crossingsText, percent, shortened } from "../format";
import { layoutOf, type Layout, type Row } from "../layout";
import { MARKS } from "./nodes";

const PALETTE = 8;

export function FabricView({ query, version, set }: ViewProps) {
  const summary = useAnswer<Summary>("summary", version);
  const tree = useAnswer<FabricTree>("fabric/tree", version);
  const gpus = useAnswer<GpuCells>("fabric/gpus", version);
  const queues = useAnswer<QueueList>("queues?limit=200", version);
  const largest = useAnswer<LargestGangs>("fabric/largest", version);
  const job = query.get("job"), table = query.get("show") === "table";
  const detail = useAnswer<JobDetail>(job ? `jobs/${job.split("/").map(encodeURIComponent).join("/")}` : null, version);
  const [landing, setLanding] = useState<Landing | null>(null);
  const cells = useMemo(() => gpus.data === null ? null : cellsOf(gpus.data), [gpus.data]);
  const by = query.get("by") ?? "queue", muted = query.get("only");
  const legend = useMemo(() => legendOf(by, cells, queues.data), [by, cells, queues.data]);
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (/^(INPUT|SELECT|TEXTAREA)$/.test((event.target as HTMLElement).tagName) || event.ctrlKey || event.metaKey) return;
      const entry = legend[Number(event.key) - 1];
      if (entry) set({ only: muted === entry.name ? null : entry.name });
      else if (event.key === "Escape") { set({ job: null, only: null }); setLanding(null); }
      else if (event.key === "t") set({ show: table ? null : "table" });
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [legend, muted, table]);
  return (
    <>
      <Heading question="Who holds which GPUs, on which leaf switches? What is free, and where would a gang land?" links={<><Board uid="turnout-overview" name="overview" /><Board uid="turnout-placement" name="placement" /></>}>Fabric</Heading>
      <State asked={tree.failure ? tree : gpus} what="the fabric" />
      {summary.data ? <Facts summary={summary.data} /> : null}
      <div class="filters">
        <span class="choices" role="group" aria-label="Colour">Colour by {["queue", "job", "part"].map((each) => <button key={each} aria-pressed={by === each} onClick={() => set({ by: each === "queue" ? null : each, only: null })}>{each === "part" ? "min and elastic" : each}</button>)}</span>
        <span class="choices" role="group" aria-label="Form"><button aria-pressed={!table} onClick={() => set({ show: null })}>Picture</button><button aria-pressed={table} onClick={() => set({ show: "table" })}>Table</button></span>
      </div>
      <ul class="legend" aria-label="Legend">
        {legend.map((entry, at) => <li key={entry.name}><button aria-pressed={muted === entry.name} title={entry.name} onClick={() => set({ only: muted === entry.name ? null : entry.name })}><span class={`swatch back-${entry.token}`} />{at < 9 ? <kbd>{at + 1}</kbd> : null} <bdi>{shortened(entry.label, 28)}</bdi> <span class="muted">{amount(entry.gpus)}</span></button></li>)}
        {cells ? <li><span class="swatch back-idle outlined" />free <span class="muted">{amount(cells.free)}</span></li> : null}
        <li class="muted">hole: elastic · ✕ faulty · stripes: cordoned · dashed: no node</li>
      </ul>
      <div class="split">
        <div class="picture">
          {tree.data?.map_fault ? <p class="banner">Topology map: {tree.data.map_fault}.{tree.data.tiers ? "" : " All nodes stand in one box."}</p> : null}
          {tree.data && cells && cells.state.length === tree.data.hosts.length ? (table ? <TreeTable tree={tree.data} cells={cells} /> : (
            <Picture tree={tree.data} cells={cells} colours={coloursOf(by, legend, cells, muted)} legendKey={`${by} ${muted ?? ""} ${legend.map((each) => each.name).join()}`} job={job} detail={detail.data} landing={landing} select={(name) => set({ job: name })} />
          )) : null}
        </div>
        <aside aria-label="Details">
          {job ? <Chosen job={job} detail={detail.data} clear={() => set({ job: null })} /> : null}
          <LandingForm landing={landing} setLanding={setLanding} />
          <section class="card"><h2>Largest free gang</h2>
            {largest.data?.items.length ? <table><thead><tr><th class="number">Tier</th><th>Switch</th><th class="number">Nodes</th><th class="number">GPUs</th></tr></thead><tbody>{largest.data.items.map((each) => <tr key={each.tier}><td class="number">{each.tier}</td><td title={each.switch}><bdi>{shortened(each.switch, 26)}</bdi></td><td class="number">{each.nodes}</td><td class="number">{amount(each.gpus)}</td></tr>)}</tbody></table> : <p class="muted">No whole node is free.</p>}
          </section>
        </aside>
      </div>
    </>
  );
}

function Facts({ summary }: { summary: Summary }) {
  return (
    <dl class="facts">
      <Fact name="GPUs">{amount(summary.gpus)}</Fact>
      <Fact name="Used">{amount(summary.used_gpus)} <small>{percent(summary.used_gpus, summary.gpus)}</small></Fact>
      <Fact name="Elastic" href="#/jobs?sort=-elastic_gpus">{amount(summary.elastic_gpus)}</Fact>
      <Fact name="Lent" href="#/queues">{amount(summary.lent_gpus)}</Fact>
      <Fact name="Free">{amount(summary.free_gpus)} <small>{summary.whole_free_nodes} whole nodes</small></Fact>
      <Fact name="Faulty nodes" href="#/nodes?state=faulty" bad={summary.faulty_nodes > 0}>{amount(summary.faulty_nodes)}</Fact>
      <Fact name="Cordoned" href="#/nodes?state=cordoned">{amount(summary.cordoned_nodes)}</Fact>
      <Fact name="Not on the map" bad={summary.unmapped_nodes > 0 && !summary.map_fault}>{amount(summary.unmapped_nodes)}</Fact>
      <Fact name="Waiting jobs" href="#/jobs?state=waiting">{amount(summary.waiting_jobs)} <small>{summary.waiting_gpus} GPUs</small></Fact>
    </dl>
  );
}

interface Entry { name: string; label: string; gpus: number; token: string }

/** The eight largest, and all others in one entry. A queue keeps its colour: the order is by quota and name, not by use. */
function legendOf(by: string, cells: Cells | null, queues: QueueList | null): Entry[] {
  if (cells === null) return [];
  const sums = new Map<string, number>();
  const add = (name: string, gpus: number) => sums.set(name, (sums.get(name) ?? 0) + gpus);
  if (by === "part") {
    const names = ["", "min", "elastic", "other"];
    for (const part of cells.part) if (part) add(names[part]!, 1);
    return ["min", "elastic", "other"].filter((name) => sums.has(name)).map((name) => ({ name, label: name === "other" ? "no job's worker" : name, gpus: sums.get(name)!, token: name === "other" ? "g9" : name }));
  }
  let hidden = 0;
  for (const job of cells.job) hidden += Number(job === HIDDEN);
  for (const ref of cells.jobs) add(by === "job" ? ref.job : ref.queue, ref.gpus);
  const quota = new Map((queues?.items ?? []).map((row) => [row.queue, row.quota_gpus ?? 0]));
  const names = [...sums.keys()].sort((a, b) => (by === "job" ? sums.get(b)! - sums.get(a)! : (quota.get(b) ?? 0) - (quota.get(a) ?? 0)) || (a < b ? -1 : 1));
  const entries = names.slice(0, PALETTE).map((name, at) => ({ name, label: by === "job" ? name.split("/").slice(2).join("/") : name, gpus: sums.get(name)!, token: `g${at + 1}` }));
  const rest = names.slice(PALETTE).reduce((sum, name) => sum + sums.get(name)!, hidden);
  if (rest) entries.push({ name: "\0other", label: hidden && names.length <= PALETTE ? "not yours to see" : "other", gpus: rest, token: "g9" });
  return entries;
}

function coloursOf(by: string, legend: Entry[], cells: Cells, only: string | null): Colours {
  const tokens = new Map<string, string>(), style = getComputedStyle(document.documentElement);
  const get = (token: string): string => {
    let found = tokens.get(token);
    if (found === undefined) tokens.set(token, found = style.getPropertyValue(`--${token}`).trim());
    return found;
  };
  const colour = (name: string, token: string): string => get(only !== null && name !== only ? "other" : token);
  if (by === "part") {
    const parts = ["idle", colour("min", "min"), colour("elastic", "elastic"), colour("other", "g9")];
    return { get, of: (_, part) => parts[part]! };
  }
  const known = new Map(legend.map((entry) => [entry.name, entry.token]));
  const ofJob = cells.jobs.map((ref) => { const name = by === "job" ? ref.job : ref.queue; return colour(known.has(name) ? name : "\0other", known.get(name) ?? "g9"); });
  return { get, of: (job) => ofJob[job] ?? get("g9") };
}

function Picture({ tree, cells, colours, legendKey, job, detail, landing, select }: {
  tree: FabricTree; cells: Cells; colours: Colours; legendKey: string; job: string | null; detail: JobDetail | null; landing: Landing | null; select: (job: string | null) => void;
}) {
  const box = useRef<HTMLDivElement>(null), base = useRef<HTMLCanvasElement>(null), over = useRef<HTMLCanvasElement>(null);
  const [size, setSize] = useState({ w: 0, h: 0 });
  const [cursor, setCursor] = useState<Row | null>(null);
  const [theme, setTheme] = useState(0);
  const camera = useRef<Camera>({ x: 0, y: 0, scale: 1 }), frame = useRef({ id: 0, all: false });
  const aspect = size.h > 0 ? Math.round(10 * size.w / size.h) / 10 : 0;
  const layout = useMemo(() => aspect ? layoutOf(tree, aspect) : null, [tree.version, aspect]);
  const marks = useMemo((): Marks => marksOf(layout, cells, job, detail, landing, cursor), [layout, cells, job, detail, landing, cursor]);
  useEffect(() => {
    const element = box.current!;
    const changed = new ResizeObserver(() => setSize({ w: element.clientWidth, h: Math.max(320, Math.min(element.clientWidth * 0.62, innerHeight - 240)) }));
    changed.observe(element);
    const repaint = () => setTheme((was) => was + 1);
    addEventListener("theme", repaint);
    return () => { changed.disconnect(); removeEventListener("theme", repaint); };
  }, []);
  const fit = () => {
    if (layout === null) return;
    const scale = Math.min((size.w - 8) / layout.width, (size.h - 8) / layout.height);
    camera.current = { scale, x: -(size.w / scale - layout.width) / 2, y: -(size.h / scale - layout.height) / 2 };
  };
  const paint = (all: boolean) => {
    frame.current.all ||= all; // a frame that draws everything is not replaced by one that draws the marks only
    cancelAnimationFrame(frame.current.id);
    frame.current.id = requestAnimationFrame(() => {
      if (layout === null || base.current === null || over.current === null) return;
      const ratio = devicePixelRatio || 1;
      const prepare = (canvas: HTMLCanvasElement) => {
        if (canvas.width !== Math.round(size.w * ratio) || canvas.height !== Math.round(size.h * ratio)) { canvas.width = Math.round(size.w * ratio); canvas.height = Math.round(size.h * ratio); }
        const context = canvas.getContext("2d")!;
        context.setTransform(ratio, 0, 0, ratio, 0, 0);
        return context;
      };
      over.current.dataset["scale"] = camera.current.scale.toFixed(3);
      if (frame.current.all) drawBase(prepare(base.current), size.w, size.h, camera.current, layout, cells, colours);
      drawMarks(prepare(over.current), size.w, size.h, camera.current, layout, cells, marks, colours);
      frame.current.all = false;
    });
  };
  useEffect(() => { fit(); paint(true); }, [layout, size.w, size.h]);
  useEffect(() => paint(true), [cells, legendKey, theme]);
  useEffect(() => paint(false), [marks]);
  const zoom = (by: number, atX = size.w / 2, atY = size.h / 2) => {
    const now = camera.current, scale = Math.max(0.2, Math.min(60, now.scale * by));
    camera.current = { scale, x: now.x + atX / now.scale - atX / scale, y: now.y + atY / now.scale - atY / scale };
    paint(true);
  };
  const rowAt = (event: MouseEvent): { row: Row; cell: number } | null => {
    if (layout === null) return null;
    const bounds = base.current!.getBoundingClientRect(), now = camera.current;
    const x = (event.clientX - bounds.left) / now.scale + now.x, y = (event.clientY - bounds.top) / now.scale + now.y;
    const row = layout.rows.find((each) => y >= each.y && y < each.y + 1 && x >= each.x && x < each.x + Math.max(1, each.gpus));
    return row ? { row, cell: Math.floor(x - row.x) } : null;
  };
  const chooseIn = (row: Row, cell: number) => {
    const found = cells.job[row.first + cell];
    select(found !== undefined && found < cells.jobs.length ? cells.jobs[found]!.job : null);
  };
  const drag = useDrag(camera, () => paint(true));
  return (
    <div class="fabric" ref={box}>
      <div class="canvases" style={{ height: `${size.h}px` }} tabIndex={0} role="application" aria-label="Fabric. Arrow keys move over nodes, Enter selects the job; the button Table shows the same as a table."
        onKeyDown={(event) => {
          if (layout === null) return;
          const moves: Record<string, [number, number]> = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
          const move = moves[event.key];
          if (move) { event.preventDefault(); setCursor(nearest(layout, cursor, move)); }
          else if (event.key === "Enter" && cursor) chooseIn(cursor, firstUsed(cells, cursor));
          else if (event.key === "+" || event.key === "=") zoom(1.3);
          else if (event.key === "-") zoom(1 / 1.3);
          else if (event.key === "0") { fit(); paint(true); }
        }}
        onWheel={(event) => { if (!event.ctrlKey && !event.shiftKey) return; event.preventDefault(); const bounds = base.current!.getBoundingClientRect(); zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.clientX - bounds.left, event.clientY - bounds.top); }}
        onPointerDown={drag.down} onPointerUp={(event) => { if (!drag.up(event)) { const found = rowAt(event); if (found) chooseIn(found.row, found.cell); } }}
        onPointerMove={(event) => { if (!drag.move(event)) setCursor(rowAt(event)?.row ?? null); }} onPointerLeave={() => setCursor(null)}>
        <canvas ref={base} style={{ width: `${size.w}px`, height: `${size.h}px` }} />
        <canvas ref={over} style={{ width: `${size.w}px`, height: `${size.h}px` }} />
      </div>
      <p class="zoom"><button onClick={() => zoom(1.5)} aria-label="Zoom in">+</button><button onClick={() => zoom(1 / 1.5)} aria-label="Zoom out">−</button><button onClick={() => { fit(); paint(true); }}>All</button><span class="muted">Drag to move, Ctrl and wheel to zoom.</span></p>
      <p class="cursor" aria-live="polite">{cursor ? textOf(cursor, cells) : "Point at a node, or use the arrow keys."}</p>
    </div>
  );
}

function useDrag(camera: { current: Camera }, paint: () => void) {
  const from = useRef<{ x: number; y: number; moved: boolean } | null>(null);
  return {
    down: (event: PointerEvent) => { from.current = { x: event.clientX, y: event.clientY, moved: false }; },
    move: (event: PointerEvent): boolean => {
      const start = from.current;
      if (start === null || event.buttons === 0) return false;
      const dx = event.clientX - start.x, dy = event.clientY - start.y;
      if (!start.moved && Math.hypot(dx, dy) < 4) return false;
      camera.current = { ...camera.current, x: camera.current.x - dx / camera.current.scale, y: camera.current.y - dy / camera.current.scale };
      from.current = { x: event.clientX, y: event.clientY, moved: true };
      paint();
      return true;
    },
    up: (_: PointerEvent): boolean => { const moved = from.current?.moved ?? false; from.current = null; return moved; },
  };
}

function marksOf(layout: Layout | null, cells: Cells, job: string | null, detail: JobDetail | null, landing: Landing | null, cursor: Row | null): Marks {
  const at = job === null ? -1 : cells.jobs.findIndex((ref) => ref.job === job);
  const byNode = new Map((layout?.rows ?? []).map((row) => [row.node, row]));
  const rowsOf = (nodes: string[]): Row[] => nodes.map((node) => byNode.get(node)).filter((row) => row !== undefined);
  const ring = job !== null && detail?.item.job === job ? rowsOf(detail.ranks.map((each) => each.node)) : [];
  return { job: at < 0 ? null : at, ring: ring.filter((row, index) => index === 0 || row !== ring[index - 1]), landing: rowsOf((landing?.landings ?? []).map((each) => each.node)), cursor };
}

/** The nearest row in a direction; the first row if there is no cursor. */
function nearest(layout: Layout, cursor: Row | null, [dx, dy]: [number, number]): Row | null {
  if (cursor === null) return layout.rows[0] ?? null;
  let best = cursor, distance = Infinity;
  for (const row of layout.rows) {
    const x = row.x - cursor.x, y = row.y - cursor.y, along = x * dx + y * dy, across = Math.abs(x * dy) + Math.abs(y * dx);
    if (along > 0.01 && along + 3 * across < distance) { distance = along + 3 * across; best = row; }
  }
  return best;
}

function firstUsed(cells: Cells, row: Row): number {
  for (let at = 0; at < row.gpus; at++) if (cells.job[row.first + at] !== FREE) return at;
  return 0;
}

function textOf(row: Row, cells: Cells): string {
  const counts = new Map<number, number>();
  for (let at = 0; at < row.gpus; at++) counts.set(cells.job[row.first + at]!, (counts.get(cells.job[row.first + at]!) ?? 0) + 1);
  const parts = [...counts].map(([job, gpus]) => `${gpus} ${job === FREE ? "free" : job === HIDDEN ? "of a job that you may not see" : `of ${cells.jobs[job]?.job}`}`);
  const state = STATES[cells.state[row.host] ?? 4];
  return `${row.node}, ${row.leaf}: ${state === "ready" ? "" : `${state}; `}${row.gpus} GPUs: ${parts.join(", ")}`;
}

function TreeTable({ tree, cells }: { tree: FabricTree; cells: Cells }) {
  const rows: { text: string; depth: number; tier: number; gpus: number; used: number; state: string }[] = [];
  const sums = new Map<string, { gpus: number; used: number; nodes: number }>();
  const own: { gpus: number; used: number }[] = [];
  let first = 0;
  for (const host of tree.hosts) {
    let used = 0;
    for (let at = first; at < first + host.gpus; at++) used += Number(cells.job[at] !== FREE);
    first += host.gpus;
    own.push({ gpus: host.gpus, used });
    for (let path = host.switch; path; path = path.slice(0, Math.max(0, path.lastIndexOf("/")))) {
      const sum = sums.get(path) ?? { gpus: 0, used: 0, nodes: 0 };
      sums.set(path, { gpus: sum.gpus + host.gpus, used: sum.used + used, nodes: sum.nodes + 1 });
    }
  }
  const bySwitch = new Map<string, number[]>();
  tree.hosts.forEach((host, at) => bySwitch.set(host.switch, [...(bySwitch.get(host.switch) ?? []), at]));
  const addHosts = (path: string, depth: number) => (bySwitch.get(path) ?? []).forEach((at) => rows.push({ text: tree.hosts[at]!.node, depth, tier: 0, ...own[at]!, state: STATES[cells.state[at] ?? 4] ?? "ready" }));
  for (const { path, tier } of tree.switches) {
    const depth = path.split("/").length;
    rows.push({ text: path.slice(path.lastIndexOf("/") + 1), depth, tier, gpus: sums.get(path)?.gpus ?? 0, used: sums.get(path)?.used ?? 0, state: "" });
    if (rows.length < 2000) addHosts(path, depth + 1);
  }
  addHosts("", 1);
  return (
    <div class="wide"><table role="treegrid" aria-label="Fabric">
      <thead><tr role="row"><th role="columnheader">Switch or node</th><th role="columnheader" class="number">GPUs</th><th role="columnheader" class="number">Used</th><th role="columnheader">State</th></tr></thead>
      <tbody>{rows.slice(0, 2000).map((row, at) => <tr key={at} role="row" aria-level={row.depth}><td role="gridcell" class={`depth-${Math.min(6, row.depth)}`}>{row.tier ? <strong><bdi>{row.text}</bdi></strong> : <bdi>{row.text}</bdi>}</td><td role="gridcell" class="number">{amount(row.gpus)}</td><td role="gridcell" class="number">{amount(row.used)}</td><td role="gridcell">{row.state === "ready" ? "" : `${MARKS[row.state] ?? ""} ${row.state}`}</td></tr>)}</tbody>
    </table>{rows.length > 2000 ? <p class="muted">The first 2,000 of {rows.length} rows. The view Nodes finds a node by its name.</p> : null}</div>
  );
}

function Chosen({ job, detail, clear }: { job: string; detail: JobDetail | null; clear: () => void }) {
  const ring = detail?.ring;
  return (
    <section class="card"><h2><JobLink job={job} most={26} /></h2>
      {detail ? <p>{detail.sentence}</p> : <p class="muted">Asking for the job.</p>}
      {ring ? <p>{ring.switches[0]} leaf switches, {ring.fewest_leaves} at least. Ring: {crossingsText(ring.crossings)}.</p> : null}
      <p class="muted">Solid curve: leaves a leaf switch. Dotted: leaves a block. Dashed: leaves a spine.</p>
      <button onClick={clear}>Clear</button></section>
  );
}

function LandingForm({ landing, setLanding }: { landing: Landing | null; setLanding: (landing: Landing | null) => void }) {
  const [problem, setProblem] = useState("");
  return (
    <section class="card"><h2>Where would a gang land?</h2>
      <form onSubmit={(event) => {
        event.preventDefault();
        const data = new FormData(event.currentTarget);
        setProblem("");
        ask<Landing>(`explain?gang=${encodeURIComponent(`${String(data.get("pods"))}x${String(data.get("gpus"))}`)}`).then(setLanding).catch((error: Failure) => { setLanding(null); setProblem(error.message); });
      }}>
        <label for="pods">Pods</label> <input id="pods" name="pods" type="number" min="1" max="10000" defaultValue="4" required />
        <label for="gpus"> of GPUs each</label> <input id="gpus" name="gpus" type="number" min="1" max="64" defaultValue="8" required />
        <button type="submit">Plan</button>
      </form>
      {problem ? <p class="problem" role="alert">{problem}</p> : null}
      {landing ? <div aria-live="polite"><p>{landing.fits ? "It lands on the rows in ink colour." : "It finds no place now."}</p><ul>{landing.sentences.map((text, at) => <li key={at}>{text}</li>)}</ul>
        {landing.landings.length ? <table><thead><tr><th>Node</th><th class="number">Ranks</th><th class="number">GPUs</th></tr></thead><tbody>{landing.landings.slice(0, 32).map((row) => <tr key={row.node}><td title={`${row.node}, ${row.switch}`}><bdi>{shortened(row.node, 22)}</bdi></td><td class="number">{row.ranks}</td><td class="number">{row.gpus}</td></tr>)}</tbody></table> : null}
        <button onClick={() => setLanding(null)}>Clear</button></div> : null}
    </section>
  );
}
