/** What a link to the console contains, in the fragment of its URL, which browsers do not send to servers. */

import type { Memory } from "./types";

export const VIEWS = ["playground", "judge", "learning", "health"] as const;
export type View = (typeof VIEWS)[number];

export type OptionValue = string | number | boolean;
export type OptionSet = Record<string, OptionValue>;

export interface Settings {
  query: string;
  now: string;
  asOf: string;
  options: OptionSet;
  compare: { model: string; options: OptionSet } | null;
}

export const DEFAULTS: Settings = { query: "", now: "", asOf: "", options: {}, compare: null };

export interface Shared extends Settings {
  source: "sample" | "own" | "index";
  name?: string;
  memories?: Memory[];
}

/** Memories beyond this size are left out of links, which chat programs would cut. */
const MAX_SHARED = 200_000;

export function readView(): View {
  const name = location.hash.slice(1).split("=")[0];
  return VIEWS.find((view) => view === name) ?? "playground";
}

export async function encodeShared(shared: Shared): Promise<string> {
  const { memories, ...rest } = shared;
  const fits = memories && JSON.stringify(memories).length <= MAX_SHARED;
  const bytes = new TextEncoder().encode(JSON.stringify(fits ? shared : rest));
  return toBase64(await transform(bytes, new CompressionStream("deflate-raw")));
}

/** Return what a link contains, or null if there is none. Throws for a link that was cut. */
export async function decodeShared(hash: string): Promise<Shared | null> {
  const encoded = hash.startsWith("#playground=") ? hash.slice("#playground=".length) : "";
  if (!encoded) return null;
  const bytes = await transform(fromBase64(encoded), new DecompressionStream("deflate-raw"));
  return { ...DEFAULTS, source: "sample", ...(JSON.parse(new TextDecoder().decode(bytes)) as Partial<Shared>) };
}

async function transform(bytes: Uint8Array<ArrayBuffer>, through: GenericTransformStream): Promise<Uint8Array<ArrayBuffer>> {
  const stream = new Blob([bytes]).stream().pipeThrough(through as ReadableWritablePair<Uint8Array, Uint8Array<ArrayBuffer>>);
  return new Uint8Array(await new Response(stream as ReadableStream<Uint8Array<ArrayBuffer>>).arrayBuffer());
}

function toBase64(bytes: Uint8Array): string {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}
