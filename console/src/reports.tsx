/** Reports: queries without a hit, memories that are never used, and mined examples with their provenance. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

import { get, messageOf } from "./api";
import type { MinedExample } from "./types";
import { Card, Empty, Field, Notice, ago, count } from "./ui";

const SHOWN = 50;

/** Load something when a view opens, and again when the path changes. */
function useReport<T>(path: string): { data: T | null; problem: string } {
  const [data, setData] = useState<T | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let isCurrent = true;
    get<T>(path)
      .then((loaded) => isCurrent && (setData(loaded), setProblem("")))
      .catch((error: unknown) => isCurrent && setProblem(messageOf(error)));
    return () => {
      isCurrent = false;
    };
  }, [path]);
  return { data, problem };
}

function MinCount(props: { label: string; value: number; onChange: (value: number) => void }) {
  return (
    <Field label={props.label}>
      {(id) => (
        <input
          id={id}
          class="tiny"
          type="number"
          min={1}
          value={props.value}
          onChange={(event) => props.onChange(Math.max(1, event.currentTarget.valueAsNumber || 1))}
        />
      )}
    </Field>
  );
}

function ReportTable(props: { label: string; head: string[]; rows: ComponentChildren[][]; total: number }) {
  return (
    <>
      <div class="table-frame tall" tabIndex={0} role="region" aria-label={props.label}>
        <table class="table">
          <thead>
            <tr>
              {props.head.map((name, place) => (
                <th key={name} scope="col" class={place ? "number" : ""}>
                  {name}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {props.rows.map((row, number) => (
              <tr key={number}>
                {row.map((cell, place) => (
                  <td key={place} class={place ? "number" : "wide"} dir={place ? undefined : "auto"}>
                    {cell}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {props.total > props.rows.length && (
        <p class="muted small">
          The first {props.rows.length} of {count(props.total)}.
        </p>
      )}
    </>
  );
}

interface Unanswered {
  query: string;
  asked: number;
  abstained: number;
  unhelpful: number;
}

export function NoHits() {
  const [least, setLeast] = useState(1);
  const { data, problem } = useReport<{ queries: Unanswered[] }>(`v1/learning/reports/no-hits?min_count=${least}`);
  return (
    <Card title="Queries without a hit" aside={<MinCount label="asked at least" value={least} onChange={setLeast} />}>
      {problem && <Notice kind="bad">{problem}</Notice>}
      {data?.queries.length === 0 && <Empty title="None">Every query had a useful result, or there is no feedback yet.</Empty>}
      {data && data.queries.length > 0 && (
        <ReportTable
          label="Queries without a hit"
          head={["Query", "Asked", "Abstained", "Unhelpful"]}
          total={data.queries.length}
          rows={data.queries.slice(0, SHOWN).map((entry) => [entry.query.slice(0, 300), entry.asked, entry.abstained, entry.unhelpful])}
        />
      )}
    </Card>
  );
}

interface UnusedMemory {
  memory_id: string | null;
  text: string | null;
  text_hash: string;
  shown: number;
  mean_rank: number;
  last_shown: number;
}

export function Unused() {
  const [least, setLeast] = useState(10);
  const { data, problem } = useReport<{ memories: UnusedMemory[] }>(`v1/learning/reports/unused?min_count=${least}`);
  return (
    <Card title="Shown often, never used" aside={<MinCount label="shown at least" value={least} onChange={setLeast} />}>
      {problem && <Notice kind="bad">{problem}</Notice>}
      {data?.memories.length === 0 && <Empty title="None">No memory was shown that often without being used.</Empty>}
      {data && data.memories.length > 0 && (
        <ReportTable
          label="Memories shown often and never used"
          head={["Memory", "Shown", "Mean rank", "Last"]}
          total={data.memories.length}
          rows={data.memories
            .slice(0, SHOWN)
            .map((memory) => [
              (memory.text ?? memory.memory_id ?? memory.text_hash).slice(0, 300),
              memory.shown,
              memory.mean_rank.toFixed(1),
              ago(memory.last_shown),
            ])}
        />
      )}
    </Card>
  );
}

interface LabelProvenance {
  label: number;
  weight: number;
  votes: Record<string, number>;
}

export function Examples() {
  const { data, problem } = useReport<{ count: number; examples: MinedExample[] }>("v1/learning/examples?limit=50");
  return (
    <Card title="Mined examples" aside={data && <span class="muted small">{count(data.count)} in all</span>}>
      {problem && <Notice kind="bad">{problem}</Notice>}
      {data?.count === 0 && <Empty title="Nothing mined yet">Examples are mined from feedback on queries whose texts are stored.</Empty>}
      <div class="examples">
        {data?.examples.map((example) => (
          <Example key={example.id} example={example} />
        ))}
      </div>
    </Card>
  );
}

function Example({ example }: { example: MinedExample }) {
  const { provenance } = example;
  const labels = (provenance.labels ?? []) as LabelProvenance[];
  const events = Array.isArray(provenance.events) ? provenance.events.length : 0;
  const relevant = example.candidates.filter((candidate) => candidate.label > 0).length;
  return (
    <details>
      <summary>
        <span class="example-query" dir="auto">
          {example.query.slice(0, 300)}
        </span>
        <span class={`badge ${example.split === "train" ? "" : "accent"}`}>{example.split}</span>
        <span class="muted small">
          {relevant} of {example.candidates.length} relevant
        </span>
      </summary>
      <p class="muted small">
        From {events} {events === 1 ? "query" : "queries"} by {String(provenance.actors ?? "–")} users
        {Array.isArray(provenance.models) && `, ranked by ${provenance.models.map((name) => String(name).split("+")[0]).join(", ")}`}.
      </p>
      <ul class="labels">
        {example.candidates.map((candidate, place) => (
          <li key={place}>
            <span class={`mark ${candidate.label > 0 ? "good" : "bad"}`} role="img" aria-label={candidate.label > 0 ? "relevant" : "not relevant"}>
              {candidate.label > 0 ? "✓" : "✕"}
            </span>
            <span dir="auto">{candidate.text.slice(0, 300)}</span>
            <span class="muted small">
              {Object.entries(labels[place]?.votes ?? {})
                .map(([kind, votes]) => `${kind.replace("_", " ")} ×${votes}`)
                .join(", ")}
            </span>
          </li>
        ))}
      </ul>
    </details>
  );
}
