/** A breakpoint is armed in a running job by a session. Who sets one without a session is offered it, once for each job. */

import type { Choice } from "./choices";

export class Offers {
  private readonly made = new Set<string>();

  /** The newest job that was not offered yet. */
  next(choices: readonly Choice[]): Choice | undefined {
    const [newest] = choices.filter((choice) => choice.configuration.all && choice.configuration.job);
    const key = newest && `${newest.configuration.address ?? ""} ${newest.configuration.job}`;
    if (!newest || !key || this.made.has(key)) {
      return undefined;
    }
    this.made.add(key);
    return newest;
  }
}
