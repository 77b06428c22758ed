/** Parts that several views share. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, ask } from "./api";
import { address, shortened } from "./format";
import { boardAddress, reasonAddress } from "./links";

export interface Asked<T> { data: T | null; failure: Failure | null; slow: boolean }

/** Ask again when the path or the version changes. The last answer stays until the next one is there. */
export function useAnswer<T>(path: string | null, version: number): Asked<T> {
  const [asked, setAsked] = useState<Asked<T> & { path: string | null }>({ data: null, failure: null, slow: false, path });
  useEffect(() => {
    if (path === null) return;
    const end = new AbortController();
    const slow = setTimeout(() => setAsked((was) => ({ ...was, slow: was.data === null })), 300);
    ask<T>(path, end.signal)
      .then((data) => setAsked({ data, failure: null, slow: false, path }))
      .catch((error: unknown) => { if (!end.signal.aborted) setAsked((was) => ({ data: was.path === path ? was.data : null, failure: error as Failure, slow: false, path })); })
      .finally(() => clearTimeout(slow));
    return () => { end.abort(); clearTimeout(slow); };
  }, [path, version]);
  return asked;
}

/** The heading of a view takes the focus when the view opens, so that a screen reader begins there. */
export function Heading({ children, question, links }: { children: ComponentChildren; question: string; links?: ComponentChildren }) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus({ preventScroll: true }), []);
  return <div class="heading"><h1 ref={heading} tabIndex={-1}>{children}</h1><p class="muted">{question}</p>{links ? <p class="outside">{links}</p> : null}</div>;
}

/** A link to a site of somebody else; nothing without an address. */
export function Outside({ href, children }: { href: string; children: ComponentChildren }) {
  return href ? <a href={href} target="_blank" rel="noreferrer">{children}</a> : null;
}

export function Board({ uid, name, variables = {} }: { uid: string; name: string; variables?: Record<string, string> }) {
  return <Outside href={boardAddress(uid, variables)}>Grafana: {name}</Outside>;
}

/** A text, with a link if there is an address. */
export function Linked({ href, children }: { href: string; children: ComponentChildren }) {
  return href ? <Outside href={href}>{children}</Outside> : <>{children}</>;
}

/** The word of a reason, with a link to its text on the docs site. */
export function Reason({ word }: { word: string }) {
  return <Linked href={reasonAddress(word)}><code>{word}</code></Linked>;
}

export function State({ asked, what }: { asked: Asked<unknown>; what: string }) {
  if (asked.failure !== null && asked.failure.status !== 401) {
    return <p class="problem" role="alert">{asked.failure.message} {asked.failure.nextStep}</p>;
  }
  return asked.data === null && asked.slow ? <p class="loading">Asking for {what}.</p> : null;
}

export function Fact({ name, children, href, bad }: { name: string; children: ComponentChildren; href?: string; bad?: boolean }) {
  const value = <span class={bad ? "value bad" : "value"}>{children}</span>;
  return <div class="fact"><dt>{name}</dt><dd>{href ? <a href={href}>{value}</a> : value}</dd></div>;
}

export function JobLink({ job, most = 40 }: { job: string; most?: number }) {
  if (!job) return <span class="muted">a job that you may not see</span>;
  const [kind, namespace, name] = [job.slice(0, job.indexOf("/")), job.split("/")[1] ?? "", job.split("/").slice(2).join("/")];
  return <a href={address(job)} title={job}><bdi>{shortened(name || job, most)}</bdi> <span class="muted kind"><bdi>{kind} · {shortened(namespace, 24)}</bdi></span></a>;
}

export function QueueLink({ queue }: { queue: string }) {
  return queue ? <a href={`#/queues?queue=${encodeURIComponent(queue)}`} title={queue}><bdi>{shortened(queue, 28)}</bdi></a> : <span class="muted">–</span>;
}

export function Pager({ total, next, shown, set, offset }: { total: number; next: string; shown: number; offset: number; set: (at: string | null) => void }) {
  if (total === 0) return null;
  return (
    <p class="pager">
      <span>{offset + 1} to {offset + shown} of {total}</span>
      {offset > 0 ? <button onClick={() => set(null)}>First</button> : null}
      {next ? <button onClick={() => set(next)}>Next</button> : null}
    </p>
  );
}

export function Filter({ name, label, value, set, options }: {
  name: string; label: string; value: string; set: (changes: Record<string, string | null>) => void; options?: readonly string[];
}) {
  const id = `filter-${name}`;
  return (
    <span class="filter">
      <label for={id}>{label}</label>
      {options ? (
        <select id={id} value={value} onChange={(event) => set({ [name]: event.currentTarget.value || null, continue: null })}>
          <option value="">all</option>
          {options.map((each) => <option key={each} value={each}>{each}</option>)}
        </select>
      ) : (
        <input id={id} type="search" value={value} maxLength={253} onChange={(event) => set({ [name]: event.currentTarget.value || null, continue: null })} />
      )}
    </span>
  );
}

/** Take the filters of a list from the address. */
export function queryOf(query: URLSearchParams, names: readonly string[], more: Record<string, string> = {}): string {
  const asked = new URLSearchParams(more);
  for (const name of [...names, "continue", "sort"]) {
    const value = query.get(name);
    if (value) asked.set(name, value);
  }
  const text = asked.toString();
  return text ? `?${text}` : "";
}

export const GLYPHS: Record<string, string> = { grow: "▲", shrink: "▼", hold: "■", fault: "✕", other: "●" };
