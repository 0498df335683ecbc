/** The request as curl, Python or JSON. */

import { useState } from "preact/hooks";

import { Dialog, Tabs } from "./ui";

type Format = "curl" | "python" | "json";

/** A larger pool is read from a file instead of being written into the command. */
const MAX_INLINE = 8000;

export function Snippets(props: { path: string; body: Record<string, unknown>; onClose: () => void }) {
  const [format, setFormat] = useState<Format>("curl");
  const [copied, setCopied] = useState("");
  const text = WRITERS[format](props.path, props.body);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied("Copied");
    } catch {
      setCopied("Select the text and copy it: this page may not use the clipboard");
    }
  };
  return (
    <Dialog title="Copy the request" onClose={props.onClose}>
      <div class="row between">
        <Tabs
          label="Format"
          value={format}
          options={[
            ["curl", "curl"],
            ["python", "Python"],
            ["json", "JSON"],
          ]}
          onChange={(value) => {
            setFormat(value);
            setCopied("");
          }}
        />
        <span class="row">
          <span class="muted small" role="status">
            {copied}
          </span>
          <button type="button" class="primary" onClick={copy}>
            Copy
          </button>
        </span>
      </div>
      <pre class="code" tabIndex={0} aria-label="Request">
        {text}
      </pre>
    </Dialog>
  );
}

const WRITERS: Record<Format, (path: string, body: Record<string, unknown>) => string> = {
  curl: (path, body) => {
    const url = new URL(path, location.href).href;
    const json = JSON.stringify(body);
    const data = json.length > MAX_INLINE ? "@request.json" : `'${json.replaceAll("'", "'\\''")}'`;
    const note = json.length > MAX_INLINE ? "# Save the JSON tab as request.json first.\n" : "";
    return `${note}curl ${url} \\\n  -H 'content-type: application/json' \\\n  -H "authorization: Bearer $MNEMORANK_KEY" \\\n  -d ${data}`;
  },
  python: (path, body) => {
    const { query, memories, options, explain: _, test: __, top_k, now, as_of, candidates } = body;
    const fields = Object.entries((options ?? {}) as Record<string, unknown>);
    const isIndex = path.endsWith("search");
    const lines = [isIndex ? "from mnemorank import MemoryIndex, Options" : "from mnemorank import Options, Reranker"];
    if (fields.length === 0) lines[0] = (lines[0] as string).replace("Options, ", "").replace(", Options", "");
    const json = JSON.stringify(memories ?? []);
    if (!isIndex && json.length > MAX_INLINE) lines.push("from mnemorank.memory.files import load_memories");
    lines.push("");
    if (isIndex) lines.push('index = MemoryIndex.open("memories.db")');
    else if (json.length > MAX_INLINE) lines.push('memories = load_memories("memories.jsonl")');
    else lines.push(`memories = ${python(memories, 1)}`);
    lines.push(isIndex ? "ranking = index.search(" : "ranking = Reranker().rerank(", `    ${python(query)},`);
    if (!isIndex) lines.push("    memories,");
    for (const [name, value] of Object.entries({ top_k, now, as_of, candidates }))
      if (value !== undefined) lines.push(`    ${name}=${python(value)},`);
    if (fields.length) lines.push(`    options=Options(${fields.map(([name, value]) => `${name}=${python(value)}`).join(", ")}),`);
    lines.push(")", "for result in ranking:", '    print(f"{result.score:.2f}", result.text)');
    return lines.join("\n");
  },
  json: (_, body) => JSON.stringify(body, null, 2),
};

/** Write a JSON value as Python. */
function python(value: unknown, depth = 0): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) {
    if (depth === 0 || value.length === 0) return `[${value.map((item) => python(item)).join(", ")}]`;
    return `[\n${value.map((item) => `    ${python(item)},\n`).join("")}]`;
  }
  if (typeof value === "object")
    return `{${Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${python(item)}`).join(", ")}}`;
  return JSON.stringify(value);
}
