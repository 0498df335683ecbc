/** Judgments: read the queries to label, and write labels as feedback and as `lists` for `bench` and `train`. */

import type { Memory } from "./types";

export interface Task {
  query: string;
  query_time?: string;
  memories?: Memory[];
}

export interface Judgment {
  /** By rank, from 1. */
  marks: Record<number, "up" | "down">;
  first: number | null;
  none: boolean;
  /** What was shown, in order. */
  memories?: Memory[];
}

export interface Signal {
  kind: "thumbs_up" | "thumbs_down" | "note";
  rank?: number;
  note?: string;
}

export const UNJUDGED: Judgment = { marks: {}, first: null, none: false };
/** The label of a relevant memory when another one should be first. */
const SECOND_BEST = 0.7;

export function isJudged(judgment: Judgment): boolean {
  return judgment.none || Object.keys(judgment.marks).length > 0;
}

/** Read one query per line, or one JSON object per line. */
export function readTasks(content: string): Task[] {
  const lines = content.split("\n").map((line) => line.trim());
  const tasks = lines.flatMap((line, number) => (line ? [readTask(line, number + 1)] : []));
  if (tasks.length === 0) throw new Error("There are no queries.");
  return tasks;
}

function readTask(line: string, number: number): Task {
  if (!line.startsWith("{")) return { query: line };
  let record: Record<string, unknown>;
  try {
    record = JSON.parse(line) as Record<string, unknown>;
  } catch {
    throw new Error(`Line ${number} is not JSON.`);
  }
  const { query, query_time, candidates, memories } = record;
  if (typeof query !== "string" || !query.trim()) throw new Error(`Line ${number} has no “query”.`);
  const own = candidates ?? memories;
  if (own !== undefined && !Array.isArray(own)) throw new Error(`Line ${number}: “candidates” is not a list.`);
  return {
    query,
    ...(typeof query_time === "string" && { query_time }),
    ...(Array.isArray(own) && { memories: own.map((value, place) => readMemory(value, `Line ${number}, candidate ${place + 1}`)) }),
  };
}

function readMemory(value: unknown, where: string): Memory {
  if (typeof value === "string") return { text: value };
  const record = { ...(value as Record<string, unknown>) };
  if (typeof record.text !== "string") throw new Error(`${where} has no “text”.`);
  // Labels of a file that is judged again must not influence the judge, nor the ranking.
  delete record.label;
  delete record.weight;
  return record as Memory;
}

/** The signals of `/v1/feedback`. Without a rank, a signal is about the answer as a whole. */
export function signalsOf(judgment: Judgment): Signal[] {
  if (judgment.none) return [{ kind: "thumbs_down" }];
  const signals: Signal[] = Object.entries(judgment.marks).map(([rank, value]) => ({
    kind: value === "up" ? "thumbs_up" : "thumbs_down",
    rank: Number(rank),
  }));
  if (judgment.first !== null) signals.push({ kind: "note", rank: judgment.first, note: "should be first" });
  return signals;
}

/**
 * Write the judged queries as JSON Lines. What was shown and not marked counts as not relevant, if something else was
 * marked as relevant; a query with only negative marks keeps only those.
 */
export function toLists(tasks: Task[], judgments: (Judgment | undefined)[]): string {
  const records = tasks.flatMap((task, place) => {
    const judgment = judgments[place];
    if (!judgment || !isJudged(judgment)) return [];
    const hasRelevant = Object.values(judgment.marks).includes("up");
    const candidates = (judgment.memories ?? []).flatMap((memory, index) => {
      const label = labelOf(judgment, index + 1);
      const isKept = judgment.none || hasRelevant || judgment.marks[index + 1] !== undefined;
      return isKept ? [{ ...memory, label }] : [];
    });
    return [
      {
        id: `console-${place + 1}`,
        query: task.query,
        ...(task.query_time && { query_time: task.query_time }),
        ...(judgment.none && { answerable: false }),
        candidates,
      },
    ];
  });
  return records.map((record) => `${JSON.stringify(record)}\n`).join("");
}

function labelOf(judgment: Judgment, rank: number): number {
  if (judgment.marks[rank] !== "up") return 0;
  return judgment.first === null || judgment.first === rank ? 1 : SECOND_BEST;
}
