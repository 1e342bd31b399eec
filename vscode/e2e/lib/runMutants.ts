/** Runs each mutant's scenario with the mutant in a copy of devkit and of the extension: it must fail, and say why. */

import { spawnSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

import { fileOf, type Mutant, MUTANTS, mutated } from './mutants.ts';
import { E2E, ROOT } from './paths.ts';

const NOT_COPIED = /(^|\/)(node_modules|dist|e2e|test|__pycache__|\.git)$/;

/** A copy of both packages, with the mutant; the environment in which the scenarios use it. */
function prepared(mutant: Mutant, folder: string): Record<string, string> {
  for (const part of ['devkit', 'vscode']) {
    const filter = (file: string): boolean => !NOT_COPIED.test(file.slice(ROOT.length));
    cpSync(path.join(ROOT, part), path.join(folder, part), { recursive: true, filter });
  }
  const file = fileOf(mutant, folder);
  writeFileSync(file, mutated(mutant, readFileSync(file, 'utf8')));
  const extension = path.join(folder, 'vscode');
  symlinkSync(path.join(ROOT, 'vscode', 'node_modules'), path.join(extension, 'node_modules'));
  const built = spawnSync('npm', ['run', '--silent', 'package'], { cwd: extension, encoding: 'utf8' });
  if (built.status !== 0) throw new Error(`mutant ${mutant.name} can't be built: ${built.stdout}${built.stderr}`);
  return { DEVKIT_VSIX: path.join(extension, 'dist', 'ray-devkit.vsix'), DEVKIT_E2E_PACKAGES: folder };
}

/** What is wrong with the tests that let it live; an empty text if they caught it. */
function escaped(mutant: Mutant): string {
  const folder = mkdtempSync(path.join(tmpdir(), 'dkm-'));
  try {
    const env = { ...process.env, ...prepared(mutant, folder) };
    const pattern = `--test-name-pattern=${mutant.caughtBy.source}`;
    const done = spawnSync(path.join(E2E, 'run'), [pattern], { env, encoding: 'utf8', timeout: 300_000 });
    if (done.status === 0) return 'its scenario passes';
    return mutant.says.test(done.stdout) ? '' : `its scenario fails, but does not say ${mutant.says}:\n${done.stdout}`;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

function main(words: readonly string[]): number {
  for (const mutant of MUTANTS) mutated(mutant, readFileSync(fileOf(mutant), 'utf8'));
  if (words.includes('--check')) return 0;
  const wanted = MUTANTS.filter((mutant) => words.length === 0 || words.includes(mutant.name));
  if (wanted.length === 0) throw new Error(`there is no such mutant; there are ${MUTANTS.map((each) => each.name).join(' ')}`);
  const alive = wanted.filter((mutant) => {
    const start = Date.now();
    const why = escaped(mutant);
    const seconds = Math.round((Date.now() - start) / 1000);
    console.log(`${why ? 'ALIVE ' : 'caught'}  ${mutant.name}  ${mutant.caughtBy.source}  ${seconds} s${why ? `\n${why}` : ''}`);
    return why;
  });
  console.log(`${wanted.length - alive.length} of ${wanted.length} mutants caught`);
  return alive.length ? 1 : 0;
}

process.exitCode = main(process.argv.slice(2));
