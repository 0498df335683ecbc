import type { Session } from "./types";
export function Health(_: { session: Session }) {
  return null;
}
