/** Where things lie. */

import { existsSync, mkdirSync, readFileSync } from 'node:fs';
import path from 'node:path';

/** The repository. */
export const ROOT = path.resolve(import.meta.dirname, '../../..');

/** Where `devkit` is imported from; a mutated copy while its mutant is tried. */
export const PACKAGES = process.env['DEVKIT_E2E_PACKAGES'] ?? ROOT;

export const E2E = path.join(ROOT, 'vscode', 'e2e');

/** The environment's Python; `VENV` as for make. */
export const PYTHON = path.join(path.resolve(ROOT, process.env['VENV'] ?? '.venv'), 'bin', 'python');

/** The programs that are debugged. */
export const PROGRAMS = path.join(E2E, 'programs');

/** Screenshots. */
export const SHOTS = path.join(E2E, 'shots');

/** The packaged extension; `DEVKIT_VSIX` names another one. */
export const VSIX = process.env['DEVKIT_VSIX'] ?? path.join(ROOT, 'devkit', 'vscode', 'ray-devkit.vsix');

/** What `install` made; Node finds its packages by the same link. */
const MODULES = path.join(E2E, 'node_modules');

export const CODE_SERVER = path.join(MODULES, 'code-server', 'out', 'node', 'entry.js');

/** The line of a program that wears the mark `# @name`. */
export function mark(program: string, name: string): number {
  const lines = readFileSync(path.join(PROGRAMS, program), 'utf8').split('\n');
  const found = lines.findIndex((line) => new RegExp(`# @${name}\\b`).test(line));
  if (found < 0) throw new Error(`${program} has no mark @${name}`);
  return found + 1;
}

/** The browser. */
export function chromium(): string {
  const found = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(existsSync);
  if (found === undefined) throw new Error('no Chromium here: vscode/e2e/install');
  return found;
}

mkdirSync(SHOTS, { recursive: true });
