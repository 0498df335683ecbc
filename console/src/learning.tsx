import type { Session } from "./types";
export function Learning(_: { session: Session; onChange: () => Promise<void> }) {
  return null;
}
