/** Small building blocks of the views. */

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

export function Card(props: { title?: string; aside?: ComponentChildren; class?: string; children: ComponentChildren }) {
  return (
    <section class={`card ${props.class ?? ""}`}>
      {(props.title ?? props.aside) && (
        <header class="card-head">
          {props.title && <h2>{props.title}</h2>}
          {props.aside && <div class="card-aside">{props.aside}</div>}
        </header>
      )}
      {props.children}
    </section>
  );
}

export function Notice(props: { kind: "info" | "warn" | "bad" | "good"; children: ComponentChildren }) {
  return (
    <p class={`notice ${props.kind}`} role={props.kind === "bad" ? "alert" : "status"}>
      {props.children}
    </p>
  );
}

export function Empty(props: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <strong>{props.title}</strong>
      {props.children && <p>{props.children}</p>}
    </div>
  );
}

export function Tile(props: { label: string; value: ComponentChildren; note?: ComponentChildren; tone?: string }) {
  return (
    <div class={`tile ${props.tone ?? ""}`}>
      <span class="tile-label">{props.label}</span>
      <span class="tile-value">{props.value}</span>
      {props.note !== undefined && <span class="tile-note">{props.note}</span>}
    </div>
  );
}

export function Field(props: { label: string; hint?: string; children: (id: string) => ComponentChildren }) {
  const id = useId();
  return (
    <div class="field">
      <label for={id}>
        {props.label}
        {props.hint && <span class="hint">{props.hint}</span>}
      </label>
      {props.children(id)}
    </div>
  );
}

export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => element.current?.showModal(), []);
  return (
    <dialog ref={element} class="dialog" aria-labelledby={id} onClose={props.onClose}>
      <header class="card-head">
        <h2 id={id}>{props.title}</h2>
        <button type="button" class="quiet" aria-label="Close" onClick={() => element.current?.close()}>
          ✕
        </button>
      </header>
      {props.children}
    </dialog>
  );
}

/** A dialog that asks before something is done. */
export function Confirm(props: {
  title: string;
  action: string;
  danger?: boolean;
  children: ComponentChildren;
  onConfirm: () => Promise<void>;
  onClose: () => void;
}) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const confirm = async () => {
    setBusy(true);
    setError("");
    try {
      await props.onConfirm();
      props.onClose();
    } catch (problem) {
      setError(problem instanceof Error ? problem.message : String(problem));
      setBusy(false);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      {props.children}
      {error && <Notice kind="bad">{error}</Notice>}
      <div class="row end">
        <button type="button" onClick={props.onClose}>
          Cancel
        </button>
        <button type="button" class={props.danger ? "danger" : "primary"} disabled={busy} onClick={confirm}>
          {props.action}
        </button>
      </div>
    </Dialog>
  );
}

export function Tabs<T extends string>(props: {
  label: string;
  value: T;
  options: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
}) {
  return (
    <div class="tabs" role="group" aria-label={props.label}>
      {props.options.map(([value, label]) => (
        <button
          type="button"
          key={value}
          aria-pressed={value === props.value}
          class={value === props.value ? "on" : ""}
          onClick={() => props.onChange(value)}
        >
          {label}
        </button>
      ))}
    </div>
  );
}

/** Run a function now and then at an interval while the page is visible. */
export function usePolling(poll: () => Promise<void>, milliseconds: number, dependencies: unknown[]): void {
  useEffect(() => {
    let stopped = false;
    let timer = 0;
    const tick = async () => {
      if (!document.hidden) await poll();
      if (!stopped) timer = window.setTimeout(tick, milliseconds);
    };
    void tick();
    return () => {
      stopped = true;
      window.clearTimeout(timer);
    };
  }, dependencies);
}

export function download(name: string, content: string, type: string): void {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  window.setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export const percent = (share: number | null | undefined, digits = 0): string =>
  share === null || share === undefined ? "–" : `${(100 * share).toFixed(digits)}%`;

export const count = (value: number): string => value.toLocaleString("en-US", { maximumFractionDigits: 1 });

export function ago(seconds: number): string {
  const passed = Date.now() / 1000 - seconds;
  if (passed < 60) return "just now";
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86_400) return `${Math.floor(passed / 3600)} h ago`;
  return new Date(seconds * 1000).toISOString().slice(0, 10);
}

export function bytes(size: number): string {
  const units = ["B", "KB", "MB", "GB"];
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${size < 10 && unit ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}
