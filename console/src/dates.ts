/** Dates of memories, which may be a year, a month, a day or a point in time. */

import type { Memory } from "./types";

const DAY = 86_400_000;

export interface Span {
  start: number;
  end: number;
}

/** Days since 1970 at which a date begins; null if it is not one. */
export function dayOf(date: string | undefined): number | null {
  const match = /^(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?/.exec(date ?? "");
  if (!match) return null;
  return Math.floor(Date.UTC(Number(match[1]), Number(match[2] ?? 1) - 1, Number(match[3] ?? 1)) / DAY);
}

export function today(): number {
  return Math.floor(Date.now() / DAY);
}

export function isoDay(day: number): string {
  return new Date(day * DAY).toISOString().slice(0, 10);
}

export function yearOf(day: number): number {
  return new Date(day * DAY).getUTCFullYear();
}

/** When a memory holds or happened; null without a date. */
export function spanOf(memory: Memory): Span | null {
  const start = dayOf(memory.occurred_start) ?? dayOf(memory.mentioned_at) ?? dayOf(memory.occurred_end);
  if (start === null) return null;
  return { start, end: Math.max(start, dayOf(memory.occurred_end) ?? start) };
}

/** @param length 10 for days, 7 for months */
export function describeDates(memory: Memory, length = 10): string {
  const [start, end] = [memory.occurred_start?.slice(0, length), memory.occurred_end?.slice(0, length)];
  if (start && end && start !== end) return `${start} – ${end}`;
  if (start ?? end) return end && !start ? `until ${end}` : (start ?? "");
  return memory.mentioned_at ? memory.mentioned_at.slice(0, length) : "";
}
