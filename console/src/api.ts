/** Calls to the server. The API key is kept for this tab only and sent nowhere else. */

const KEY = "mnemorank.key";

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

export const apiKey = {
  get: () => sessionStorage.getItem(KEY),
  set: (key: string) => sessionStorage.setItem(KEY, key),
  forget: () => sessionStorage.removeItem(KEY),
};

let onUnauthorized: (message: string) => void = () => undefined;

/** Call this function whenever the server asks for a key. */
export function whenUnauthorized(listener: (message: string) => void): void {
  onUnauthorized = listener;
}

async function request(path: string, init: RequestInit): Promise<Response> {
  const headers = new Headers(init.headers);
  const key = apiKey.get();
  if (key) headers.set("authorization", `Bearer ${key}`);
  let response: Response;
  try {
    // Relative to the page, which a proxy may serve under a prefix.
    response = await fetch(path, { ...init, headers });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server cannot be reached.");
  }
  if (response.ok) return response;
  const body: unknown = await response.json().catch(() => null);
  const details = (body as { error?: { code?: string; message?: string } } | null)?.error;
  const message = details?.message ?? `The server answered with status ${response.status}.`;
  if (response.status === 401) onUnauthorized(message);
  throw new ApiError(response.status, details?.code ?? "error", message);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await request(path, { signal: signal ?? null })).json() as Promise<T>;
}

export async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  const init = { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" } };
  return (await request(path, { ...init, signal: signal ?? null })).json() as Promise<T>;
}

export async function getText(path: string): Promise<string> {
  return (await request(path, {})).text();
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
