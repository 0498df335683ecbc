/** The memories that the playground ranks: the sample, the user's own, or the server's index. */

import { getText, post } from "./api";
import type { OptionSet } from "./state";
import type { Memory } from "./types";

export interface Pool {
  source: "sample" | "own" | "index";
  name: string;
  memories: Memory[];
}

export const SAMPLE: Pool = { source: "sample", name: "Sample memories", memories: [] };
export const INDEX: Pool = { source: "index", name: "Memory index", memories: [] };

export const SAMPLE_QUESTIONS: readonly (readonly [string, string | null])[] = [
  ["Where does Ruby work now?", null],
  ["Where was Ruby working in 2021?", null],
  ["Which medication does Dad take for his blood pressure?", null],
  ["Which database was in production?", "2023-06-01"],
  ["What is the capital gains tax rate in Portugal?", null],
];

export async function loadSample(): Promise<Pool> {
  const lines = (await getText("console/sample.jsonl")).split("\n").filter((line) => line.trim());
  return { ...SAMPLE, memories: lines.map((line) => JSON.parse(line) as Memory) };
}

/** From this size on, only the best of the first stage are scored unless the options say otherwise. */
const LARGE_POOL = 500;
const SCORED_OF_LARGE_POOL = 200;

export function hasScores(pool: Pool): boolean {
  return pool.memories.some((memory) => memory.first_stage_score !== undefined);
}

/** The defaults that suit a pool: BM25 stands in for a retriever that gave no scores. */
export function poolOptions(pool: Pool): OptionSet {
  if (pool.source === "index") return {};
  return {
    ...(!hasScores(pool) && { first_stage: "bm25" }),
    ...(pool.memories.length > LARGE_POOL && { max_scored: SCORED_OF_LARGE_POOL }),
  };
}

/** Let the server read a file, so that it is read as by every other tool. */
export async function readFile(name: string, content: string): Promise<{ pool: Pool; warnings: string[] }> {
  const read = await post<{ memories: Memory[]; warnings: string[] }>("v1/console/memories", { name, content });
  return { pool: { source: "own", name, memories: read.memories }, warnings: read.warnings };
}
