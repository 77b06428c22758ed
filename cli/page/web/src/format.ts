/** Numbers, times and names as texts. Nothing is invented: what is unknown is a dash. */

export const DASH = "–";

export function amount(value: number | null | undefined): string {
  return value === null || value === undefined ? DASH : value.toLocaleString("en").replaceAll(",", " ");
}

export function percent(part: number, whole: number): string {
  return whole > 0 ? `${(100 * part / whole).toFixed(part === whole || part === 0 ? 0 : 1)} %` : DASH;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return DASH;
  const left = Math.max(0, Math.round(seconds));
  if (left < 60) return `${left} s`;
  if (left < 3600) return `${Math.floor(left / 60)} min`;
  if (left < 86400) return `${Math.floor(left / 3600)} h ${Math.floor(left % 3600 / 60)} min`;
  return `${Math.floor(left / 86400)} d ${Math.floor(left % 86400 / 3600)} h`;
}

/** The time of day; with the date if it is not today. */
export function clock(atS: number | null | undefined, nowS = Date.now() / 1000): string {
  if (!atS) return DASH;
  const at = new Date(1000 * atS), now = new Date(1000 * nowS);
  const time = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return at.toDateString() === now.toDateString() ? time : `${at.toISOString().slice(0, 10)} ${time}`;
}

/** The middle of a long name goes; its last ten characters stay, because they tell names apart. */
export function shortened(name: string, most = 36): string {
  return name.length <= most ? name : `${name.slice(0, most - 11)}…${name.slice(-10)}`;
}

export const address = (job: string): string => `#/job?id=${encodeURIComponent(job)}`;

/** How many edges of a ring leave a switch of each tier, from the leaf up. */
export function crossingsText(crossings: number[]): string {
  const parts = crossings.map((count, at) => count ? `${count} edges leave a switch of tier ${at + 1}` : "").filter((text) => text);
  return parts.length ? parts.join(", ") : "no edge leaves a leaf switch";
}
