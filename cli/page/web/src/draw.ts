/** Draws the fabric on a canvas: a rectangle for each run of equal GPUs, and only of leaves in sight. */

import { bytesOf, type GpuCells } from "./api";
import type { Layout, Leaf, Row } from "./layout";

export const FREE = 0xffff, HIDDEN = 0xfffe;
export const PART = { free: 0, min: 1, elastic: 2, other: 3 } as const;
export const STATES = ["faulty", "missing", "not ready", "cordoned", "ready"] as const;

export interface Cells { job: Uint16Array; part: Uint8Array; state: Uint8Array; jobs: GpuCells["jobs"]; free: number }
export interface Camera { x: number; y: number; scale: number }

export function cellsOf(answer: GpuCells): Cells {
  const bytes = bytesOf(answer.job), job = new Uint16Array(bytes.length / 2);
  for (let at = 0; at < job.length; at++) job[at] = bytes[2 * at]! | bytes[2 * at + 1]! << 8;
  let free = 0;
  for (const one of job) free += Number(one === FREE);
  return { job, part: bytesOf(answer.part), state: bytesOf(answer.state), jobs: answer.jobs, free };
}

export interface Colours {
  /** By the position of a job in the cells: the colour of its entry in the legend; muted entries are idle grey. */
  of: (job: number, part: number) => string;
  get: (token: string) => string;
}

/** Draw everything that stands still: boxes, names, cells and states. Gives the number of rectangles. */
export function drawBase(
  canvas: CanvasRenderingContext2D, width: number, height: number, camera: Camera, layout: Layout, cells: Cells, colours: Colours,
): number {
  const { scale } = camera;
  canvas.fillStyle = colours.get("page");
  canvas.fillRect(0, 0, width, height);
  const seen = (x: number, y: number, w: number, h: number): boolean => {
    const left = (x - camera.x) * scale, top = (y - camera.y) * scale;
    return left < width && top < height && left + w * scale > 0 && top + h * scale > 0;
  };
  for (const box of layout.boxes) {
    if (!seen(box.x, box.y, box.w, box.h)) continue;
    const left = (box.x - camera.x) * scale, top = (box.y - camera.y) * scale;
    canvas.fillStyle = colours.get(box.tier === 1 ? "surface" : box.tier === 2 ? "block" : "spine");
    canvas.fillRect(left, top, box.w * scale, box.h * scale);
    if (scale > 3) {
      canvas.strokeStyle = colours.get("line");
      canvas.lineWidth = 1;
      canvas.strokeRect(Math.round(left) + 0.5, Math.round(top) + 0.5, Math.round(box.w * scale) - 1, Math.round(box.h * scale) - 1);
    }
    const size = Math.min(13, 0.85 * scale);
    if (size >= 7) {
      canvas.fillStyle = colours.get("muted");
      canvas.font = `${size}px system-ui, sans-serif`;
      canvas.textBaseline = "middle";
      canvas.fillText(fitting(canvas, box.path.slice(box.path.lastIndexOf("/") + 1), (box.w - 0.8) * scale), left + 0.5 * scale, top + 0.58 * scale);
    }
  }
  let count = 0;
  for (const leaf of layout.leaves) if (seen(leaf.x, leaf.y, leaf.w, leaf.h)) count += drawLeaf(canvas, camera, leaf, cells, colours);
  return count;
}

/** Cut a name so that it fits: its end tells switches apart. */
function fitting(canvas: CanvasRenderingContext2D, name: string, width: number): string {
  if (canvas.measureText(name).width <= width) return name;
  let cut = name;
  while (cut.length > 1 && canvas.measureText(`…${cut}`).width > width) cut = cut.slice(1);
  return `…${cut}`;
}

function drawLeaf(canvas: CanvasRenderingContext2D, camera: Camera, leaf: Leaf, cells: Cells, colours: Colours): number {
  let count = 0;
  for (const row of leaf.rows) count += drawRow(canvas, camera, row, cells, colours);
  return count;
}

function drawRow(canvas: CanvasRenderingContext2D, camera: Camera, row: Row, cells: Cells, colours: Colours): number {
  const { scale } = camera, state = STATES[cells.state[row.host] ?? 4] ?? "ready";
  const gap = scale >= 5 ? Math.max(1, 0.14 * scale) : scale >= 2.5 ? 0.5 : 0.2 * scale;
  const left = (row.x - camera.x) * scale, top = (row.y - camera.y) * scale, h = scale - gap;
  let count = 0;
  for (let at = 0; at < row.gpus;) {
    const job = cells.job[row.first + at]!, part = cells.part[row.first + at]!;
    let end = at + 1;
    while (end < row.gpus && cells.job[row.first + end] === job && cells.part[row.first + end] === part) end++;
    const x = left + at * scale, w = (end - at) * scale - gap;
    count++;
    if (job === FREE) {
      canvas.fillStyle = colours.get("idle");
      if (scale >= 5) {
        for (let cell = at; cell < end; cell++) canvas.fillRect(left + cell * scale, top, h, h);
      } else canvas.fillRect(x, top + 0.35 * scale, w, Math.max(0.5, 0.3 * scale));
    } else {
      canvas.fillStyle = job === HIDDEN ? colours.get("other") : colours.of(job, part);
      const elastic = part === PART.elastic;
      if (scale >= 6) {
        for (let cell = at; cell < end; cell++) canvas.fillRect(left + cell * scale, top, h, h);
        if (elastic) {
          canvas.fillStyle = colours.get("surface");
          for (let cell = at; cell < end; cell++) canvas.fillRect(left + cell * scale + 0.3 * h, top + 0.3 * h, 0.4 * h, 0.4 * h);
        }
      } else canvas.fillRect(x, elastic ? top + 0.25 * h : top, w, elastic ? 0.5 * h : h);
    }
    at = end;
  }
  if (state !== "ready") { drawState(canvas, left, top, Math.max(1, row.gpus) * scale - gap, h, state, colours); count++; }
  return count;
}

/** A fault is a shape first: crossed row and cross; a closed node has stripes; a host without a node is dashed. */
function drawState(canvas: CanvasRenderingContext2D, x: number, y: number, w: number, h: number, state: string, colours: Colours): void {
  canvas.strokeStyle = colours.get(state === "faulty" || state === "not ready" ? "bad" : "muted");
  canvas.lineWidth = Math.max(1, Math.min(2, h / 6));
  canvas.beginPath();
  if (state === "missing") {
    canvas.setLineDash([3, 3]);
    canvas.rect(x + 0.5, y + 0.5, w - 1, h - 1);
  } else if (state === "cordoned") {
    for (let at = 0; at < w; at += Math.max(4, h)) { canvas.moveTo(x + at, y + h); canvas.lineTo(Math.min(x + at + h, x + w), y); }
  } else {
    canvas.moveTo(x, y + h / 2);
    canvas.lineTo(x + w, y + h / 2);
    const side = Math.max(3, h * 0.7), middle = x + w / 2, centre = y + h / 2;
    canvas.moveTo(middle - side / 2, centre - side / 2); canvas.lineTo(middle + side / 2, centre + side / 2);
    canvas.moveTo(middle + side / 2, centre - side / 2); canvas.lineTo(middle - side / 2, centre + side / 2);
  }
  canvas.stroke();
  canvas.setLineDash([]);
}

export interface Marks {
  /** The position of the selected job in the cells, null for none. */
  job: number | null;
  /** The rows of the selected job's workers, in the order of their ranks. */
  ring: Row[];
  /** The rows on which a planned gang would land. */
  landing: Row[];
  cursor: Row | null;
}

/** Draw what changes with the selection: the veil, the ring, the landing and the cursor. */
export function drawMarks(
  canvas: CanvasRenderingContext2D, width: number, height: number, camera: Camera, layout: Layout, cells: Cells, marks: Marks, colours: Colours,
): void {
  canvas.clearRect(0, 0, width, height);
  const { scale } = camera;
  const xOf = (x: number): number => (x - camera.x) * scale, yOf = (y: number): number => (y - camera.y) * scale;
  if (marks.job !== null || marks.landing.length) {
    canvas.fillStyle = colours.get("veil");
    canvas.fillRect(0, 0, width, height);
    for (const row of layout.rows) {
      for (let at = 0; at < row.gpus; at++) {
        if (marks.job !== null && cells.job[row.first + at] === marks.job) {
          canvas.fillStyle = colours.of(marks.job, cells.part[row.first + at]!);
          const h = cells.part[row.first + at] === PART.elastic && scale < 6 ? 0.5 : 1;
          canvas.fillRect(xOf(row.x + at), yOf(row.y) + (1 - h) * 0.5 * scale, Math.max(1, scale * 0.86), Math.max(1, scale * 0.86 * h));
        }
      }
    }
  }
  canvas.fillStyle = colours.get("ink");
  for (const row of marks.landing) canvas.fillRect(xOf(row.x), yOf(row.y), row.gpus * scale * 0.98, Math.max(1.5, scale * 0.86));
  drawRing(canvas, camera, marks.ring, colours);
  if (marks.cursor !== null) {
    const { x, y, gpus } = marks.cursor;
    canvas.strokeStyle = colours.get("accent");
    canvas.lineWidth = 2;
    canvas.strokeRect(xOf(x) - 2, yOf(y) - 2, Math.max(1, gpus) * scale + 3, scale + 3);
  }
}

/** The ring follows the left edges of rows. An edge that leaves a leaf is solid, one that leaves a block dotted. */
function drawRing(canvas: CanvasRenderingContext2D, camera: Camera, ring: Row[], colours: Colours): void {
  canvas.strokeStyle = colours.get("ink");
  canvas.lineWidth = 1.5;
  const { scale } = camera;
  const xOf = (row: Row): number => (row.x - camera.x) * scale - 2, yOf = (row: Row): number => (row.y + 0.45 - camera.y) * scale;
  ring.forEach((row, at) => {
    const next = ring[(at + 1) % ring.length]!;
    if (next === row) return;
    const block = (path: string): string => path.slice(0, Math.max(0, path.lastIndexOf("/")));
    canvas.setLineDash(row.leaf === next.leaf ? [] : block(row.leaf) === block(next.leaf) ? [] : block(block(row.leaf)) === block(block(next.leaf)) ? [2, 3] : [7, 4]);
    canvas.beginPath();
    canvas.moveTo(xOf(row), yOf(row));
    if (row.leaf === next.leaf) canvas.lineTo(xOf(next), yOf(next));
    else {
      const middle = (xOf(row) + xOf(next)) / 2, bend = Math.min(60, Math.hypot(xOf(next) - xOf(row), yOf(next) - yOf(row)) / 4);
      canvas.quadraticCurveTo(middle - bend, (yOf(row) + yOf(next)) / 2 - bend, xOf(next), yOf(next));
    }
    canvas.stroke();
  });
  canvas.setLineDash([]);
}
