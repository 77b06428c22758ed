/** The frame of the page: login, navigation, the age of the data, and the view of the address. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { Failure, ask, follow, logIn, type StreamEvent, type Viewer } from "./api";
import { amount, duration } from "./format";
import { setSite } from "./links";
import { DecisionsView } from "./views/decisions";
import { FabricView } from "./views/fabric";
import { JobView } from "./views/job";
import { JobsView } from "./views/jobs";
import { NodesView } from "./views/nodes";
import { QueuesView } from "./views/queues";

export interface Place { view: string; query: URLSearchParams }

export interface ViewProps {
  query: URLSearchParams;
  /** Rises with each change in the cluster; a view then asks again. */
  version: number;
  /** Change the filters in the address. A null removes one. */
  set: (changes: Record<string, string | null>) => void;
  /** A forecast is shown only while the data is fresh. */
  stale: boolean;
}

const VIEWS = [
  { name: "fabric", title: "Fabric", key: "f", view: FabricView },
  { name: "queues", title: "Queues", key: "q", view: QueuesView },
  { name: "jobs", title: "Jobs", key: "j", view: JobsView },
  { name: "decisions", title: "Decisions", key: "d", view: DecisionsView },
  { name: "nodes", title: "Nodes", key: "n", view: NodesView },
] as const;
const STALE_S = 15;
const RETRY_MS = 5000;

function placeOf(hash: string): Place {
  const [view, query] = hash.replace(/^#\/?/, "").split("?", 2);
  return { view: view || "fabric", query: new URLSearchParams(query ?? "") };
}

/** Take the token out of the address that `turnout page` prints, so that it is not in the history. */
async function logInByAddress(): Promise<void> {
  const token = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (token === undefined) return;
  history.replaceState(null, "", "#/fabric");
  await logIn(decodeURIComponent(token));
}

export function App() {
  const [place, setPlace] = useState(() => placeOf(location.hash));
  const [viewer, setViewer] = useState<Viewer | null>(null);
  const [problem, setProblem] = useState<Failure | null>(null);
  const [stream, setStream] = useState<StreamEvent | null>(null);
  const [lost, setLost] = useState<number | null>(null);
  const [help, setHelp] = useState(false);

  const enter = useCallback(async () => {
    try {
      const known = await ask<Viewer>("viewer");
      setSite(known.docs_url, known.grafana_url);
      setViewer(known);
      setProblem(null);
    } catch (error) {
      setProblem(error as Failure);
    }
  }, []);
  useEffect(() => {
    void logInByAddress().catch((error: unknown) => setProblem(error as Failure)).then(enter).then(() => setPlace(placeOf(location.hash)));
    const moved = () => setPlace(placeOf(location.hash));
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  useStream(viewer !== null && problem?.status !== 401, setStream, setLost, setProblem);
  useKeys(setHelp);
  const title = VIEWS.find((each) => each.name === place.view)?.title ?? "Job";
  useEffect(() => { document.title = `${title} · Turnout${viewer?.cluster ? ` · ${viewer.cluster}` : ""}`; }, [title, viewer]);

  const set = useCallback((changes: Record<string, string | null>) => {
    const now = placeOf(location.hash);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === "") now.query.delete(name); else now.query.set(name, value);
    }
    const query = now.query.toString();
    location.hash = `#/${now.view}${query ? `?${query}` : ""}`;
  }, []);
  const revision = useRevision(stream);
  const silent = stream === null ? 0 : stream.silent_s;
  const unknown = stream?.unknown_namespaces ?? viewer?.unknown_namespaces ?? 0;
  const stale = lost !== null || silent > STALE_S;
  const View = place.view === "job" ? JobView : VIEWS.find((each) => each.name === place.view)?.view ?? FabricView;
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the view</a>
      <header class="bar">
        <strong class="brand">Turnout</strong>
        {viewer?.cluster ? <span class="cluster"><bdi>{viewer.cluster}</bdi></span> : null}
        <nav aria-label="Views">
          {VIEWS.map((each) => (
            <a key={each.name} href={`#/${each.name}`} aria-current={each.name === place.view ? "page" : undefined}>{each.title}</a>
          ))}
        </nav>
        <Search />
        <Age stream={stream} lost={lost} />
        <Theme />
      </header>
      {stale && viewer !== null ? <StaleBanner stream={stream} lost={lost} /> : null}
      {unknown > 0 ? <p class="banner" role="status">Your right to list pods is not known yet in {amount(unknown)} {unknown === 1 ? "namespace" : "namespaces"}: what is there is hidden until then.</p> : null}
      <main id="main" tabIndex={-1}>
        {problem !== null ? <Login problem={problem} enter={enter} /> : null}
        {viewer !== null ? <View query={place.query} version={revision} set={set} stale={stale} /> : problem === null ? <p class="loading">Asking who you are.</p> : null}
      </main>
      {help ? <Help close={() => setHelp(false)} /> : null}
    </>
  );
}

/** A number that rises when the cluster has changed, and when more of it may be seen. */
function useRevision(stream: StreamEvent | null): number {
  const known = useRef({ version: 0, unknown: 0, revision: 0 });
  const { version = 0, unknown_namespaces: unknown = 0 } = stream ?? {};
  if (known.current.version !== version || known.current.unknown !== unknown) {
    known.current = { version, unknown, revision: known.current.revision + 1 };
  }
  return known.current.revision;
}

function useStream(
  on: boolean, setStream: (event: StreamEvent) => void, setLost: (sinceMs: number | null) => void,
  setProblem: (problem: Failure) => void,
): void {
  useEffect(() => {
    if (!on) return;
    const end = new AbortController();
    const run = async () => {
      let lostAt: number | null = null;
      while (!end.signal.aborted) {
        try {
          await follow((kind, event) => {
            if (kind === "expired") setProblem(new Failure(401, "Your token has expired.", "Log in again; what you see keeps its age."));
            else { lostAt = null; setLost(null); setStream(event); }
          }, end.signal);
        } catch (error) {
          if (error instanceof Failure && error.status === 401) { setProblem(error); return; }
        }
        if (end.signal.aborted) return;
        lostAt ??= Date.now();
        setLost(lostAt);
        await new Promise((wake) => setTimeout(wake, RETRY_MS));
      }
    };
    void run();
    return () => end.abort();
  }, [on]);
}

function useKeys(setHelp: (on: boolean | ((was: boolean) => boolean)) => void): void {
  const first = useRef(false);
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape") setHelp(false);
      if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return;
      if (first.current) {
        first.current = false;
        const view = VIEWS.find((each) => each.key === event.key);
        if (view) location.hash = `#/${view.name}`;
      } else if (event.key === "g") first.current = true;
      else if (event.key === "/") { event.preventDefault(); document.getElementById("search")?.focus(); }
      else if (event.key === "?") setHelp((was) => !was);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

function Search() {
  return (
    <form class="search" role="search" onSubmit={(event) => {
      event.preventDefault();
      const text = new FormData(event.currentTarget).get("text") as string;
      location.hash = `#/jobs?text=${encodeURIComponent(text)}`;
    }}>
      <label class="hidden" for="search">Search jobs by name</label>
      <input id="search" name="text" type="search" placeholder="Search jobs (/)" autocomplete="off" maxLength={253} />
    </form>
  );
}

function Age({ stream, lost }: { stream: StreamEvent | null; lost: number | null }) {
  const [, tick] = useState(0);
  useEffect(() => { const timer = setInterval(() => tick((was) => was + 1), 1000); return () => clearInterval(timer); }, []);
  if (stream === null) return <span class="age" />;
  const age = (lost === null ? 0 : (Date.now() - lost) / 1000) + stream.silent_s;
  return <span class="age">{age < STALE_S ? "live" : `${duration(age)} old`}</span>;
}

function StaleBanner({ stream, lost }: { stream: StreamEvent | null; lost: number | null }) {
  const cause = lost !== null ? "The page's server does not answer" : `The API server does not answer${stream?.error ? ` (${stream.error})` : ""}`;
  const age = (lost === null ? 0 : (Date.now() - lost) / 1000) + (stream?.silent_s ?? 0);
  return <p class="banner" role="status">{cause}: this is the cluster of {duration(age)} ago. The next try comes within 5 s. Forecasts are not shown.</p>;
}

function Login({ problem, enter }: { problem: Failure; enter: () => Promise<void> }) {
  const [error, setError] = useState("");
  if (problem.status !== 401) {
    return <section class="card problem" role="alert"><h1 tabIndex={-1}>The page cannot ask the cluster</h1><p>{problem.message}</p><p>{problem.nextStep}</p><button onClick={() => void enter()}>Try again</button></section>;
  }
  return (
    <section class="card login">
      <h1 tabIndex={-1}>Log in</h1>
      <p>{problem.message}. {problem.nextStep}</p>
      <form onSubmit={(event) => {
        event.preventDefault();
        const token = new FormData(event.currentTarget).get("token") as string;
        logIn(token.trim()).then(enter).catch((failure: Failure) => setError(failure.message));
      }}>
        <label for="token">Token of the cluster, or of the address that <code>turnout page</code> prints</label>
        <input id="token" name="token" type="password" autocomplete="off" required />
        <button type="submit">Log in</button>
      </form>
      {error ? <p class="problem" role="alert">{error}</p> : null}
      <p class="muted">A token of your account: <code>kubectl create token NAME</code>. It is sent to this page only, and kept until the session ends.</p>
    </section>
  );
}

function Theme() {
  const [theme, setTheme] = useState(() => localStorage.getItem("theme") ?? "system");
  useEffect(() => {
    localStorage.setItem("theme", theme);
    const dark = theme === "dark" || (theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.dataset["theme"] = dark ? "dark" : "light";
    dispatchEvent(new Event("theme"));
  }, [theme]);
  const next = { system: "light", light: "dark", dark: "system" }[theme] ?? "system";
  return <button class="theme" onClick={() => setTheme(next)} aria-label={`Theme: ${theme}. Change to ${next}`}>{theme === "dark" ? "Dark" : theme === "light" ? "Light" : "System"}</button>;
}

function Help({ close }: { close: () => void }) {
  const keys = [["/", "search jobs"], ["g then f q j d n", "fabric, queues, jobs, decisions, nodes"], ["arrows", "move over the nodes of the fabric"], ["Enter", "select the job under the cursor"], ["Esc", "clear the selection, close this"], ["+ − 0", "zoom in, out, all"], ["1 to 9", "mute all but one entry of the legend"], ["t", "picture or table of the fabric"], ["p", "pause live decisions"], ["?", "this help"]];
  return (
    <div class="veil" onClick={close}>
      <section class="card help" role="dialog" aria-modal="true" aria-label="Keys" onClick={(event) => event.stopPropagation()}>
        <h2>Keys</h2>
        <dl>{keys.map(([key, text]) => <><dt>{key}</dt><dd>{text}</dd></>)}</dl>
        <button onClick={close} autoFocus>Close</button>
      </section>
    </div>
  );
}
