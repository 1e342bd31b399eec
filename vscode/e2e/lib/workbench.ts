/** The workbench as its user sees it: commands, files, notifications, and the views of VS Code's own debugger. */

import type { Locator, Page } from 'playwright-core';

import { until } from './until.ts';

export const STOPPED = '.monaco-editor .debug-top-stack-frame-line, .monaco-editor .debug-focused-stack-frame-line';

/** For one attempt to use the quick input. */
const PICK_MS = 5000;

/** One line of text, as it is read. */
export async function words(found: Locator): Promise<string> {
  return (await found.innerText()).replace(/\s+/g, ' ').trim();
}

export async function allWords(found: Locator): Promise<string[]> {
  return (await found.allInnerTexts()).map((text) => text.replace(/\s+/g, ' ').trim());
}

export class Workbench {
  readonly page: Page;

  constructor(page: Page) {
    this.page = page;
  }

  /** A command of the palette. */
  command(title: string): Promise<void> {
    return this.pick(`>${title}`, title);
  }

  /** Types into a fresh quick input (`>` begins a command) and takes the row of this text; without one, just Enter. */
  private async pick(typed: string, text?: string): Promise<void> {
    const widget = this.page.locator('.quick-input-widget');
    const input = widget.locator('input');
    // Anything that takes the focus closes it, a session that begins for one; and what an extension brings in later is
    // not in a list that is open already. Then it is opened anew.
    await until(`the quick input with ${typed}`, async () => {
      if (!(await input.isVisible())) await this.page.keyboard.press('F1');
      await input.fill(typed, { timeout: PICK_MS });
      try {
        if (text !== undefined) {
          await widget.locator('.monaco-list-row.focused', { hasText: text }).waitFor({ timeout: PICK_MS });
        }
        if ((await input.isVisible()) && (await input.inputValue()) === typed) {
          await this.page.keyboard.press('Enter');
          return true;
        }
        throw new Error('it was closed');
      } catch (error) {
        await this.page.keyboard.press('Escape');
        throw error;
      }
    });
  }

  /** Answers what the extension asks in a quick input of this title. */
  async answer(title: string, text: string): Promise<void> {
    const input = this.page.locator('.quick-input-widget', { hasText: title });
    await input.locator('input').fill(text);
    await this.page.keyboard.press('Enter');
    await input.waitFor({ state: 'hidden' });
  }

  /** Opens a file of the workspace at a line. */
  async open(file: string, line: number): Promise<void> {
    await this.pick(file, file);
    await this.page.locator(`.tab.active[data-resource-name="${file}"]`).waitFor();
    await this.pick(`:${line}`);
    await this.lineNumber(line).waitFor();
  }

  /** The number beside a line of the open editor. */
  lineNumber(line: number): Locator {
    return this.page.locator('.editor-group-container.active .line-numbers', { hasText: new RegExp(`^${line}$`) }).first();
  }

  /** A click in the gutter: a breakpoint. */
  async gutter(line: number, button: 'left' | 'right' = 'left'): Promise<void> {
    // The editor may be drawn anew just now: an element that is replaced meanwhile has no place.
    const [number, margin] = await until(`line ${line} in view`, async () => {
      const number = await this.lineNumber(line).boundingBox();
      const margin = await this.page.locator('.editor-group-container.active .glyph-margin').first().boundingBox();
      return number && margin && ([number, margin] as const);
    });
    await this.page.mouse.click(margin.x + 10, number.y + number.height / 2, { button });
  }

  /** A conditional breakpoint or a logpoint, by the gutter's menu. */
  async gutterWith(line: number, entry: RegExp, text: string): Promise<void> {
    await this.gutter(line, 'right');
    const chosen = this.page.locator('.monaco-menu .action-label', { hasText: entry }).first();
    const input = this.page.locator('.breakpoint-widget .monaco-editor').first();
    // A menu that has just been opened takes no click: it may be the end of the one that has opened it.
    await until('the input for a breakpoint', async () => {
      if (await chosen.isVisible()) await chosen.click({ timeout: PICK_MS });
      return input.isVisible();
    });
    await input.click();
    await this.page.keyboard.type(text);
    await this.page.keyboard.press('Enter');
    await this.page.locator('.breakpoint-widget').waitFor({ state: 'hidden' });
  }

  /** File and line of the highlighted statement; null without one. */
  async stoppedAt(): Promise<string | null> {
    return this.page.evaluate((stopped) => {
      const mark = document.querySelector(stopped);
      const group = mark?.closest('.editor-group-container');
      if (!mark || !group) return null;
      const top = mark.getBoundingClientRect().top;
      const near = (other: Element): boolean => Math.abs(other.getBoundingClientRect().top - top) < 3;
      const line = [...group.querySelectorAll('.line-numbers')].find(near)?.textContent ?? '?';
      const file = group.querySelector('.tab.active')?.getAttribute('data-resource-name') ?? '?';
      return `${file}:${line}`;
    }, STOPPED);
  }

  /** Once the editor highlights this line. */
  async stopsAt(place: string): Promise<void> {
    await until(`the editor at ${place}`, async () => {
      const now = await this.stoppedAt();
      if (now !== place) throw new Error(`it is at ${now ?? 'no stopped line'}`);
      return true;
    });
  }

  /** The messages in view. */
  notifications(): Promise<string[]> {
    return allWords(this.page.locator('.notifications-toasts .notification-list-item-message'));
  }

  async notification(pattern: RegExp): Promise<string> {
    return until(`a message like ${pattern}`, async () => {
      const all = await this.notifications();
      const found = all.find((text) => pattern.test(text));
      if (found === undefined) throw new Error(`there are: ${JSON.stringify(all)}`);
      return found;
    });
  }

  /** Presses a button of a message. */
  async choose(pattern: RegExp, button: string): Promise<void> {
    await this.notification(pattern);
    const toast = this.page.locator('.notifications-toasts .notification-list-item', { hasText: pattern });
    await toast.hover();
    await toast.getByRole('button', { name: button }).click();
  }

  /** Once the terminal shows this; it may stand behind the Debug Console. */
  async terminalSays(pattern: RegExp): Promise<void> {
    await this.page.locator('.panel .action-label[aria-label^="Terminal"]').first().click({ force: true });
    await until(`a terminal that says ${pattern}`, async () => {
      const text = await words(this.page.locator('.terminal-wrapper.active .xterm-rows').first());
      if (!pattern.test(text)) throw new Error(text.slice(-300));
      return true;
    });
  }
}
