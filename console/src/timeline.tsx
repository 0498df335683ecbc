/** The dated memories over time, by relevance, with the as-of date as a cursor. */

import { useEffect, useRef, useState } from "preact/hooks";

import { dayOf, isoDay, spanOf, today, yearOf } from "./dates";
import type { Memory, Result } from "./types";

const HEIGHT = 112;
const DENSITY = 22;
const MARGIN = 10;
const BINS = 90;
const MAX_DOTS = 150;

interface Props {
  memories: Memory[];
  results: Result[];
  memoryOf: (index: number) => Memory | undefined;
  asOf: string;
  selected: number | null;
  onAsOf: (asOf: string) => void;
  onSelect: (index: number) => void;
}

export function Timeline(props: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(600);
  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setWidth(element.clientWidth));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const spans = props.memories.map(spanOf).filter((span) => span !== null);
  if (spans.length === 0) return <p class="muted small">None of these memories has a date.</p>;
  let low = Infinity;
  let high = today();
  for (const span of spans) {
    low = Math.min(low, span.start);
    high = Math.max(high, span.start);
  }
  const length = Math.max(high - low, 1);
  const x = (day: number) => MARGIN + ((width - 2 * MARGIN) * (Math.min(day, high) - low)) / length;
  const floor = HEIGHT - DENSITY - 16;
  const y = (relevance: number) => floor - 6 - (floor - 16) * relevance;

  const bins = new Array<number>(BINS).fill(0);
  for (const span of spans) {
    const bin = Math.min(BINS - 1, Math.floor((BINS * (span.start - low)) / length));
    bins[bin] = (bins[bin] ?? 0) + 1;
  }
  const tallest = Math.max(...bins);
  const dots = props.results.slice(0, MAX_DOTS).reverse();
  const cursor = props.asOf ? (dayOf(props.asOf) ?? high) : high;
  const dated = `${spans.length} of ${props.memories.length} memories have a date`;

  return (
    <div class="timeline" ref={frame}>
      <svg width={width} height={HEIGHT} role="img" aria-label={`Timeline: ${dated}, from ${isoDay(low)} to ${isoDay(high)}`}>
        {years(low, high, width).map((year) => {
          const day = dayOf(String(year)) ?? low;
          return (
            <g key={year} class="tick">
              <line x1={x(day)} x2={x(day)} y1={8} y2={HEIGHT - 14} />
              <text x={x(day) + 4} y={HEIGHT - 3}>
                {year}
              </text>
            </g>
          );
        })}
        {bins.map((size, bin) => {
          const tall = size ? 2 + ((DENSITY - 4) * size) / tallest : 0;
          const wide = (width - 2 * MARGIN) / BINS;
          return <rect key={bin} class="density" x={MARGIN + bin * wide} y={HEIGHT - 16 - tall} width={Math.max(wide - 1, 1)} height={tall} />;
        })}
        {dots.map((result) => {
          const span = spanOf(props.memoryOf(result.index) ?? { text: "" });
          if (!span) return null;
          const level = y(result.relevance ?? 0);
          const tone = `${result.index === props.selected ? "chosen" : ""} ${result.stale ? "stale" : ""}`;
          return (
            <g key={result.index} class={`dot ${tone}`} onClick={() => props.onSelect(result.index)}>
              <title>{`#${result.rank} ${(props.memoryOf(result.index)?.text ?? "").slice(0, 120)}`}</title>
              {span.end > span.start && <line x1={x(span.start)} x2={x(span.end)} y1={level} y2={level} />}
              <circle cx={x(span.start)} cy={level} r={result.index === props.selected ? 6 : 4.5} />
            </g>
          );
        })}
        {props.asOf && (
          <g class="cursor">
            <rect x={x(cursor)} y={4} width={Math.max(0, width - MARGIN - x(cursor))} height={HEIGHT - 20} />
            <line x1={x(cursor)} x2={x(cursor)} y1={2} y2={HEIGHT - 14} />
          </g>
        )}
      </svg>
      <input
        class="as-of"
        type="range"
        aria-label="As of"
        aria-valuetext={props.asOf || "now"}
        min={low}
        max={high}
        value={cursor}
        onInput={(event) => {
          const day = Number(event.currentTarget.value);
          props.onAsOf(day >= high ? "" : isoDay(day));
        }}
      />
    </div>
  );
}

/** The years to label, as many as fit. */
function years(low: number, high: number, width: number): number[] {
  const [from, to] = [yearOf(low) + 1, yearOf(high)];
  const step = Math.max(1, Math.ceil((to - from + 1) / Math.max(1, Math.floor(width / 56))));
  const labels = [];
  for (let year = from; year <= to; year += step) labels.push(year);
  return labels;
}
