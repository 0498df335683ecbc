/** Playground: rank memories for a query, see what moved and why, and compare models or options. */

import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";

import { isAbort, messageOf, post } from "./api";
import { Detail } from "./detail";
import { OptionsForm, requestFields } from "./options";
import { INDEX, type Pool, SAMPLE_QUESTIONS, hasScores, loadSample, poolOptions, readFile } from "./pool";
import { Rankings } from "./rankings";
import { Snippets } from "./snippets";
import { DEFAULTS, type OptionSet, type Settings, decodeShared, encodeShared } from "./state";
import { Timeline } from "./timeline";
import type { Memory, Ranking, Result, Session } from "./types";
import { Card, Dialog, Empty, Field, Notice, count } from "./ui";

const DEBOUNCE_MS = 200;

interface Outcome {
  ranking: Ranking;
  other: Ranking | null;
  milliseconds: number;
}

interface Props {
  session: Session;
  pool: Pool;
  onPool: (pool: Pool) => void;
  isOpen: boolean;
}

export function Playground({ session, pool, onPool, isOpen }: Props) {
  const [settings, setSettings] = useState<Settings>(DEFAULTS);
  const [draft, setDraft] = useState("");
  const [outcome, setOutcome] = useState<Outcome | null>(null);
  const [problem, setProblem] = useState("");
  const [notes, setNotes] = useState<string[]>([]);
  const [isBusy, setBusy] = useState(false);
  const [selected, setSelected] = useState<number | null>(null);
  const [dialog, setDialog] = useState<"paste" | "copy" | null>(null);
  const [linkNote, setLinkNote] = useState("");
  const [isDropping, setDropping] = useState(false);
  const isReady = useRef(false);

  const change = useCallback((part: Partial<Settings>) => setSettings((old) => ({ ...old, ...part })), []);

  const usePool = useCallback(
    (next: Pool, warnings: string[] = []) => {
      onPool(next);
      setOutcome(null);
      setSelected(null);
      setProblem("");
      setNotes(warnings);
    },
    [onPool],
  );

  const useSample = useCallback(async (notes: string[] = []) => {
    try {
      usePool(await loadSample(), notes);
    } catch (error) {
      setProblem(messageOf(error));
    }
  }, [usePool]);

  const startSample = async (notes: string[]) => {
    const first = SAMPLE_QUESTIONS[0]?.[0] ?? "";
    setDraft(first);
    change({ query: first });
    await useSample(notes);
  };

  const open = useCallback(
    async (hash: string) => {
      try {
        const shared = await decodeShared(hash);
        if (!shared) return false;
        const { source, memories, name, ...rest } = shared;
        setSettings(rest);
        setDraft(rest.query);
        if (source === "index") usePool(INDEX);
        else if (source === "own" && memories) usePool({ source, name: name ?? "Shared memories", memories });
        else await useSample(source === "own" ? ["The link does not contain the memories, since they are too large. Load the file."] : []);
      } catch {
        await startSample(["The link is damaged, so the sample is shown."]);
      }
      return true;
    },
    [usePool, useSample],
  );

  useEffect(() => {
    const start = async () => {
      if (!(await open(location.hash))) await startSample([]);
      isReady.current = true;
    };
    void start();
    const onHash = () => void open(location.hash);
    window.addEventListener("hashchange", onHash);
    return () => window.removeEventListener("hashchange", onHash);
  }, []);

  const isIndex = pool.source === "index";
  const path = isIndex ? "v1/index/search" : "v1/memories/rerank";
  const bodyWith = (options: OptionSet): Record<string, unknown> => {
    const fields = requestFields(options);
    fields.options = { ...poolOptions(pool), ...fields.options };
    return {
      query: settings.query,
      ...(isIndex ? { candidates: 64 } : { memories: pool.memories }),
      ...(settings.now && { now: settings.now }),
      ...(settings.asOf && { as_of: settings.asOf }),
      ...fields,
      explain: true,
      test: true, // learning ignores what people try out here
    };
  };
  const isRunnable = settings.query.trim() !== "" && (isIndex || pool.memories.length > 0);

  // Rank again whenever something changes; a newer request cancels an older one.
  useEffect(() => {
    if (!isRunnable) return;
    const controller = new AbortController();
    const run = async () => {
      setBusy(true);
      const started = performance.now();
      try {
        const ranking = await post<Ranking>(path, bodyWith(settings.options), controller.signal);
        const milliseconds = performance.now() - started;
        let other: Ranking | null = null;
        if (settings.compare && !isIndex) {
          const { model, options } = settings.compare;
          const body = bodyWith(options);
          other = await (model
            ? post<Ranking>("v1/console/compare", { ...body, model }, controller.signal)
            : post<Ranking>(path, body, controller.signal));
        }
        setOutcome({ ranking, other, milliseconds });
        setProblem("");
        setSelected((old) => (old !== null && ranking.results.some((r) => r.index === old) ? old : (ranking.results[0]?.index ?? null)));
        setBusy(false);
      } catch (error) {
        if (isAbort(error)) return;
        setOutcome(null);
        setProblem(messageOf(error));
        setBusy(false);
      }
    };
    const timer = window.setTimeout(run, DEBOUNCE_MS);
    return () => {
      window.clearTimeout(timer);
      controller.abort();
    };
  }, [settings, pool]);

  const link = async () => {
    const { source, name, memories } = pool;
    const state = await encodeShared({ ...settings, source, ...(source === "own" && { name, memories }) });
    return `#playground=${state}`;
  };
  useEffect(() => {
    if (!isOpen || !isReady.current) return;
    let isCurrent = true;
    void link().then((hash) => isCurrent && history.replaceState(null, "", hash));
    return () => {
      isCurrent = false;
    };
  }, [settings, pool, isOpen, outcome]);

  const copyLink = async () => {
    const hash = await link();
    try {
      await navigator.clipboard.writeText(new URL(hash, location.href).href);
      setLinkNote("Link copied");
    } catch {
      setLinkNote("The link is in the address bar");
    }
    window.setTimeout(() => setLinkNote(""), 3000);
  };

  const load = async (name: string, content: string) => {
    try {
      const read = await readFile(name, content);
      usePool(read.pool, read.warnings);
      setDialog(null);
      change({ asOf: "" });
      return null;
    } catch (error) {
      return messageOf(error);
    }
  };
  const loadFile = async (file: File | undefined) => {
    if (!file) return;
    const failed = await load(file.name, await file.text());
    if (failed) setProblem(failed);
  };

  const shown = useMemo(() => {
    if (!outcome) return null;
    const byIndex = new Map<number, Memory>();
    if (isIndex) for (const result of outcome.ranking.results) if (result.memory) byIndex.set(result.index, result.memory);
    const memoryOf = (index: number) => byIndex.get(index) ?? pool.memories[index];
    const { results } = outcome.ranking;
    const retrieved = [...results].sort((a, b) => a.rank + a.rank_change - (b.rank + b.rank_change));
    return { memoryOf, retrieved, memories: isIndex ? [...byIndex.values()] : pool.memories };
  }, [outcome, pool]);

  const submit = (event: Event) => {
    event.preventDefault();
    change({ query: draft });
  };
  const ask = (question: string, asOf: string | null) => {
    setDraft(question);
    change({ query: question, asOf: asOf ?? "" });
  };
  const ranking = outcome?.ranking;
  const right = outcome?.other ?? ranking;
  const chosen = right?.results.find((result) => result.index === selected);

  return (
    <div
      class={`playground ${isDropping ? "dropping" : ""}`}
      onDragOver={(event) => {
        event.preventDefault();
        setDropping(true);
      }}
      onDragLeave={(event) => event.currentTarget === event.target && setDropping(false)}
      onDrop={(event) => {
        event.preventDefault();
        setDropping(false);
        void loadFile(event.dataTransfer?.files[0]);
      }}
    >
      <form class="ask" role="search" onSubmit={submit}>
        <input
          class="query"
          type="search"
          aria-label="Query"
          placeholder="Ask your memories"
          dir="auto"
          value={draft}
          onInput={(event) => setDraft(event.currentTarget.value)}
        />
        <button type="submit" class="primary" disabled={!draft.trim()}>
          {isBusy ? "Ranking…" : "Rank"}
        </button>
      </form>
      {pool.source === "sample" && (
        <div class="chips" aria-label="Sample questions" role="group">
          {SAMPLE_QUESTIONS.map(([question, asOf]) => (
            <button type="button" key={question} class="chip" onClick={() => ask(question, asOf)}>
              {question}
              {asOf && <span class="muted"> as of {asOf.slice(0, 4)}</span>}
            </button>
          ))}
        </div>
      )}
      <div class="layout">
        <aside aria-label="Settings">
          <Card title="Memories">
            <div class="pool">
              <strong dir="auto">{pool.name}</strong>
              <span class="muted small">{isIndex ? "searched on the server" : `${count(pool.memories.length)} memories`}</span>
            </div>
            <div class="row wrap">
              <label class="button">
                Open file
                <input
                  class="sr-only"
                  type="file"
                  accept=".jsonl,.ndjson,.json,.csv"
                  onChange={(event) => {
                    void loadFile(event.currentTarget.files?.[0]);
                    event.currentTarget.value = "";
                  }}
                />
              </label>
              <button type="button" onClick={() => setDialog("paste")}>
                Paste
              </button>
              {pool.source !== "sample" && (
                <button type="button" onClick={() => void useSample()}>
                  Sample
                </button>
              )}
              {session.has_index && !isIndex && (
                <button type="button" onClick={() => usePool(INDEX)}>
                  Index
                </button>
              )}
            </div>
            <p class="muted small">Drop a JSONL, JSON or CSV file anywhere.</p>
          </Card>
          <Card title="Time">
            <div class="pair">
              <Field label="Now">
                {(id) => (
                  <input id={id} type="date" value={settings.now} onChange={(event) => change({ now: event.currentTarget.value })} />
                )}
              </Field>
              <Field label="As of">
                {(id) => (
                  <input id={id} type="date" value={settings.asOf} onChange={(event) => change({ asOf: event.currentTarget.value })} />
                )}
              </Field>
            </div>
          </Card>
          <Card title="Options">
            <details class="more" open={Object.keys(settings.options).length > 0}>
              <summary>{Object.keys(settings.options).length ? `${Object.keys(settings.options).length} changed` : "All at their defaults"}</summary>
              <OptionsForm value={settings.options} onChange={(options) => change({ options })} />
            </details>
          </Card>
          {!isIndex && (
            <Card title="Compare">
              <label class="check">
                <input
                  type="checkbox"
                  checked={settings.compare !== null}
                  onChange={(event) => change({ compare: event.currentTarget.checked ? { model: "", options: settings.options } : null })}
                />
                With another model or other options
              </label>
              {settings.compare && (
                <>
                  <Field label="Model">
                    {(id) => (
                      <select
                        id={id}
                        value={settings.compare?.model}
                        onChange={(event) =>
                          settings.compare && change({ compare: { ...settings.compare, model: event.currentTarget.value } })
                        }
                      >
                        <option value="">the served model</option>
                        {session.models.map((name) => (
                          <option key={name} value={name}>
                            {name}
                          </option>
                        ))}
                      </select>
                    )}
                  </Field>
                  <OptionsForm
                    value={settings.compare.options}
                    onChange={(options) => settings.compare && change({ compare: { ...settings.compare, options } })}
                  />
                </>
              )}
            </Card>
          )}
        </aside>
        <div class="results" aria-busy={isBusy}>
          {problem && <Notice kind="bad">{problem}</Notice>}
          {notes.map((note) => (
            <Notice key={note} kind="warn">
              {note}
            </Notice>
          ))}
          {ranking?.degraded && <Notice kind="warn">Degraded: {ranking.degraded.message}</Notice>}
          {ranking?.warnings.slice(0, 5).map((warning) => (
            <Notice key={warning} kind="warn">
              {warning}
            </Notice>
          ))}
          {ranking?.abstained && (
            <Notice kind="info">
              <strong>No answer.</strong> None of these memories is relevant enough, so an agent should not use them.
            </Notice>
          )}
          {outcome && ranking && right && shown ? (
            <>
              <Card
                title="Timeline"
                aside={
                  settings.asOf ? (
                    <span class="row">
                      <span class="small">
                        as of <strong>{settings.asOf}</strong>
                      </span>
                      <button type="button" class="small-button" onClick={() => change({ asOf: "" })}>
                        Now
                      </button>
                    </span>
                  ) : (
                    <span class="muted small">drag to rank as of an earlier date</span>
                  )
                }
              >
                <Timeline
                  memories={shown.memories}
                  results={right.results}
                  memoryOf={shown.memoryOf}
                  asOf={settings.asOf}
                  selected={selected}
                  onAsOf={(asOf) => change({ asOf })}
                  onSelect={setSelected}
                />
              </Card>
              <Card
                title={outcome.other ? "Comparison" : "Ranking"}
                class="ranking-card"
                aside={
                  <span class="row">
                    <span class="muted small" role="status">
                      {linkNote || describe(outcome, pool)}
                    </span>
                    <button type="button" class="small-button" onClick={copyLink}>
                      Copy link
                    </button>
                    <button type="button" class="small-button" onClick={() => setDialog("copy")}>
                      Copy as…
                    </button>
                  </span>
                }
              >
                <Rankings
                  left={
                    outcome.other
                      ? { title: sideName("A", ranking, settings.options), results: ranking.results }
                      : { title: retrieverName(pool, settings.options), results: shown.retrieved, plain: true }
                  }
                  right={
                    outcome.other
                      ? { title: sideName("B", right, settings.compare?.options ?? {}), results: right.results }
                      : { title: "mnemorank", results: right.results }
                  }
                  memories={shown.memoryOf}
                  selected={selected}
                  onSelect={setSelected}
                />
              </Card>
            </>
          ) : (
            !problem &&
            !isRunnable && <Empty title="Ask a question">Type a query above to rank {pool.name.toLowerCase()}.</Empty>
          )}
        </div>
        {chosen && shown && right && (
          <aside class="side" aria-label="Selected memory">
            <Card>
              <Detail
                result={chosen}
                memory={shown.memoryOf(chosen.index)}
                of={right.results.length}
                replacedBy={successor(chosen, right)}
                asOf={settings.asOf}
                onSelect={setSelected}
              />
            </Card>
          </aside>
        )}
      </div>
      {dialog === "copy" && <Snippets path={path} body={bodyWith(settings.options)} onClose={() => setDialog(null)} />}
      {dialog === "paste" && <Paste onLoad={load} onClose={() => setDialog(null)} />}
    </div>
  );
}

function Paste(props: { onLoad: (name: string, content: string) => Promise<string | null>; onClose: () => void }) {
  const [content, setContent] = useState("");
  const [problem, setProblem] = useState("");
  const submit = async (event: Event) => {
    event.preventDefault();
    // Lines that are neither JSON nor CSV are memories by themselves.
    const isText = !/^\s*[[{"]/.test(content) && !content.split("\n", 1)[0]?.includes(",");
    const lines = content.split("\n").filter((line) => line.trim());
    const failed = isText
      ? await props.onLoad("pasted.jsonl", lines.map((line) => JSON.stringify(line)).join("\n"))
      : await props.onLoad("Pasted memories", content);
    setProblem(failed ?? "");
  };
  return (
    <Dialog title="Paste memories" onClose={props.onClose}>
      <form class="stack" onSubmit={submit}>
        <Field label="JSON Lines, a JSON array, CSV with a header, or one memory per line">
          {(id) => (
            <textarea
              id={id}
              rows={12}
              spellcheck={false}
              dir="auto"
              value={content}
              onInput={(event) => setContent(event.currentTarget.value)}
            />
          )}
        </Field>
        {problem && <Notice kind="bad">{problem}</Notice>}
        <div class="row end">
          <button type="submit" class="primary" disabled={!content.trim()}>
            Use these memories
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function describe(outcome: Outcome, pool: Pool): string {
  const { ranking, milliseconds } = outcome;
  const pairs = ranking.usage ? `${count(ranking.usage.pairs)} scored, ` : "";
  const left = pool.source === "index" ? 0 : pool.memories.length - ranking.results.length;
  return `${pairs}${left > 0 ? `${count(left)} left out, ` : ""}${Math.round(milliseconds)} ms`;
}

function retrieverName(pool: Pool, options: OptionSet): string {
  if (pool.source === "index") return "First stage";
  const source = options.first_stage ?? (hasScores(pool) ? "given" : "bm25");
  return source === "bm25" ? "BM25" : hasScores(pool) ? "Your retriever" : "Your order";
}

function sideName(side: string, { model }: Ranking, options: OptionSet): string {
  const changed = Object.entries(options).map(([name, value]) => `${name} ${value}`);
  return [`${side}: ${model.name} ${model.version}`, ...changed].join(", ");
}

function successor(result: Result, ranking: Ranking): Result | undefined {
  return ranking.results.find((other) => other.index === result.superseded_by);
}
