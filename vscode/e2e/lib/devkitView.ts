/** Our view in the Activity Bar. */

import type { Locator, Page } from 'playwright-core';

import { until } from './until.ts';
import { allWords } from './workbench.ts';

export class DevkitView {
  private readonly page: Page;

  constructor(page: Page) {
    this.page = page;
  }

  private get icon(): Locator {
    return this.page.locator('.activitybar .action-item', { has: this.page.locator('[aria-label^="Ray DevKit"]') }).first();
  }

  /** Opens it; a click on an open view would close it. */
  async show(): Promise<void> {
    await this.icon.waitFor();
    await until('the view of Ray DevKit', async () => {
      if (/\bchecked\b/.test((await this.icon.getAttribute('class')) ?? '')) return true;
      await this.icon.click({ timeout: 2000, force: true }); // the badge lies over it
      return false;
    });
  }

  get rows(): Locator {
    return this.page.locator('.composite.viewlet[id*="devkit"] .monaco-list-row, .sidebar .pane-body .monaco-list-row');
  }

  row(text: string | RegExp): Locator {
    return this.rows.filter({ hasText: text }).first();
  }

  texts(): Promise<string[]> {
    return allWords(this.rows);
  }

  /** A row that is in view, once it is. */
  async has(text: RegExp): Promise<Locator> {
    await until(`a row of our view like ${text}`, async () => {
      const rows = await this.texts();
      if (!rows.some((row) => text.test(row))) throw new Error(`it has ${JSON.stringify(rows)}`);
      return true;
    });
    return this.row(text);
  }

  /** An inline action of a row. */
  async act(text: RegExp, label: string | RegExp): Promise<void> {
    const row = await this.has(text);
    await row.hover();
    await row.getByRole('button', { name: label }).first().click();
  }
}
