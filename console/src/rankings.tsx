/** Two orders of the same memories side by side, with lines between them. Only visible rows are in the document. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { describeDates } from "./dates";
import type { Memory, Result } from "./types";
import { percent } from "./ui";

const ROW = 82;
const GUTTER = 72;
const OVERSCAN = 4;
const MAX_HEIGHT = 7.6 * ROW;
/** A row shows two lines; more text would only slow the browser down. */
const SHOWN_CHARACTERS = 300;

export interface Column {
  title: string;
  results: Result[];
  /** Retrievers' columns show the position only. */
  plain?: boolean;
}

interface Props {
  left: Column;
  right: Column;
  memories: (index: number) => Memory | undefined;
  selected: number | null;
  onSelect: (index: number) => void;
}

export function Rankings(props: Props) {
  const { left, right, selected } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(MAX_HEIGHT);
  const rows = Math.max(left.results.length, right.results.length);

  useEffect(() => {
    const element = scroller.current;
    if (!element) return;
    const observer = new ResizeObserver(() => setHeight(element.clientHeight));
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  // A new ranking is read from its top.
  useLayoutEffect(() => {
    scroller.current?.scrollTo({ top: 0 });
  }, [right.results]);

  const first = Math.max(0, Math.floor(top / ROW) - OVERSCAN);
  const last = Math.min(rows, Math.ceil((top + height) / ROW) + OVERSCAN);
  const position = right.results.findIndex((result) => result.index === selected);

  const move = (step: number) => {
    const target = Math.min(right.results.length - 1, Math.max(0, position + step));
    const result = right.results[target];
    if (!result) return;
    props.onSelect(result.index);
    const element = scroller.current;
    if (!element) return;
    if (target * ROW < element.scrollTop) element.scrollTop = target * ROW;
    if ((target + 1) * ROW > element.scrollTop + height) element.scrollTop = (target + 1) * ROW - height;
  };
  const keys: Record<string, number> = {
    ArrowDown: 1,
    ArrowUp: -1,
    PageDown: 6,
    PageUp: -6,
    Home: -rows,
    End: rows,
  };

  const idOf = (index: number) => `result-${index}`;
  return (
    <div class="rankings">
      <div class="rankings-heads" aria-hidden="true">
        <span>{left.title}</span>
        <span />
        <span>{right.title}</span>
      </div>
      <div class="scroller" ref={scroller} onScroll={(event) => setTop(event.currentTarget.scrollTop)}>
        <div class="sheet" style={{ height: `${rows * ROW}px` }}>
          <div class="column left" role="list" aria-label={left.title}>
            {left.results.slice(first, last).map((result, offset) => (
              <div
                key={result.index}
                class={`slot ${result.index === selected ? "selected" : ""}`}
                style={{ top: `${(first + offset) * ROW}px` }}
                role="listitem"
                aria-setsize={left.results.length}
                aria-posinset={first + offset + 1}
                onClick={() => props.onSelect(result.index)}
              >
                <Row
                  place={left.plain ? result.rank + result.rank_change : result.rank}
                  result={result}
                  plain={left.plain ?? false}
                  memory={props.memories(result.index)}
                />
              </div>
            ))}
          </div>
          <Lines {...props} first={first} last={last} />
          <div
            class="column right"
            role="listbox"
            aria-label={right.title}
            tabIndex={0}
            aria-activedescendant={position >= first && position < last && selected !== null ? idOf(selected) : undefined}
            onKeyDown={(event) => {
              const step = keys[event.key];
              if (step === undefined) return;
              event.preventDefault();
              move(step);
            }}
          >
            {right.results.slice(first, last).map((result, offset) => (
              <div
                key={result.index}
                id={idOf(result.index)}
                class={`slot ${result.index === selected ? "selected" : ""}`}
                style={{ top: `${(first + offset) * ROW}px` }}
                role="option"
                aria-selected={result.index === selected}
                aria-setsize={right.results.length}
                aria-posinset={first + offset + 1}
                onClick={() => props.onSelect(result.index)}
              >
                <Row place={result.rank} result={result} plain={false} memory={props.memories(result.index)} />
              </div>
            ))}
          </div>
        </div>
      </div>
    </div>
  );
}

function Lines(props: Props & { first: number; last: number }) {
  const leftPlaces = new Map(props.left.results.map((result, place) => [result.index, place]));
  const rightPlaces = new Map(props.right.results.map((result, place) => [result.index, place]));
  const visible = new Set<number>();
  for (const column of [props.left.results, props.right.results])
    for (const result of column.slice(props.first, props.last)) visible.add(result.index);
  const y = (place: number) => place * ROW + ROW / 2;
  const order = [...visible].sort((a, b) => Number(a === props.selected) - Number(b === props.selected));
  return (
    <svg class="lines" width={GUTTER} height="100%" aria-hidden="true">
      {order.map((index) => {
        const [from, to] = [leftPlaces.get(index), rightPlaces.get(index)];
        if (from === undefined || to === undefined) return null;
        const [a, b] = [y(from), y(to)];
        const tone = index === props.selected ? "chosen" : to < from ? "up" : to > from ? "down" : "same";
        // The best results stand out; the hundreds below would otherwise hide them.
        const strength = tone === "chosen" ? 1 : Math.max(0.18, 0.9 - 0.12 * to);
        return (
          <path
            key={index}
            class={tone}
            opacity={strength}
            d={`M0 ${a} C ${GUTTER / 2} ${a}, ${GUTTER / 2} ${b}, ${GUTTER} ${b}`}
          />
        );
      })}
    </svg>
  );
}

function Row(props: { place: number; result: Result; plain: boolean; memory: Memory | undefined }) {
  const { result, memory } = props;
  const text = (memory?.text ?? result.text ?? "").slice(0, SHOWN_CHARACTERS);
  const dates = memory ? describeDates(memory, memory.occurred_end ? 7 : 10) : "";
  return (
    <div class={`result ${result.stale && !props.plain ? "stale" : ""}`}>
      <span class="place">{props.place}</span>
      <div class="body">
        <p class="text" dir="auto">
          {text || <em>empty text</em>}
        </p>
        <div class="meta">
          {!props.plain && <Relevance value={result.relevance} />}
          {!props.plain && <Change value={result.rank_change} />}
          {!props.plain && result.stale && <span class="badge warn">outdated</span>}
          {dates && <span class="date">{dates}</span>}
          {props.plain && memory?.first_stage_score !== undefined && (
            <span class="date">score {memory.first_stage_score.toPrecision(3)}</span>
          )}
        </div>
      </div>
    </div>
  );
}

export function Relevance(props: { value: number | null }) {
  if (props.value === null) return <span class="date">not scored</span>;
  return (
    <span class="relevance" title="Relevance: the probability that this memory answers the query">
      <span class="bar">
        <span style={{ width: `${100 * props.value}%` }} />
      </span>
      {percent(props.value, props.value < 0.01 ? 1 : 0)}
    </span>
  );
}

function Change(props: { value: number }) {
  if (props.value === 0) return null;
  const isUp = props.value > 0;
  return (
    <span class={`change ${isUp ? "up" : "down"}`} title={`${Math.abs(props.value)} places ${isUp ? "up" : "down"}`}>
      {isUp ? "▲" : "▼"} {Math.abs(props.value)}
    </span>
  );
}
