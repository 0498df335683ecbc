/** One result: its text with the passage that matched, what replaces it, and what each stage added to its score. */

import { useState } from "preact/hooks";

import { describeDates } from "./dates";
import type { Memory, Result } from "./types";
import { percent } from "./ui";

const LABELS: Record<string, string> = {
  model: "Model",
  rescoring: "Passage re-scoring",
  first_stage: "First stage",
  entity_links: "Entity links",
  same_day: "Same day",
  query_dates: "Dates in the query",
  recency: "Recency",
  temporal: "Time range",
  proof: "Proof",
  trust: "Trust",
};
/** These multiply the score; all others add log-odds. */
const MULTIPLIERS = ["recency", "temporal", "proof", "trust"];
const REASONS = {
  stated: "one of the two memories says so",
  key: "both have the same key, and the other is newer",
  similar: "the model judges that the newer one replaces it",
};
const SHOWN_CHARACTERS = 4000;

interface Props {
  result: Result;
  memory: Memory | undefined;
  of: number;
  replacedBy: Result | undefined;
  asOf: string;
  onSelect: (index: number) => void;
}

export function Detail(props: Props) {
  const { result, memory } = props;
  const text = memory?.text ?? result.text ?? "";
  const facts: [string, string][] = [
    ["Id", result.id ?? ""],
    ["Date", memory ? describeDates(memory) : ""],
    ["Type", memory?.type ?? ""],
    ["Context", typeof memory?.context === "string" ? memory.context : ""],
    ["Entities", memory?.entities?.join(", ") ?? ""],
  ];
  return (
    <div class="detail">
      <div class="detail-head">
        <span class="big">#{result.rank}</span>
        <span class="muted">
          of {props.of}
          {result.rank_change !== 0 && `, was #${result.rank + result.rank_change}`}
        </span>
      </div>
      <Passage key={result.index} text={text} passage={result.passage ?? null} />
      {result.stale && (
        <div class="notice warn">
          Outdated: {result.stale_because ? REASONS[result.stale_because] : "a newer memory replaces it"}.{" "}
          {props.replacedBy && (
            <button type="button" class="link" onClick={() => props.replacedBy && props.onSelect(props.replacedBy.index)}>
              Show #{props.replacedBy.rank}, which replaces it
            </button>
          )}
        </div>
      )}
      <h3>Why it is here</h3>
      <Waterfall result={result} move={moveOf(props)} />
      <dl class="facts">
        {facts
          .filter(([, value]) => value)
          .map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd dir="auto">{value.slice(0, 400)}</dd>
            </div>
          ))}
      </dl>
    </div>
  );
}

function Passage(props: { text: string; passage: string | null }) {
  const [isWhole, setWhole] = useState(false);
  const start = props.passage ? props.text.indexOf(props.passage) : -1;
  const end = start < 0 ? 0 : start + (props.passage?.length ?? 0);
  const isLong = props.text.length > SHOWN_CHARACTERS;
  // Of a long text, show the surroundings of the passage.
  const from = isWhole || !isLong || start < 0 ? 0 : Math.max(0, start - 400);
  const to = isWhole || !isLong ? props.text.length : Math.max(from + SHOWN_CHARACTERS, end);
  return (
    <div class="passage">
      <p dir="auto" tabIndex={isLong ? 0 : undefined}>
        {from > 0 && "…"}
        {start < 0 ? (
          props.text.slice(from, to)
        ) : (
          <>
            {props.text.slice(from, start)}
            <mark>{props.text.slice(start, end)}</mark>
            {props.text.slice(end, to)}
          </>
        )}
        {to < props.text.length && "…"}
      </p>
      {isLong && !isWhole && (
        <button type="button" class="link" onClick={() => setWhole(true)}>
          Show all {props.text.length.toLocaleString("en-US")} characters
        </button>
      )}
    </div>
  );
}

/** Why a result is not where its score would put it. */
function moveOf({ result, memory, asOf }: Props): string {
  if (result.stale) return "Moved below its successor";
  const start = memory?.occurred_start ?? memory?.mentioned_at;
  if (asOf && start && start.slice(0, asOf.length) > asOf) return `Not yet known on ${asOf}`;
  return "Adjusted to its place";
}

function Waterfall(props: { result: Result; move: string }) {
  const { factors, relevance, score } = props.result;
  if (relevance === null || score === null) return <p class="muted">The model did not score this memory.</p>;
  if (!factors || Object.keys(factors).length === 0) return null;
  const added = Object.entries(factors).filter(([name]) => !MULTIPLIERS.includes(name));
  const steps: { name: string; from: number; to: number }[] = [];
  let sum = 0;
  for (const [name, value] of added) {
    if (name !== "model" && Math.abs(value) < 0.005) continue;
    steps.push({ name, from: sum, to: sum + value });
    sum += value;
  }
  const multiplied = Object.entries(factors).filter(
    ([name, value]) => MULTIPLIERS.includes(name) && Math.abs(value - 1) > 0.0005,
  );
  const edges = [0, ...steps.flatMap((step) => [step.from, step.to])];
  const [low, high] = [Math.min(...edges), Math.max(...edges)];
  const at = (value: number) => (100 * (value - low)) / Math.max(high - low, 1e-9);
  const before = 1 / (1 + Math.exp(-sum));
  const expected = multiplied.reduce((product, [, value]) => product * value, before);
  const isMoved = Math.abs(expected - score) > 0.005;
  return (
    <table class="waterfall">
      <caption class="sr-only">What each stage added, in log-odds</caption>
      <tbody>
        {steps.map((step) => (
          <tr key={step.name}>
            <th scope="row">{LABELS[step.name] ?? step.name}</th>
            <td class="track">
              <span class="zero" style={{ left: `${at(0)}%` }} />
              <span
                class={step.to >= step.from ? "gain" : "loss"}
                style={{
                  left: `${at(Math.min(step.from, step.to))}%`,
                  width: `${Math.max(1, Math.abs(at(step.to) - at(step.from)))}%`,
                }}
              />
            </td>
            <td class="number">{signed(step.to - step.from)}</td>
          </tr>
        ))}
        {multiplied.map(([name, value]) => (
          <tr key={name}>
            <th scope="row">{LABELS[name] ?? name}</th>
            <td />
            <td class="number">×{value.toFixed(2)}</td>
          </tr>
        ))}
        {isMoved && (
          <tr>
            <th scope="row" colSpan={2}>
              {props.move}
            </th>
            <td class="number">{signed(score - expected)}</td>
          </tr>
        )}
        <tr class="sum">
          <th scope="row" colSpan={2}>
            Score
          </th>
          <td class="number">{score.toFixed(3)}</td>
        </tr>
        <tr>
          <th scope="row" colSpan={2}>
            Relevance, by the model alone
          </th>
          <td class="number">{percent(relevance, 1)}</td>
        </tr>
      </tbody>
    </table>
  );
}

const signed = (value: number): string => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
