/** Versions side by side, the gate's decision on each, and the buttons that put one in service. */

import { useState } from "preact/hooks";

import { post } from "./api";
import type { Decision, GateCheck, HistoryEntry, LearningStatus, Measured } from "./types";
import { Card, Confirm, Field, ago, bytes, count } from "./ui";

interface Row {
  name: string;
  created: number | null;
  examples: number | null;
  measured: Measured | null;
  decision: (Decision & { compared_with: string }) | null;
}

const SETS = ["feedback", "dated", "general"];

/** Collect what the history says about each version; later entries replace earlier ones. */
function collect(status: LearningStatus, history: HistoryEntry[]): Row[] {
  const rows = new Map<string, Row>();
  for (const name of status.versions) rows.set(name, { name, created: null, examples: null, measured: null, decision: null });
  for (const entry of history) {
    const row = rows.get(entry.version);
    const facts = entry.facts ?? {};
    if (entry.action === "add" && row) {
      row.created = entry.time;
      row.examples = facts.examples ?? null;
    }
    if (entry.action === "evaluate") {
      const reference = rows.get(facts.compared_with ?? "");
      if (reference && facts.current) reference.measured = facts.current;
      if (row && facts.candidate) row.measured = facts.candidate;
      if (row && facts.checks)
        row.decision = {
          promote: facts.promote ?? false,
          attempt: facts.attempt ?? 1,
          checks: facts.checks,
          compared_with: facts.compared_with ?? "",
        };
    }
  }
  return [...rows.values()].reverse();
}

interface Props {
  status: LearningStatus;
  history: HistoryEntry[];
  onChange: () => Promise<void>;
}

export function Versions({ status, history, onChange }: Props) {
  const rows = collect(status, history);
  const [asked, setAsked] = useState<{ action: "promote" | "rollback"; row: Row } | null>(null);
  const [opened, setOpened] = useState<string | null>(null);
  const [why, setWhy] = useState("");
  const [isForced, setForced] = useState(false);
  const shown = rows.find((row) => row.name === opened) ?? rows.find((row) => row.decision);
  const wasServed = new Set(history.filter((e) => ["promote", "rollback"].includes(e.action)).map((e) => e.version));
  const ask = (action: "promote" | "rollback", row: Row) => {
    setWhy("");
    setForced(false);
    setAsked({ action, row });
  };
  const confirm = async () => {
    if (!asked) return;
    const body = { version: asked.row.name, why, ...(asked.action === "promote" && { force: isForced }) };
    await post(`v1/learning/${asked.action}`, body);
    await onChange();
  };
  const hasPassed = asked?.row.decision?.promote === true && asked.row.decision.compared_with === status.current;
  return (
    <>
      <Card title="Versions">
        <div class="table-frame" tabIndex={0} role="region" aria-label="Versions">
          <table class="table">
            <thead>
              <tr>
                <th scope="col">Version</th>
                <th scope="col">Examples</th>
                {SETS.map((set) => (
                  <th key={set} scope="col" class="number">
                    MAP {set}
                  </th>
                ))}
                <th scope="col" class="number">
                  ECE
                </th>
                <th scope="col" class="number">
                  ms/pair
                </th>
                <th scope="col" class="number">
                  Size
                </th>
                <th scope="col">Gate</th>
                <th scope="col">
                  <span class="sr-only">Actions</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => {
                const isCurrent = row.name === status.current;
                return (
                  <tr key={row.name} class={isCurrent ? "current" : ""}>
                    <th scope="row">
                      {row.name} {isCurrent && <span class="badge accent">in service</span>}
                      <span class="sub">{row.created !== null && ago(row.created)}</span>
                    </th>
                    <td>{row.examples === null ? "–" : count(row.examples)}</td>
                    {SETS.map((set) => (
                      <td key={set} class="number">
                        {row.measured?.sets[set]?.queries ? (row.measured.sets[set]?.map ?? 0).toFixed(3) : "–"}
                      </td>
                    ))}
                    <td class="number">{row.measured?.ece.toFixed(3) ?? "–"}</td>
                    <td class="number">{row.measured ? (1000 * row.measured.seconds_per_pair).toFixed(1) : "–"}</td>
                    <td class="number">{row.measured ? bytes(row.measured.size_bytes) : "–"}</td>
                    <td>
                      {row.decision ? (
                        <button
                          type="button"
                          class={`badge ${row.decision.promote ? "good" : "bad"}`}
                          aria-pressed={shown?.name === row.name}
                          onClick={() => setOpened(row.name)}
                        >
                          {row.decision.promote ? "passed" : "not passed"}
                        </button>
                      ) : (
                        <span class="muted">–</span>
                      )}
                    </td>
                    <td class="actions">
                      {!isCurrent && !wasServed.has(row.name) && (
                        <button type="button" class="small-button" onClick={() => ask("promote", row)} aria-label={`Promote ${row.name}`}>
                          Promote
                        </button>
                      )}
                      {!isCurrent && wasServed.has(row.name) && (
                        <button type="button" class="small-button" onClick={() => ask("rollback", row)} aria-label={`Roll back to ${row.name}`}>
                          Roll back
                        </button>
                      )}
                    </td>
                  </tr>
                );
              })}
            </tbody>
          </table>
        </div>
      </Card>
      {shown?.decision && <Gate name={shown.name} decision={shown.decision} />}
      {asked && (
        <Confirm
          title={asked.action === "promote" ? `Promote ${asked.row.name}?` : `Roll back to ${asked.row.name}?`}
          action={asked.action === "promote" ? "Promote" : "Roll back"}
          danger={asked.action === "promote" && !hasPassed}
          onClose={() => setAsked(null)}
          onConfirm={confirm}
        >
          <p>
            The server replaces version {status.current} by {asked.row.name} within a second or two. Requests in progress finish on the old one.
          </p>
          {asked.action === "promote" && !hasPassed && (
            <label class="check">
              <input type="checkbox" checked={isForced} onChange={(event) => setForced(event.currentTarget.checked)} />
              Promote it although it did not pass the gate against {status.current}
            </label>
          )}
          <Field label="Why" hint="Recorded in the history">
            {(id) => <input id={id} value={why} onInput={(event) => setWhy(event.currentTarget.value)} />}
          </Field>
        </Confirm>
      )}
    </>
  );
}

function Gate({ name, decision }: { name: string; decision: Decision & { compared_with: string } }) {
  return (
    <Card
      title={`Gate: ${name} against ${decision.compared_with}`}
      aside={<span class={`badge ${decision.promote ? "good" : "bad"}`}>{decision.promote ? "passed" : "not passed"}</span>}
    >
      <ul class="checks">
        {decision.checks.map((check) => (
          <li key={check.name}>
            <span class={`mark ${check.passed ? "good" : "bad"}`} role="img" aria-label={check.passed ? "passed" : "failed"}>
              {check.passed ? "✓" : "✕"}
            </span>
            <span>{check.reason}</span>
            <Interval check={check} />
          </li>
        ))}
      </ul>
    </Card>
  );
}

/** The confidence interval of the difference, with zero in the middle. */
function Interval({ check }: { check: GateCheck }) {
  const { low, high, current, candidate } = check;
  if (low === null || low === undefined || high === null || high === undefined || current === null || candidate === null) return null;
  const reach = Math.max(Math.abs(low), Math.abs(high), 0.001) * 1.1;
  const x = (value: number) => 80 + (76 * value) / reach;
  const signed = (value: number) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
  return (
    <span class="interval">
      <svg width="160" height="18" aria-hidden="true">
        <line class="zero" x1="80" x2="80" y1="0" y2="18" />
        <line class={low > 0 ? "good" : high < 0 ? "bad" : ""} x1={x(low)} x2={x(high)} y1="9" y2="9" />
        <circle cx={x(candidate - current)} cy="9" r="4.5" />
      </svg>
      <span class="small muted">
        {signed(low)} to {signed(high)}
      </span>
    </span>
  );
}
