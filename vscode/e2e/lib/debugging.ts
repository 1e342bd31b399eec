/** VS Code's Run and Debug view, its toolbar and its console. */

import type { Locator, Page } from 'playwright-core';

import { until } from './until.ts';
import { allWords, words } from './workbench.ts';

/** Seconds for a value that is on its way. */
const VALUE_SECONDS = 20;

const WIDGET_MS = 4000;

export class Debugging {
  private readonly page: Page;

  constructor(page: Page) {
    this.page = page;
  }

  async show(): Promise<void> {
    await this.page.locator('.activitybar .action-label[aria-label^="Run and Debug"]').click();
    await this.page.locator('.debug-call-stack').first().waitFor();
  }

  /** A button of the floating toolbar, as in "Step Over". */
  async press(label: string): Promise<void> {
    await this.page.locator(`.debug-toolbar .action-label[aria-label^="${label}"]`).first().click();
  }

  /** The rows of the Call Stack: sessions, threads, frames. */
  stack(): Promise<string[]> {
    return allWords(this.page.locator('.debug-call-stack .monaco-list-row'));
  }

  async stackHas(pattern: RegExp): Promise<string> {
    return until(`a row of the Call Stack like ${pattern}`, async () => {
      const rows = await this.stack();
      const found = rows.find((row) => pattern.test(row));
      if (found === undefined) throw new Error(`it has ${JSON.stringify(rows)}`);
      return found;
    });
  }

  row(text: string | RegExp): Locator {
    return this.page.locator('.debug-call-stack .monaco-list-row', { hasText: text }).first();
  }

  /**
   * What the editor says of the exception, below the line. When answers are slow VS Code may fetch a stack twice and
   * focus a frame that is no longer in it: then it shows no exception until a frame is clicked.
   */
  async exception(frame: RegExp): Promise<string> {
    const widget = this.page.locator('.exception-widget').first();
    return until('the exception below its line', async () => {
      await widget.waitFor({ timeout: WIDGET_MS }).catch(() => this.row(frame).click({ timeout: WIDGET_MS }));
      return words(widget);
    });
  }

  /** A variable, once its row reads like this; `path` goes through scopes and containers, which are expanded. */
  async variable(path: readonly string[], pattern: RegExp): Promise<void> {
    await until(`the variable ${path.join(' > ')} like ${pattern}`, async () => {
      const row = await this.reach(path);
      const text = await words(row);
      // After a step the editor shows the old values until it has the new ones.
      if (!pattern.test(text)) throw new Error(`it is: ${text}`);
      return true;
    }, VALUE_SECONDS);
  }

  private async reach(path: readonly string[]): Promise<Locator> {
    for (const name of path) {
      const row = this.named(name);
      if ((await row.count()) === 0) throw new Error(`no ${name}: Variables has ${JSON.stringify(await this.variables())}`);
      if (name === path.at(-1)) return row;
      if ((await row.getAttribute('aria-expanded')) === 'false') {
        await row.locator('.monaco-tl-twistie').click({ timeout: 2000 });
        await this.settled();
      }
    }
    throw new Error('an empty path');
  }

  variables(): Promise<string[]> {
    return allWords(this.page.locator('.debug-variables .monaco-list-row'));
  }

  /** A row by the name before its `=`. A scope has only a name. */
  named(name: string): Locator {
    const escaped = name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
    return this.page.locator('.debug-variables .monaco-list-row', { hasText: new RegExp(`^\\s*${escaped}\\s*(=|$)`) }).first();
  }

  /** Waits until the tree has been drawn anew; what it shows before is old. */
  private async settled(): Promise<void> {
    await this.page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  }

  /** Types an expression into the Debug Console; what it answers. */
  async evaluate(expression: string): Promise<string> {
    const rows = this.page.locator('.repl .monaco-list-row');
    const before = await rows.count();
    await this.page.locator('.repl-input-wrapper .monaco-editor').first().click();
    await this.page.keyboard.type(expression);
    await this.page.keyboard.press('Escape'); // the list of completions
    await this.page.keyboard.press('Enter');
    return until(`an answer to ${expression}`, async () => ((await rows.count()) >= before + 2 ? words(rows.last()) : null));
  }

  /** The rows of Breakpoints that belong to a line: their text, and whether they are verified. */
  breakpoint(file: string, line: number): Locator {
    return this.page
      .locator('.debug-breakpoints .monaco-list-row', { hasText: file })
      .filter({ hasText: new RegExp(`${line}\\s*$`) })
      .first();
  }

  /** The class of its icon, which says whether it is verified. */
  async icon(file: string, line: number): Promise<string> {
    return (await this.breakpoint(file, line).locator('.icon, .codicon').first().getAttribute('class')) ?? '';
  }

  get toolbar(): Locator {
    return this.page.locator('.debug-toolbar');
  }
}
