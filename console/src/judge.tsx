/** Judge: label the results of one query after the other, with the keyboard alone if you like. */

import { useEffect, useRef, useState } from "preact/hooks";

import { isAbort, messageOf, post } from "./api";
import { describeDates } from "./dates";
import { type Judgment, type Task, UNJUDGED, isJudged, readTasks, signalsOf, toLists } from "./judgments";
import { type Pool, SAMPLE_QUESTIONS, poolOptions } from "./pool";
import { Relevance } from "./rankings";
import type { Memory, Ranking, Session } from "./types";
import { Card, Empty, Field, Notice, count, download } from "./ui";

const SHOWN = 10;
const SHOWN_CHARACTERS = 600;
const STORED = "mnemorank.judgments";
const KEYS: readonly (readonly [string, string])[] = [
  ["↑ ↓ or 1–9", "choose a memory"],
  ["U", "relevant"],
  ["D", "not relevant"],
  ["F", "should be first"],
  ["X", "none of these answers"],
  ["Enter", "save, next query"],
  ["S", "skip"],
  ["B", "back"],
];

interface Progress {
  tasks: Task[];
  position: number;
  judgments: (Judgment | undefined)[];
}

function restore(): Progress | null {
  const stored = sessionStorage.getItem(STORED);
  return stored ? (JSON.parse(stored) as Progress) : null;
}

export function Judge({ session, pool, isOpen }: { session: Session; pool: Pool; isOpen: boolean }) {
  const [progress, setProgress] = useState<Progress | null>(restore);
  const [notice, setNotice] = useState("");

  const store = (next: Progress | null) => {
    setProgress(next);
    try {
      if (next) sessionStorage.setItem(STORED, JSON.stringify(next));
      else sessionStorage.removeItem(STORED);
      setNotice("");
    } catch {
      setNotice("Too much for the browser to keep: export before you close or reload this page.");
    }
  };
  const canSave = session.has_store && session.scopes.includes("feedback");
  return (
    <div class="judge">
      {!session.has_store && (
        <Notice kind="info">
          This server keeps no feedback. You can label and export; start it with <code>--store</code> or <code>--learning</code> to
          also learn from it.
        </Notice>
      )}
      {session.has_store && !canSave && (
        <Notice kind="warn">Your key lacks the scope “feedback”: judgments stay in this tab until you export them.</Notice>
      )}
      {notice && <Notice kind="warn">{notice}</Notice>}
      {progress ? (
        <Labeling
          key={progress.position} // each query starts fresh, so that no mark of the last one is left
          progress={progress}
          pool={pool}
          canSave={canSave}
          isOpen={isOpen}
          onProgress={store}
        />
      ) : (
        <Start pool={pool} onStart={(tasks) => store({ tasks, position: 0, judgments: [] })} />
      )}
    </div>
  );
}

function Start(props: { pool: Pool; onStart: (tasks: Task[]) => void }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const start = (content: string) => {
    try {
      props.onStart(readTasks(content));
    } catch (error) {
      setProblem(messageOf(error));
    }
  };
  const isSample = props.pool.source === "sample";
  return (
    <div class="judge-start">
      <Card title="Label queries">
        <p class="muted">
          Each query ranks <strong dir="auto">{props.pool.name.toLowerCase()}</strong>
          {props.pool.source !== "index" && ` (${count(props.pool.memories.length)})`}, as chosen in the playground. A line of the{" "}
          <code>lists</code> format brings its own candidates.
        </p>
        <form
          class="stack"
          onSubmit={(event) => {
            event.preventDefault();
            start(text);
          }}
        >
          <Field label="One query per line, or JSON Lines with “query” and maybe “candidates”">
            {(id) => (
              <textarea
                id={id}
                rows={9}
                dir="auto"
                placeholder={"Where does Ruby work now?\nWhen is the dentist?"}
                value={text}
                onInput={(event) => setText(event.currentTarget.value)}
              />
            )}
          </Field>
          {problem && <Notice kind="bad">{problem}</Notice>}
          <div class="row wrap">
            <button type="submit" class="primary" disabled={!text.trim()}>
              Start
            </button>
            <label class="button">
              Open file
              <input
                class="sr-only"
                type="file"
                accept=".jsonl,.ndjson,.txt"
                onChange={async (event) => {
                  const file = event.currentTarget.files?.[0];
                  if (file) start(await file.text());
                }}
              />
            </label>
            {isSample && (
              <button type="button" onClick={() => start(SAMPLE_QUESTIONS.map(([question]) => question).join("\n"))}>
                Use the sample questions
              </button>
            )}
          </div>
        </form>
      </Card>
      <Card title="Keys">
        <KeyHelp />
      </Card>
    </div>
  );
}

function KeyHelp() {
  return (
    <dl class="keys">
      {KEYS.map(([key, meaning]) => (
        <div key={key}>
          <dt>
            <kbd>{key}</kbd>
          </dt>
          <dd>{meaning}</dd>
        </div>
      ))}
    </dl>
  );
}

/** State, a function that returns it without delay, and a function that sets it. */
function useStateNow<T>(initial: T): [T, () => T, (value: T) => void] {
  const [value, setValue] = useState(initial);
  const now = useRef(initial);
  const set = (next: T) => {
    now.current = next;
    setValue(() => next);
  };
  return [value, () => now.current, set];
}

function Thumb(props: { isDown?: boolean }) {
  return (
    <svg width="16" height="16" viewBox="0 0 24 24" aria-hidden="true" class={props.isDown ? "flipped" : ""}>
      <path d="M2 10h4v11H2zM8 10l4.5-8c1.7 0 3 1.3 3 3 0 1.3-.6 2.7-1 4H20c1.3 0 2.2 1.2 1.9 2.5l-1.7 7.5c-.2.9-1 1.5-1.9 1.5H8z" />
    </svg>
  );
}

interface LabelingProps {
  progress: Progress;
  pool: Pool;
  canSave: boolean;
  isOpen: boolean;
  onProgress: (progress: Progress | null) => void;
}

function Labeling({ progress, pool, canSave, isOpen, onProgress }: LabelingProps) {
  const { tasks, position, judgments } = progress;
  const task = tasks[position];
  const [shown, setShown] = useState<{ eventId: string | null; memories: Memory[]; relevance: (number | null)[] } | null>(null);
  // Kept at once, not with the next frame: keys may follow each other faster than the page is drawn.
  const [draft, draftNow, setDraft] = useStateNow<Judgment>(judgments[position] ?? UNJUDGED);
  const [chosen, chosenNow, setChosen] = useStateNow(0);
  const [problem, setProblem] = useState("");
  const [isSaving, setSaving] = useState(false);
  const list = useRef<HTMLOListElement>(null);

  useEffect(() => {
    if (!task) return;
    const controller = new AbortController();
    const load = async () => {
      const shared = { query: task.query, top_k: SHOWN, ...(task.query_time && { now: task.query_time }) };
      try {
        const isIndex = pool.source === "index" && !task.memories;
        const memories = task.memories ?? pool.memories;
        const ranking = isIndex
          ? await post<Ranking>("v1/index/search", shared, controller.signal)
          : await post<Ranking>("v1/memories/rerank", { ...shared, memories, options: poolOptions({ ...pool, memories }) }, controller.signal);
        setShown({
          eventId: ranking.event_id,
          memories: ranking.results.map((result) => result.memory ?? memories[result.index] ?? { text: result.text ?? "" }),
          relevance: ranking.results.map((result) => result.relevance),
        });
      } catch (error) {
        if (!isAbort(error)) setProblem(messageOf(error));
      }
    };
    // The pool may still be on its way right after the page was opened.
    if (task.memories || pool.source === "index" || pool.memories.length) void load();
    return () => controller.abort();
  }, [pool]);

  const mark = (rank: number, value: "up" | "down") => {
    const marks = { ...draftNow().marks };
    if (marks[rank] === value) delete marks[rank];
    else marks[rank] = value;
    const { first } = draftNow();
    setDraft({ marks, first: first === rank && marks[rank] !== "up" ? null : first, none: false });
  };
  const putFirst = (rank: number) => {
    const { first, marks } = draftNow();
    setDraft({ first: first === rank ? null : rank, marks: { ...marks, [rank]: "up" }, none: false });
  };
  const toggleNone = () => setDraft(draftNow().none ? UNJUDGED : { ...UNJUDGED, none: true });
  const choose = (step: number) => setChosen(Math.max(0, Math.min((shown?.memories.length ?? 1) - 1, chosenNow() + step)));

  const go = (step: number, judgment?: Judgment) => {
    const next = [...judgments];
    if (judgment) next[position] = judgment;
    onProgress({ tasks, judgments: next, position: Math.max(0, Math.min(tasks.length, position + step)) });
  };
  const save = async () => {
    if (!shown || isSaving) return;
    const judgment = draftNow();
    if (!isJudged(judgment)) {
      setProblem("Mark a memory, press X if none answers, or S to skip.");
      return;
    }
    setSaving(true);
    try {
      if (canSave && shown.eventId)
        await post("v1/feedback", { event_id: shown.eventId, signals: signalsOf(judgment) });
      go(1, { ...judgment, memories: shown.memories });
    } catch (error) {
      setProblem(messageOf(error));
    }
    setSaving(false);
  };

  const onKey = (event: KeyboardEvent) => {
    if (!isOpen || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target as HTMLElement;
    if (target.closest("input, textarea, select, dialog")) return;
    const key = event.key.toLowerCase();
    const last = (shown?.memories.length ?? 1) - 1;
    const actions: Record<string, () => void> = {
      arrowdown: () => choose(1),
      j: () => choose(1),
      arrowup: () => choose(-1),
      k: () => choose(-1),
      u: () => mark(chosenNow() + 1, "up"),
      d: () => mark(chosenNow() + 1, "down"),
      f: () => putFirst(chosenNow() + 1),
      x: toggleNone,
      s: () => go(1),
      b: () => go(-1),
    };
    // A focused button keeps its own Enter.
    if (key === "enter" && !target.closest("button, a")) actions.enter = () => void save();
    const number = /^[1-9]$/.test(key) ? Number(key) - 1 : -1;
    if (number >= 0 && number <= last) actions[key] = () => setChosen(number);
    const action = actions[key];
    if (!action || (!task && key !== "b")) return;
    event.preventDefault();
    setProblem("");
    action();
  };
  useEffect(() => {
    window.addEventListener("keydown", onKey);
    return () => window.removeEventListener("keydown", onKey);
  });
  useEffect(() => {
    list.current?.children[chosen]?.scrollIntoView({ block: "nearest" });
  }, [chosen]);

  const labeled = judgments.filter((judgment) => judgment && isJudged(judgment)).length;
  const exportLists = () => download("judgments.jsonl", toLists(tasks, judgments), "application/x-ndjson");
  const bar = (
    <div class="judge-bar">
      <progress value={position} max={tasks.length} aria-label="Progress" />
      <span class="muted small">
        {Math.min(position + 1, tasks.length)} of {tasks.length} · {labeled} labeled
      </span>
      <span class="row">
        <button type="button" class="small-button" disabled={!labeled} onClick={exportLists}>
          Export lists
        </button>
        <button type="button" class="small-button" onClick={() => onProgress(null)}>
          New session
        </button>
      </span>
    </div>
  );
  if (!task)
    return (
      <div class="stack">
        {bar}
        <Card>
          <Empty title={`Done: ${labeled} of ${tasks.length} queries labeled`}>
            Export them to measure and train: <code>mnemorank bench judgments.jsonl</code>
          </Empty>
          <div class="row wrap center">
            <button type="button" class="primary" disabled={!labeled} onClick={exportLists}>
              Export lists
            </button>
            <button type="button" onClick={() => go(-1)}>
              Back
            </button>
          </div>
        </Card>
      </div>
    );
  return (
    <div class="stack">
      {bar}
      <Card>
        <p class="judge-query" dir="auto">
          {task.query}
        </p>
        {problem && <Notice kind="bad">{problem}</Notice>}
        <ol class="judge-list" ref={list} aria-label="Results" aria-busy={!shown}>
          {shown?.memories.map((memory, place) => {
            const rank = place + 1;
            const value = draft.marks[rank];
            const isFirst = draft.first === rank;
            return (
              <li
                key={rank}
                class={`${place === chosen ? "chosen" : ""} ${value ?? ""} ${isFirst ? "first" : ""}`}
                aria-current={place === chosen ? "true" : undefined}
                onClick={() => setChosen(place)}
              >
                <span class="place">{rank}</span>
                <div class="body">
                  <p dir="auto">{memory.text.slice(0, SHOWN_CHARACTERS)}</p>
                  <div class="meta">
                    <Relevance value={shown.relevance[place] ?? null} />
                    {describeDates(memory) && <span>{describeDates(memory)}</span>}
                  </div>
                </div>
                <div class="marks">
                  <button type="button" aria-pressed={value === "up"} class={value === "up" ? "up" : ""} onClick={() => mark(rank, "up")} aria-label={`Relevant: result ${rank}`} title="Relevant (U)">
                    <Thumb />
                  </button>
                  <button type="button" aria-pressed={value === "down"} class={value === "down" ? "down" : ""} onClick={() => mark(rank, "down")} aria-label={`Not relevant: result ${rank}`} title="Not relevant (D)">
                    <Thumb isDown />
                  </button>
                  <button type="button" aria-pressed={isFirst} class={isFirst ? "up" : ""} onClick={() => putFirst(rank)} aria-label={`1st: result ${rank} should be first`} title="Should be first (F)">
                    1st
                  </button>
                </div>
              </li>
            );
          })}
        </ol>
        <div class="row between">
          <button type="button" aria-pressed={draft.none} class={draft.none ? "danger" : ""} onClick={toggleNone}>
            None of these answers
          </button>
          <span class="row">
            <button type="button" disabled={position === 0} onClick={() => go(-1)}>
              Back
            </button>
            <button type="button" onClick={() => go(1)}>
              Skip
            </button>
            <button type="button" class="primary" disabled={!shown || isSaving} onClick={save}>
              Save and next
            </button>
          </span>
        </div>
      </Card>
      <details class="more">
        <summary>Keys</summary>
        <KeyHelp />
      </details>
    </div>
  );
}
