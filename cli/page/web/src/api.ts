/** The types of `/api/v1`, and how the page asks. The names are those of cli/page/messages.py. */

export interface Answer { observed_at_s: number; version: number }
export interface Summary extends Answer {
  gpus: number; used_gpus: number; elastic_gpus: number; lent_gpus: number; free_gpus: number;
  whole_free_nodes: number; faulty_nodes: number; cordoned_nodes: number; unmapped_nodes: number;
  waiting_jobs: number; waiting_gpus: number; running_jobs: number;
  map_fault: string;
}
export interface HostRow { node: string; switch: string; gpus: number }
export interface FabricTree extends Answer {
  tiers: number; switches: { path: string; tier: number }[]; hosts: HostRow[]; map_fault: string;
}
export interface JobRef { job: string; queue: string; gpus: number }
export interface GpuCells extends Answer {
  first_host: number; counts: number[]; state: string; jobs: JobRef[]; job: string; part: string;
}
export interface LargestGangs extends Answer { items: { tier: number; switch: string; nodes: number; gpus: number }[] }
export interface Landing extends Answer {
  fits: boolean; landings: { node: string; switch: string; ranks: string; gpus: number }[]; sentences: string[];
}
export interface QueueItem {
  queue: string; hidden: boolean; open: boolean; quota_gpus: number | null; limit_gpus: number | null;
  used_gpus: number | null; min_gpus: number | null; elastic_gpus: number | null; lent_gpus: number | null;
  borrowed_gpus: number | null; idle_gpus: number | null; running_jobs: number | null; waiting_jobs: number | null;
  waiting_gpus: number | null;
}
export interface List<T> extends Answer { total: number; continue: string; items: T[] }
export interface QueueList extends List<QueueItem> { free_gpus: number }
/** at_s, quota, min, elastic, lent, idle, borrowed; null where nothing is known. */
export type QueueSample = [number, number | null, number | null, number | null, number | null, number | null, number | null];
export interface QueueHistory extends Answer { queue: string; samples: QueueSample[]; own_since_at_s: number | null; note: string }
export interface JobSizes extends Answer { job: string; sizes: [number, number][]; note: string }
export interface Start { earliest_at_s: number | null; likely_at_s: number | null; latest_at_s: number | null }
export interface JobItem {
  job: string; kind: string; namespace: string; name: string; queue: string; state: string; workers: number;
  min_workers: number; max_workers: number; gpus_per_worker: number; gpus: number; elastic_gpus: number;
  since_at_s: number | null; reason: string; evidence: string; next_step: string; before_jobs: number;
  before_gpus: number; start: Start | null;
}
export interface RankRow {
  rank: number; pod: string; node: string; switch: string; tier_to_next: number | null; elastic: boolean;
}
export interface Decision {
  at_s: number; times: number; component: string; reason: string; glyph: string; object: string; namespace: string;
  queue: string; sentence: string;
}
export interface JobDetail extends Answer {
  item: JobItem; sentence: string; why: [string, string][];
  ring: { crossings: number[]; switches: number[]; fewest_leaves: number } | null;
  ranks: RankRow[]; sizes: [number, number][]; decisions: Decision[];
}
export interface JobTime extends Answer {
  job: string; missing: string; until_at_s: number | null; wall_s: number | null; productive: number | null;
  kinds: { kind: string; seconds: number; share: number; gpu_hours: number }[];
  rounds: { at_s: number; round: number; reason: string }[];
  saves: { at_s: number; step: number; tier: string; outcome: string; rank: number | null; took_s: number | null }[];
}
/** columns: the names of the fields of a row, in order. */
export interface UsageList extends List<Record<string, string | number>> {
  missing: string; by: string; days: number; measured_s: number; columns: string[];
}
export interface NodeItem {
  node: string; state: string; evidence: string; switch: string; gpus: number; used_gpus: number; jobs: string[];
}
export interface NodeList extends List<NodeItem> { states: Record<string, number> }
export interface Viewer { user: string; all_namespaces: boolean; cluster: string; docs_url: string; grafana_url: string; unknown_namespaces: number }

export class Failure extends Error {
  constructor(readonly status: number, message: string, readonly nextStep: string) { super(message); }
}

/** Ask for one answer. The browser keeps answers by their ETag and asks only whether they are still true. */
export async function ask<T>(path: string, signal?: AbortSignal): Promise<T> {
  let response: Response;
  try {
    response = await fetch(`api/v1/${path}`, { signal: signal ?? null, credentials: "same-origin" });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Failure(0, "The page's server does not answer.", "It is asked again every five seconds.");
  }
  if (!response.ok) throw await failure(response);
  return await response.json() as T;
}

async function failure(response: Response): Promise<Failure> {
  try {
    const problem = await response.json() as { error: string; next_step?: string };
    return new Failure(response.status, problem.error, problem.next_step ?? "");
  } catch {
    return new Failure(response.status, response.statusText, "");
  }
}

export async function logIn(token: string): Promise<void> {
  const response = await fetch("api/v1/session", {
    method: "POST", credentials: "same-origin", headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ token }),
  });
  if (!response.ok) throw await failure(response);
}

export interface StreamEvent { version: number; observed_at_s: number; silent_s: number; error: string; unknown_namespaces: number }

/** Read the stream of changes until the signal ends it. EventSource cannot send a token, so it is read by fetch. */
export async function follow(
  onEvent: (kind: string, event: StreamEvent) => void, signal: AbortSignal,
): Promise<void> {
  const response = await fetch("api/v1/stream", { signal, credentials: "same-origin" });
  if (!response.ok || response.body === null) throw await failure(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const fields = new Map(text.slice(0, end).split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]));
      text = text.slice(end + 2);
      onEvent(fields.get("event") ?? "", JSON.parse(fields.get("data") ?? "{}") as StreamEvent);
    }
  }
}

export function bytesOf(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}
