// Who the user is, and what the user may do. The server decides again at each request.
import { signal } from "@preact/signals";
import { CONSOLE, get } from "./api.js";
import { useFetched } from "./hooks.js";

export const session = signal(null);

export async function loadSession() {
  session.value = await get(`${CONSOLE}/session`);
}

/** Whether the user has a right on a resource, such as `/quire/clients`. */
export function may(right, resource) {
  const known = session.value;
  if (!known) return false;
  if (known.read_only && !["monitor", "read", "query", "replay"].includes(right)) return false;
  return known.rights[resource]?.includes(right) ?? false;
}

/** The rights of the user on a topic or a queue, as a set. Empty until they are known. */
export function useRights(name) {
  const { data } = useFetched(`${CONSOLE}/rights`, { name });
  const rights = new Set(data?.rights ?? []);
  if (session.value?.read_only) for (const right of ["write", "delete", "admin"]) rights.delete(right);
  return rights;
}
