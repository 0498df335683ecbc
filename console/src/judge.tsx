import type { Pool } from "./pool";
import type { Session } from "./types";
export function Judge(_: { session: Session; pool: Pool; isOpen: boolean }) {
  return null;
}
