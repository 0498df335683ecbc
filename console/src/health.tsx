/** Health: the server's own metrics of the last hour. */

import { useMemo, useState } from "preact/hooks";

import { get, messageOf } from "./api";
import { Chart } from "./chart";
import type { Health as Report, HealthPoint, Session } from "./types";
import { Card, Empty, Notice, Tile, ago, bytes, count, percent, usePolling } from "./ui";

const POLL_MS = 5000;

const milliseconds = (seconds: number): string =>
  seconds >= 1 ? `${seconds.toFixed(seconds < 10 ? 1 : 0)} s` : `${Math.round(1000 * seconds)} ms`;
const perMinute = (value: number): string => `${count(value < 10 ? value : Math.round(value))}/min`;
const rate = (name: "requests" | "pairs") => (point: HealthPoint) => (point.seconds > 0 ? (60 * point[name]) / point.seconds : 0);
const share = (part: number, whole: number): number | null => (whole > 0 ? part / whole : null);

export function Health({ session }: { session: Session }) {
  const [report, setReport] = useState<Report | null>(null);
  const [problem, setProblem] = useState("");
  usePolling(
    async () => {
      try {
        setReport(await get<Report>("v1/console/health"));
        setProblem("");
      } catch (error) {
        setProblem(messageOf(error));
      }
    },
    POLL_MS,
    [session.caller],
  );
  const columns = useMemo(() => {
    const points = report?.points ?? [];
    const series = <T,>(read: (point: HealthPoint) => T) => points.map(read);
    return {
      x: series((point) => point.time),
      requests: series(rate("requests")),
      pairs: series(rate("pairs")),
      p50: series((point) => point.p50),
      p95: series((point) => point.p95),
      p99: series((point) => point.p99),
      queue: series((point) => point.queue),
      active: series((point) => point.active),
      degraded: series((point) => share(point.degraded, point.requests)),
      failed: series((point) => share(point.failures, point.requests)),
      cached: series((point) => share(point.cached_pairs, point.pairs + point.cached_pairs)),
    };
  }, [report]);

  if (problem && !report) return <Notice kind="bad">{problem}</Notice>;
  if (!report) return null;
  const { total, prepared } = report;
  const cached = share(total.cached_pairs, total.pairs + total.cached_pairs);
  const degraded = share(total.degraded, total.requests);
  const minutes = Math.max(1, Math.round(total.seconds / 60));
  const time = (value: number | null) => (value === null ? "–" : milliseconds(value));
  return (
    <div class="stack">
      {problem && <Notice kind="bad">{problem}</Notice>}
      <div class="tiles">
        <Tile label="Requests" value={count(total.requests)} note={`in the last ${minutes} min`} />
        <Tile label="Median latency" value={time(total.p50)} note={`95%: ${time(total.p95)}`} />
        <Tile label="Pairs scored" value={count(total.pairs)} note={perMinute(rate("pairs")(total))} />
        <Tile
          label="Degraded"
          value={percent(degraded, 1)}
          note={`${count(total.degraded)} rankings`}
          tone={degraded && degraded > 0.01 ? "warn" : ""}
        />
        <Tile
          label="Failed"
          value={percent(share(total.failures, total.requests), 1)}
          note={`${count(total.failures)} requests`}
          tone={total.failures ? "bad" : ""}
        />
        <Tile
          label="Cache hits"
          value={report.has_score_cache ? percent(cached, 0) : "off"}
          note={report.has_score_cache ? `${count(total.cached_pairs)} pairs` : "start with --score-cache"}
        />
        <Tile
          label="Prepared states"
          value={prepared ? count(prepared.states) : "–"}
          note={prepared ? `${bytes(prepared.bytes)} of ${bytes(prepared.max_bytes)}` : "not a split model"}
        />
      </div>
      {total.requests === 0 && (
        <Card>
          <Empty title="No ranking in the last hour">Requests appear here a few seconds after they were answered.</Empty>
        </Card>
      )}
      <div class="charts">
        <Card title="Throughput">
          <Chart
            label="Requests per minute"
            x={columns.x}
            series={[{ label: "Requests", values: columns.requests, color: "accent", format: perMinute, fill: true }]}
          />
        </Card>
        <Card title="Latency">
          <Chart
            label="Latency percentiles"
            x={columns.x}
            series={[
              { label: "50%", values: columns.p50, color: "accent", format: milliseconds },
              { label: "95%", values: columns.p95, color: "warn", format: milliseconds },
              { label: "99%", values: columns.p99, color: "bad", format: milliseconds },
            ]}
          />
        </Card>
        <Card title="Model work">
          <Chart
            label="Pairs per minute"
            x={columns.x}
            series={[{ label: "Pairs scored", values: columns.pairs, color: "good", format: perMinute, fill: true }]}
          />
        </Card>
        <Card title="Queue">
          <Chart
            label="Waiting pairs and active requests"
            x={columns.x}
            series={[
              { label: "Waiting pairs", values: columns.queue, color: "accent", format: count },
              { label: "Active requests", values: columns.active, color: "muted", format: count },
            ]}
          />
        </Card>
        <Card title="Degraded and failed">
          <Chart
            label="Share of degraded and failed requests"
            x={columns.x}
            max={1}
            series={[
              { label: "Degraded", values: columns.degraded, color: "warn", format: (value) => percent(value) },
              { label: "Failed", values: columns.failed, color: "bad", format: (value) => percent(value) },
            ]}
          />
        </Card>
        <Card title="Score cache">
          {report.has_score_cache ? (
            <Chart
              label="Share of pairs answered from the cache"
              x={columns.x}
              max={1}
              series={[{ label: "Hits", values: columns.cached, color: "good", format: (value) => percent(value), fill: true }]}
            />
          ) : (
            <Empty title="No cache">Start the server with --score-cache to keep scores of repeated queries.</Empty>
          )}
        </Card>
      </div>
      <p class="muted small">
        {report.model}
        {report.loaded_at && `, loaded ${ago(report.loaded_at)}`}. Sampled every {report.interval_seconds} s.
      </p>
    </div>
  );
}
