/** The JSON of the server's API, as far as the console uses it. */

export interface Memory {
  id?: string;
  text: string;
  type?: string;
  context?: string;
  occurred_start?: string;
  occurred_end?: string;
  mentioned_at?: string;
  first_stage_score?: number;
  entities?: string[];
  [field: string]: unknown;
}

export interface Result {
  index: number;
  id: string | null;
  rank: number;
  relevance: number | null;
  score: number | null;
  raw_score: number | null;
  rank_change: number;
  stale: boolean;
  superseded_by: number | null;
  stale_because: "stated" | "key" | "similar" | null;
  text?: string;
  passage?: string | null;
  factors?: Record<string, number>;
  memory?: Memory;
}

export interface Ranking {
  event_id: string | null;
  model: { name: string; version: string; fingerprint: string };
  results: Result[];
  abstained: boolean;
  degraded: { kind: string; message: string } | null;
  warnings: string[];
  usage?: { pairs: number; tokens: number };
}

export interface Session {
  caller: string;
  scopes: string[];
  tenant: string | null;
  has_keys: boolean;
  has_store: boolean;
  has_learning: boolean;
  has_index: boolean;
  model: string | null;
  models: string[];
  max_documents: number;
}

export interface HealthPoint {
  time: number;
  seconds: number;
  requests: number;
  failures: number;
  pairs: number;
  cached_pairs: number;
  degraded: number;
  p50: number | null;
  p95: number | null;
  p99: number | null;
  queue: number;
  active: number;
}

export interface Health {
  interval_seconds: number;
  total: HealthPoint;
  points: HealthPoint[];
  model: string | null;
  loaded_at: number | null;
  has_score_cache: boolean;
  prepared: { states: number; bytes: number; max_bytes: number } | null;
}

export interface GateCheck {
  name: string;
  passed: boolean;
  reason: string;
  current: number | null;
  candidate: number | null;
  low?: number | null;
  high?: number | null;
}

export interface Decision {
  promote: boolean;
  attempt: number;
  checks: GateCheck[];
}

export interface Measured {
  sets: Record<string, Record<string, number>>;
  ece: number;
  seconds_per_pair: number;
  size_bytes: number;
}

export interface CurvePoint {
  stage: string;
  step: number;
  steps: number;
  loss: number;
  dev: number | null;
}

export interface Run {
  id: string;
  created: number;
  finished: number | null;
  who: string;
  promote: boolean;
  base_version: string;
  examples: number;
  state: "waiting" | "running" | "done" | "failed" | "canceled";
  stage: string;
  version: string | null;
  decision: Decision | null;
  promoted: boolean;
  error: string | null;
  progress?: (Partial<CurvePoint> & { seconds_left?: number }) | null;
  curve?: CurvePoint[];
}

export interface LearningStatus {
  current: string | null;
  previous: string | null;
  versions: string[];
  events: number;
  test_events: number;
  signals: number;
  examples: Record<string, number>;
  untrained_examples: number;
  stores_texts: boolean;
  run: Run | null;
}

export interface HistoryEntry {
  time: number;
  action: string;
  version: string;
  who: string;
  why: string;
  parent?: string | null;
  facts?: Partial<Decision> & {
    compared_with?: string;
    current?: Measured;
    candidate?: Measured;
    run?: string;
    examples?: number;
  };
}

export interface Day {
  day: string;
  events: number;
  abstained: number;
  signals: Record<string, number>;
}

export interface MinedExample {
  id: string;
  query: string;
  split: string;
  candidates: (Memory & { label: number; weight?: number })[];
  provenance: Record<string, unknown>;
}
