/** Where each node and switch stands on the fabric: tiers are nested boxes, one row is one node, one cell is one GPU. */

import type { FabricTree } from "./api";

export interface Box { path: string; tier: number; x: number; y: number; w: number; h: number }
/** A node's row. `first` is the position of its first GPU in the cells. */
export interface Row { host: number; node: string; leaf: string; gpus: number; x: number; y: number; first: number }
export interface Leaf extends Box { rows: Row[] }
export interface Layout { width: number; height: number; boxes: Box[]; leaves: Leaf[]; rows: Row[] }

interface Tree { path: string; tier: number; children: Tree[]; hosts: number[]; w: number; h: number; columns: number }

const HEAD = 1.1, PAD = 0.5, GAP = 0.6; // in cells
export const OFF_MAP = "not on the map";

function treeOf(fabric: FabricTree): Tree {
  const root: Tree = { path: "", tier: fabric.tiers + 1, children: [], hosts: [], w: 0, h: 0, columns: 1 };
  const known = new Map<string, Tree>([["", root]]);
  for (const { path, tier } of fabric.switches) {
    const one: Tree = { path, tier, children: [], hosts: [], w: 0, h: 0, columns: 1 };
    known.set(path, one);
    (known.get(path.slice(0, Math.max(0, path.lastIndexOf("/")))) ?? root).children.push(one);
  }
  let unmapped: Tree | null = null;
  fabric.hosts.forEach((host, at) => {
    let place = known.get(host.switch);
    if (!host.switch || place === undefined) {
      if (unmapped === null) { unmapped = { path: OFF_MAP, tier: 1, children: [], hosts: [], w: 0, h: 0, columns: 1 }; root.children.push(unmapped); }
      place = unmapped;
    }
    place.hosts.push(at);
  });
  return root;
}

/** Give each box its size, in cells. columns: how many children stand beside each other, by tier. */
function measure(tree: Tree, fabric: FabricTree, columns: number[]): void {
  for (const child of tree.children) measure(child, fabric, columns);
  const own = Math.max(0, ...tree.hosts.map((at) => Math.max(1, fabric.hosts[at]!.gpus)));
  // Many nodes of one switch stand in several columns, so that the box is not a thin strip.
  const side = tree.hosts.length > 64 ? Math.ceil(Math.sqrt(tree.hosts.length * 1.5 / Math.max(1, own) * 2)) : 1;
  tree.columns = side;
  let w = tree.hosts.length ? side * (own + GAP) - GAP : 0, h = Math.ceil(tree.hosts.length / side);
  const across = Math.max(1, Math.min(columns[tree.tier] ?? 1, tree.children.length));
  let rowW = 0, rowH = 0, count = 0;
  for (const child of tree.children) {
    rowW += child.w + (count ? GAP : 0);
    rowH = Math.max(rowH, child.h);
    if (++count === across) { w = Math.max(w, rowW); h += rowH + GAP; rowW = rowH = count = 0; }
  }
  if (count) { w = Math.max(w, rowW); h += rowH + GAP; }
  if (tree.children.length) h -= GAP;
  const frame = tree.path ? PAD : 0;
  tree.w = w + 2 * frame;
  tree.h = h + frame + (tree.path ? HEAD : 0);
}

/** All sensible numbers of columns: the whole range where it is small, else about the square root. */
function choices(most: number): number[] {
  if (most <= 12) return Array.from({ length: most }, (_, at) => at + 1);
  return [...new Set(Array.from({ length: 14 }, (_, at) => Math.max(1, Math.round(most ** ((at + 1) / 14)))))];
}

/** Try the numbers of columns of each tier, and keep those with the largest cell in the given shape. */
export function layoutOf(fabric: FabricTree, aspect: number): Layout {
  const root = treeOf(fabric), most = new Map<number, number>();
  const visit = (tree: Tree): void => { most.set(tree.tier, Math.max(most.get(tree.tier) ?? 0, tree.children.length)); tree.children.forEach(visit); };
  visit(root);
  const tiers = [...most.keys()].filter((tier) => most.get(tier)! > 1).sort((a, b) => a - b);
  let best: number[] = [], bestCell = 0;
  const search = (at: number, columns: number[]): void => {
    const tier = tiers[at];
    if (tier === undefined) {
      measure(root, fabric, columns);
      const cell = Math.min(aspect / Math.max(1, root.w), 1 / Math.max(1, root.h));
      if (cell > bestCell) { bestCell = cell; best = [...columns]; }
      return;
    }
    for (const count of choices(most.get(tier)!)) { columns[tier] = count; search(at + 1, columns); }
  };
  search(0, []);
  measure(root, fabric, best);
  return place(root, fabric, best);
}

function place(root: Tree, fabric: FabricTree, columns: number[]): Layout {
  const firsts: number[] = [];
  let first = 0;
  for (const host of fabric.hosts) { firsts.push(first); first += host.gpus; }
  const layout: Layout = { width: root.w, height: root.h, boxes: [], leaves: [], rows: [] };
  const put = (tree: Tree, x: number, y: number): void => {
    const box: Box = { path: tree.path, tier: tree.tier, x, y, w: tree.w, h: tree.h };
    let left = x + (tree.path ? PAD : 0), top = y + (tree.path ? HEAD : 0);
    if (tree.path) layout.boxes.push(box);
    if (tree.hosts.length) {
      const own = Math.max(1, ...tree.hosts.map((at) => fabric.hosts[at]!.gpus));
      const deep = Math.ceil(tree.hosts.length / tree.columns);
      const rows = tree.hosts.map((host, at): Row => ({
        host, node: fabric.hosts[host]!.node, leaf: tree.path, gpus: fabric.hosts[host]!.gpus,
        x: left + Math.floor(at / deep) * (own + GAP), y: top + at % deep, first: firsts[host]!,
      }));
      layout.rows.push(...rows);
      layout.leaves.push({ ...box, rows });
      top += deep;
    }
    const across = Math.max(1, Math.min(columns[tree.tier] ?? 1, tree.children.length));
    let rowH = 0, count = 0;
    const start = left;
    for (const child of tree.children) {
      put(child, left, top);
      left += child.w + GAP;
      rowH = Math.max(rowH, child.h);
      if (++count === across) { left = start; top += rowH + GAP; rowH = count = 0; }
    }
  };
  put(root, 0, 0);
  return layout;
}
