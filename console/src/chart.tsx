/** A line or bar chart over time, drawn by uPlot, with a legend that follows the cursor. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";

export interface Series {
  label: string;
  values: (number | null)[];
  color: "accent" | "good" | "warn" | "bad" | "muted" | "soft";
  format: (value: number) => string;
  bars?: boolean;
  fill?: boolean;
}

interface Props {
  label: string;
  x: number[];
  series: Series[];
  height?: number;
  /** Labels of the x axis; seconds since 1970 by default. */
  formatX?: (value: number) => string;
  max?: number;
}

/** The time of day of seconds since 1970. */
const clock = (seconds: number): string => new Date(1000 * seconds).toTimeString().slice(0, 5);

/** Resolve a color of the style sheet for the canvas. */
function colorOf(name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

export function Chart(props: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const [theme, setTheme] = useState(0);
  // The axes are drawn long after the chart was made, with the labels of the latest data.
  const labelX = useRef(props.formatX);
  labelX.current = props.formatX;
  const shape = props.series.map((series) => `${series.label}${series.color}`).join("|");

  useEffect(() => {
    const onTheme = () => setTheme((old) => old + 1);
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", onTheme);
    window.addEventListener("themechange", onTheme);
    return () => {
      media.removeEventListener("change", onTheme);
      window.removeEventListener("themechange", onTheme);
    };
  }, []);

  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    const [muted, line] = [colorOf("muted"), colorOf("line")];
    const axis = { stroke: muted, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "12px Inter, system-ui, sans-serif", gap: 6 };
    const isTime = !props.formatX;
    const hasBars = props.series.some((series) => series.bars);
    const format = props.series[0]?.format ?? String;
    const chart = new uPlot(
      {
        width: element.clientWidth || 300,
        height: props.height ?? 170,
        legend: { show: false },
        padding: [8, 8, 0, 0],
        cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
        scales: {
          // Bars are drawn around their place, so that those at the edges need room.
          x: { time: isTime, ...(hasBars && { range: (_, low, high) => [low - 0.5, high + 0.5] }) },
          y: { range: (_, __, high) => [0, props.max ?? Math.max(high * 1.1, 1e-6)] },
        },
        axes: [
          { ...axis, size: 30, grid: { show: false }, values: (_, ticks) => ticks.map(labelX.current ?? clock) },
          { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => format(tick)) },
        ],
        series: [
          {},
          ...props.series.map((series) => {
            const stroke = colorOf(series.color);
            const soft = stroke.replace("rgb(", "rgba(").replace(")", ", 0.14)");
            return {
              label: series.label,
              stroke,
              width: series.bars ? 0 : 2,
              ...(series.bars && { paths: uPlot.paths.bars?.({ size: [0.7, 40], radius: 0.2 }), fill: stroke }),
              ...(series.fill && { fill: soft }),
              points: { show: (self, place) => !series.bars && (self.data[place] ?? []).filter((value) => value !== null).length < 3 },
              spanGaps: true,
            } as uPlot.Series;
          }),
        ],
        hooks: { setCursor: [(self) => setAt(self.cursor.idx ?? null)] },
      },
      [props.x, ...props.series.map((series) => series.values)],
      element,
    );
    plot.current = chart;
    const observer = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: props.height ?? 170 }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      chart.destroy();
    };
  }, [shape, theme, props.height]);

  const data = useMemo(() => [props.x, ...props.series.map((series) => series.values)] as uPlot.AlignedData, [props.x, props.series]);
  useEffect(() => plot.current?.setData(data), [data]);

  const latest = (series: Series): string => {
    const index = at ?? series.values.findLastIndex((value) => value !== null);
    const value = series.values[index];
    return value === null || value === undefined ? "–" : series.format(value);
  };
  return (
    <figure class="chart">
      <figcaption class="legend">
        {props.series.map((series) => (
          <span key={series.label}>
            <i class={series.color} />
            {series.label} <b>{latest(series)}</b>
          </span>
        ))}
      </figcaption>
      <div ref={frame} role="img" aria-label={`${props.label}. ${props.series.map((s) => `${s.label}: ${latest(s)}`).join(", ")}`} />
    </figure>
  );
}
