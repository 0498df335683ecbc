/** Learning: what the feedback says, what was mined from it, training runs, the gate, and the versions in service. */

import { useCallback, useState } from "preact/hooks";

import { get, messageOf, post } from "./api";
import { Chart } from "./chart";
import { Examples, NoHits, Unused } from "./reports";
import { Runs } from "./runs";
import type { Day, HistoryEntry, LearningStatus, Run, Session } from "./types";
import { Card, Confirm, Empty, Notice, Tile, ago, count, usePolling } from "./ui";
import { Versions } from "./versions";

const POLL_MS = 4000;
const DAYS = 30;
const DAY_SECONDS = 86_400;

interface Data {
  status: LearningStatus;
  runs: Run[];
  history: HistoryEntry[];
  days: Day[];
}

export function Learning({ session, onChange }: { session: Session; onChange: () => Promise<void> }) {
  const [data, setData] = useState<Data | null>(null);
  const [problem, setProblem] = useState("");
  const [message, setMessage] = useState("");
  const [isTraining, setTraining] = useState(false);
  const isAllowed = session.scopes.includes("admin") && session.tenant === null;

  const refresh = useCallback(async () => {
    if (!session.has_learning || !isAllowed) return;
    try {
      const [status, { runs }, { entries }, { days }] = await Promise.all([
        get<LearningStatus>("v1/learning/status"),
        get<{ runs: Run[] }>("v1/learning/runs"),
        get<{ entries: HistoryEntry[] }>("v1/learning/history"),
        get<{ days: Day[] }>(`v1/learning/reports/daily?days=${DAYS}`),
      ]);
      setData({ status, runs, history: entries, days });
      setProblem("");
    } catch (error) {
      setProblem(messageOf(error));
    }
  }, [session.caller]);
  usePolling(refresh, POLL_MS, [session.caller]);

  if (!session.has_learning)
    return (
      <Card class="narrow-card">
        <Empty title="This server does not learn">
          Start it with <code>mnemorank serve --learning FOLDER</code> to collect feedback, train on it and promote better models.
        </Empty>
      </Card>
    );
  if (!isAllowed)
    return (
      <Card class="narrow-card">
        <Empty title="Learning needs an admin key">Your key “{session.caller}” has the scopes {session.scopes.join(", ")}.</Empty>
      </Card>
    );
  if (!data) return problem ? <Notice kind="bad">{problem}</Notice> : null;

  const mine = async () => {
    try {
      const mined = await post<{ examples: number }>("v1/learning/mine", {});
      setMessage(`${count(mined.examples)} examples mined.`);
      await refresh();
    } catch (error) {
      setProblem(messageOf(error));
    }
  };
  const { status, history } = data;
  const last = history[history.length - 1];
  return (
    <div class="stack">
      {problem && <Notice kind="bad">{problem}</Notice>}
      {message && <Notice kind="good">{message}</Notice>}
      {!status.stores_texts && (
        <Notice kind="warn">
          The store keeps no texts, so nothing can be mined. Set <code>privacy.texts = true</code> in learning.toml to change that.
        </Notice>
      )}
      <div class="tiles">
        <Tile label="In service" value={status.current ?? "–"} note={status.previous ? `before: ${status.previous}` : "first version"} />
        <Tile label="Queries" value={count(status.events)} note={`and ${count(status.test_events)} of test traffic`} />
        <Tile label="Signals" value={count(status.signals)} note="of people and agents" />
        <Tile label="Examples" value={count(status.examples.train ?? 0)} note={`and ${count(status.examples["held-out"] ?? 0)} held out`} />
        <Tile label="New examples" value={count(status.untrained_examples)} note="not trained on yet" />
      </div>
      <div class="row wrap">
        <button type="button" onClick={mine}>
          Mine examples
        </button>
        <button type="button" onClick={() => setTraining(true)} disabled={status.run?.state === "running"}>
          Train a candidate
        </button>
        {last && (
          <span class="muted small">
            Last: {last.action} {last.version}
            {last.who && ` by ${last.who}`}, {ago(last.time)}
          </span>
        )}
      </div>
      <Activity days={data.days} />
      <Versions status={status} history={history} onChange={async () => void (await Promise.all([refresh(), onChange()]))} />
      <Runs runs={data.runs} onChange={refresh} />
      <div class="charts">
        <NoHits />
        <Unused />
      </div>
      <Examples key={`${status.examples.train}-${status.examples["held-out"]}`} />
      {isTraining && (
        <Confirm
          title="Train a candidate?"
          action="Start training"
          onClose={() => setTraining(false)}
          onConfirm={async () => {
            await post("v1/learning/train", { promote: false });
            await refresh();
          }}
        >
          <p>
            A separate process trains on {count(status.examples.train ?? 0)} examples, starting from version {status.current}. The gate then
            compares the candidate with the version in service. Nothing is promoted by itself.
          </p>
        </Confirm>
      )}
    </div>
  );
}

function Activity({ days }: { days: Day[] }) {
  const byDay = new Map(days.map((day) => [day.day, day]));
  const end = Math.floor(Date.now() / 1000 / DAY_SECONDS);
  const numbers = Array.from({ length: DAYS }, (_, place) => end - DAYS + 1 + place);
  const rows = numbers.map((day) => byDay.get(new Date(day * DAY_SECONDS * 1000).toISOString().slice(0, 10)));
  const signals = (day: Day | undefined) => Object.values(day?.signals ?? {}).reduce((sum, value) => sum + value, 0);
  const format = (value: number) => (Number.isInteger(value) ? count(value) : "");
  return (
    <Card title="Feedback" aside={<span class="muted small">last {DAYS} days</span>}>
      <Chart
        label="Queries and signals by day"
        x={numbers}
        formatX={(day) => (Number.isInteger(day) ? new Date(day * DAY_SECONDS * 1000).toISOString().slice(5, 10) : "")}
        series={[
          { label: "Queries", values: rows.map((day) => day?.events ?? 0), color: "soft", format, bars: true },
          { label: "Signals", values: rows.map(signals), color: "accent", format },
          { label: "Without an answer", values: rows.map((day) => day?.abstained ?? 0), color: "warn", format },
        ]}
      />
    </Card>
  );
}
