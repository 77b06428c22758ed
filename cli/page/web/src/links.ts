/** Links out of the page: to the docs site and to Grafana, if an admin has named them. */

const site = { docs: "", grafana: "" };

/** Use these addresses from now on; the server has checked that they are of http or https. */
export function setSite(docs: string, grafana: string): void {
  site.docs = docs.replace(/\/+$/, "");
  site.grafana = grafana.replace(/\/+$/, "");
}

/** The address of a board with its variables; "" without Grafana. A board's uid is the name of its file. */
export function boardAddress(uid: string, variables: Record<string, string>): string {
  if (!site.grafana) return "";
  const query = new URLSearchParams(Object.entries(variables).filter(([, value]) => value).map(([name, value]) => [`var-${name}`, value]));
  const text = query.toString();
  return `${site.grafana}/d/${uid}${text ? `?${text}` : ""}`;
}

/** The address of the text of a reason: what it means, where to look, what to do; "" without a docs site. */
export const reasonAddress = (word: string): string => site.docs && word ? `${site.docs}/reference/reasons.html#${encodeURIComponent(word.toLowerCase())}` : "";

/** The address of a page of the docs; "" without a docs site. */
export const docsAddress = (page: string): string => site.docs ? `${site.docs}/${page}` : "";
