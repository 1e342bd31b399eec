/** Waiting: every wait has a deadline, and says what is missing. */

/** Seconds for anything that a test waits for; two busy cores are slow. */
export const DEADLINE = 45;

const PAUSE_MS = 40;

/** What can't get better by waiting. */
export class Fatal extends Error {}

/** What `look` gives once it is true; an exception of `look` counts as "not yet" and is told at the deadline. */
export async function until<T>(what: string, look: () => Promise<T> | T, seconds = DEADLINE): Promise<NonNullable<T>> {
  const end = Date.now() + seconds * 1000;
  let last: unknown = '';
  for (;;) {
    try {
      const found = await look();
      if (found) return found;
      last = found;
    } catch (error) {
      if (error instanceof Fatal) throw error;
      last = error instanceof Error ? (error.message.split('\n')[0] ?? '') : error;
    }
    if (Date.now() > end) throw new Error(`not within ${seconds} s: ${what}${last ? ` (last: ${String(last)})` : ''}`);
    await new Promise((done) => setTimeout(done, PAUSE_MS));
  }
}

/** Asserts that `look` stays false for a while: for what must not happen there is no event. */
export async function never(what: string, look: () => Promise<unknown> | unknown, seconds: number): Promise<void> {
  const end = Date.now() + seconds * 1000;
  while (Date.now() < end) {
    if (await look()) throw new Error(`happened: ${what}`);
    await new Promise((done) => setTimeout(done, PAUSE_MS));
  }
}
