/** Training runs: their state, and loss and dev score while they train. */

import { useState } from "preact/hooks";

import { get, messageOf, post } from "./api";
import { Chart } from "./chart";
import type { CurvePoint, Run } from "./types";
import { Card, Confirm, Empty, Notice, ago, count, usePolling } from "./ui";

const POLL_MS = 2000;
const SHOWN = 8;
const TONES: Record<Run["state"], string> = { waiting: "", running: "accent", done: "good", failed: "bad", canceled: "warn" };

export function Runs({ runs, onChange }: { runs: Run[]; onChange: () => Promise<void> }) {
  const [opened, setOpened] = useState<string | null>(null);
  const [canceled, setCanceled] = useState<string | null>(null);
  const latest = [...runs].reverse();
  const id = opened ?? latest[0]?.id;
  return (
    <Card title="Training runs">
      {latest.length === 0 ? (
        <Empty title="No run yet">Mine examples from feedback, then train a candidate.</Empty>
      ) : (
        <div class="runs">
          <ul class="run-list">
            {latest.slice(0, SHOWN).map((run) => (
              <li key={run.id}>
                <button type="button" aria-pressed={run.id === id} onClick={() => setOpened(run.id)}>
                  <span class="row between">
                    <span class="mono">{run.id}</span>
                    <span class={`badge ${TONES[run.state]}`}>{run.state}</span>
                  </span>
                  <span class="muted small">
                    {count(run.examples)} examples, {ago(run.created)}
                    {run.version && ` → ${run.version}`}
                  </span>
                </button>
              </li>
            ))}
          </ul>
          {id && <RunDetail key={id} id={id} onCancel={() => setCanceled(id)} />}
        </div>
      )}
      {canceled && (
        <Confirm
          title="Cancel this run?"
          action="Cancel the run"
          danger
          onClose={() => setCanceled(null)}
          onConfirm={async () => {
            await post(`v1/learning/runs/${canceled}/cancel`, {});
            await onChange();
          }}
        >
          <p>Its progress is lost. The version in service is not affected.</p>
        </Confirm>
      )}
    </Card>
  );
}

function RunDetail({ id, onCancel }: { id: string; onCancel: () => void }) {
  const [run, setRun] = useState<Run | null>(null);
  const [problem, setProblem] = useState("");
  usePolling(
    async () => {
      try {
        setRun(await get<Run>(`v1/learning/runs/${id}`));
        setProblem("");
      } catch (error) {
        setProblem(messageOf(error));
      }
    },
    POLL_MS,
    [id],
  );
  if (problem) return <Notice kind="bad">{problem}</Notice>;
  if (!run) return null;
  const isActive = run.state === "running" || run.state === "waiting";
  const { progress } = run;
  const curve = uniqueSteps(run.curve ?? []);
  return (
    <div class="stack run-detail">
      {isActive && (
        <div class="judge-bar">
          <progress value={progress?.step ?? 0} max={progress?.steps ?? 1} aria-label="Training progress" />
          <span class="muted small">
            {run.stage || "waiting"}
            {progress?.step !== undefined && ` · step ${progress.step} of ${progress.steps}`}
            {progress?.seconds_left !== undefined && ` · ${Math.ceil(progress.seconds_left)} s left`}
          </span>
          <button type="button" class="small-button" onClick={onCancel}>
            Cancel
          </button>
        </div>
      )}
      {run.error && <Notice kind={run.state === "failed" ? "bad" : "warn"}>{run.error}</Notice>}
      {curve.length > 0 ? (
        <div class="charts">
          <Chart
            label="Training loss by step"
            x={curve.map((_, place) => place)}
            formatX={(place) => String(curve[Math.round(place)]?.step ?? "")}
            series={[{ label: "Loss", values: curve.map((point) => point.loss), color: "accent", format: (value) => value.toFixed(2) }]}
          />
          <Chart
            label="Dev score by step"
            x={curve.map((_, place) => place)}
            formatX={(place) => String(curve[Math.round(place)]?.step ?? "")}
            max={1}
            series={[{ label: "Dev", values: curve.map((point) => point.dev), color: "good", format: (value) => value.toFixed(2) }]}
          />
        </div>
      ) : (
        <p class="muted small">{isActive ? "The curves appear with the first steps." : "This run recorded no curve."}</p>
      )}
      <dl class="facts">
        <div>
          <dt>From</dt>
          <dd>{run.base_version}</dd>
        </div>
        <div>
          <dt>Candidate</dt>
          <dd>
            {run.version ?? "–"} {run.promoted && <span class="badge good">promoted</span>}
          </dd>
        </div>
        <div>
          <dt>Started by</dt>
          <dd>{run.who || "–"}</dd>
        </div>
        {run.finished !== null && (
          <div>
            <dt>Took</dt>
            <dd>{Math.round(run.finished - run.created)} s</dd>
          </div>
        )}
      </dl>
    </div>
  );
}

/** A run that was resumed repeats steps; the last word on each counts. */
function uniqueSteps(curve: CurvePoint[]): CurvePoint[] {
  return [...new Map(curve.map((point) => [`${point.stage} ${point.step}`, point])).values()];
}
