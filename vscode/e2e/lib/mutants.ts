/** Mistakes that somebody could make, each with the scenario that must name it. Run by `vscode/e2e/mutants`. */

import path from 'node:path';

import { ROOT } from './paths.ts';

/** An edit of text that stands exactly once in its file. */
export interface Mutant {
  readonly name: string;
  readonly file: string; // below the repository
  readonly old: string;
  readonly fresh: string;
  readonly caughtBy: RegExp; // the scenario that must fail
  readonly says: RegExp; // what it must say, so that no other failure counts
}

const ONE_STOP = /a stop in an actor/;
const REOPENED = /browser closed at a stop/;
const GUTTER = /a gutter breakpoint in a running job/;
const ALL_RANKS = /all ranks as children/;
const SNAPSHOT = /a crash snapshot/;
const PAUSE = /a pause after an exception/;
const TOKEN = /a cluster with a token/;
const NOWHERE = /nothing but the dashboard/;
const LAUNCH = /the current file/;
const EMPTY = /an empty view/;
const FAILED = /a job that failed/;

const ADAPTER = 'devkit/debug/inworker/adapter.py';
const BOARD = 'devkit/debug/dap_board.py';
const PARENT = 'devkit/debug/dap_parent.py';
const DEBUGGING = 'vscode/src/editor/debugging.ts';

export const MUTANTS: readonly Mutant[] = [
  {
    name: 'a-line-too-far',
    file: ADAPTER,
    old: '"line": frame.line,',
    fresh: '"line": frame.line + 1,',
    caughtBy: ONE_STOP,
    says: /the editor at counter\.py:13 .*it is at counter\.py:14/,
  },
  {
    name: 'a-wrong-value',
    file: 'devkit/debug/inworker/dap_frames.py',
    old: 'shown["value"] = shown.pop("result")',
    fresh: 'shown["value"] = shown.pop("result").replace("21", "22")',
    caughtBy: ONE_STOP,
    says: /the variable Locals > number like .*it is: number = 22/,
  },
  {
    name: 'continue-that-does-nothing',
    file: ADAPTER,
    old: '{"allThreadsContinued": False} if how == "continue" else None)\n        self._stops.resume(stop.id, how)',
    fresh:
      '{"allThreadsContinued": False} if how == "continue" else None)\n        if how != "continue":\n' +
      '            self._stops.resume(stop.id, how)',
    caughtBy: ONE_STOP,
    says: /output like .*RESULT 63/,
  },
  {
    name: 'a-second-click-starts-a-second-session',
    file: 'vscode/src/editor/commands.ts',
    old: 'if (stop && ranks.sessionOf(clusterKey(node), stop)) {',
    fresh: 'if (stop && node.id === "") {',
    caughtBy: ONE_STOP,
    says: /^\s*\+ {3}2\n\s*- {3}1\n/m,
  },
  {
    name: 'an-editor-that-is-lost-resumes',
    file: ADAPTER,
    old: '            self._is_closed = True\n            self._stops.unwatch(self)',
    fresh:
      '            self._is_closed = True\n            for stop in self._shown_stops():\n' +
      '                self._stops.resume(stop.id, "continue")\n            self._stops.unwatch(self)',
    caughtBy: REOPENED,
    says: /a row of our view like .*Counter/,
  },
  {
    name: 'a-pipe-of-another-name',
    file: DEBUGGING,
    old: 'new vscode.DebugAdapterNamedPipeServer(configuration.pipe)',
    fresh: 'new vscode.DebugAdapterNamedPipeServer(`${configuration.pipe}1`)',
    caughtBy: ALL_RANKS,
    says: /a row of the Call Stack like .*rank \d Trainer/,
  },
  {
    name: 'a-child-is-missing',
    file: PARENT,
    old: '                if not is_followed:',
    fresh: '                if not is_followed and stop.get("rank") != 2:',
    caughtBy: ALL_RANKS,
    says: /a row of the Call Stack like .*rank 2 Trainer/,
  },
  {
    name: 'step-all-steps-one',
    file: 'devkit/debug/dap_together.py',
    old: 'return hub.call("step", ids=ids,',
    fresh: 'return hub.call("step", ids=ids[:1],',
    caughtBy: ALL_RANKS,
    says: /all ranks one line further/,
  },
  {
    name: 'the-odd-rank-is-not-marked',
    file: 'vscode/src/model/values.ts',
    old: 'odd: hasMost && number > 0,',
    fresh: 'odd: hasMost && number > 1,',
    caughtBy: ALL_RANKS,
    says: /differs/,
  },
  {
    name: 'a-breakpoint-is-not-armed',
    file: BOARD,
    old: 'state = hub.call("break", breakpoint=entry.point.to_json(), wait=ARM_SECONDS, timeout=ARM_SECONDS + 2.0)',
    fresh: 'state = {"id": entry.point.id, "armed": 1, "workers": 1}',
    caughtBy: GUTTER,
    says: /a stop of rank 1/,
  },
  {
    name: 'a-breakpoint-on-all-ranks',
    file: 'devkit/debug/dap_wanted.py',
    old: 'ranks=both(point.ranks, bounds.ranks))',
    fresh: 'ranks=bounds.ranks)',
    caughtBy: GUTTER,
    says: /AssertionError/,
  },
  {
    name: 'a-breakpoint-outlives-its-session',
    file: BOARD,
    old: 'names = [point.id for point in self.points()]\n        self._entries',
    fresh: 'names: list[str] = []\n        self._entries',
    caughtBy: GUTTER,
    says: /no breakpoint in the job/,
  },
  {
    name: 'a-child-outlives-its-parent',
    file: DEBUGGING,
    old: 'lifecycleManagedByParent: true,',
    fresh: 'lifecycleManagedByParent: false,',
    caughtBy: GUTTER,
    says: /no breakpoint in the job/,
  },
  {
    name: 'a-snapshot-without-values',
    file: 'devkit/debug/dap_recorded.py',
    old: '"value": value_text(child.value),',
    fresh: '"value": value_text(None),',
    caughtBy: SNAPSHOT,
    says: /the variable Locals > numerator/,
  },
  {
    name: 'an-exception-without-a-name',
    file: ADAPTER,
    old: 'lambda: dap_frames.exception_info(error))',
    fresh: 'lambda: dap_frames.exception_info(Exception()))',
    caughtBy: PAUSE,
    says: /ZeroDivisionError/,
  },
  {
    name: 'a-token-that-the-adapter-does-not-get',
    file: DEBUGGING,
    old: 'env: this.devkit.environment({ token }),',
    fresh: 'env: this.devkit.environment({ token: token && undefined }),',
    caughtBy: TOKEN,
    says: /the editor at counter\.py:13/,
  },
  {
    name: 'a-refused-token-is-not-told',
    file: 'vscode/src/model/problems.ts',
    old: '? "token" : "unreachable"',
    fresh: '? "unreachable" : "unreachable"',
    caughtBy: TOKEN,
    says: /wrong token/,
  },
  {
    name: 'no-way-through-the-dashboard',
    file: 'devkit/debug/client.py',
    old: '            return Tunnel(dashboard, place, min(end',
    fresh:
      '            raise UnreachableError(f"no port to {place.host}")\n            return Tunnel(dashboard, place, min(end',
    caughtBy: NOWHERE,
    says: /a row of our view like .*Counter/,
  },
  {
    name: 'a-program-without-its-breakpoints',
    file: 'devkit/debug/dap_launch.py',
    old: 'command.start(points if launch.debug else [], in_terminal)',
    fresh: 'command.start([], in_terminal)',
    caughtBy: LAUNCH,
    says: /a row of the Call Stack like .*greet/,
  },
  {
    name: 'a-view-that-knows-before-it-has-looked',
    file: 'vscode/src/model/clusters.ts',
    old: '=== "absent" ? "none" : "looking"',
    fresh: '=== "absent" ? "none" : "none"',
    caughtBy: EMPTY,
    says: /Looking for a Ray cluster/,
  },
  {
    name: 'a-failed-job-is-a-success',
    file: 'devkit/debug/job_ends.py',
    old: 'return _End("FAILED", f"the driver {how_ended',
    fresh: 'return _End("SUCCEEDED", f"the driver {how_ended',
    caughtBy: FAILED,
    says: /a row of our view like .*FAILED, exit code 3/,
  },
];

/** The file with the mutant in it. */
export function mutated(mutant: Mutant, source: string): string {
  const found = source.split(mutant.old).length - 1;
  if (found !== 1) throw new Error(`mutant ${mutant.name}: its text stands ${found} times in ${mutant.file}, not once`);
  return source.replace(mutant.old, () => mutant.fresh);
}

export function fileOf(mutant: Mutant, root = ROOT): string {
  return path.join(root, mutant.file);
}
