/** Chromium with one page: the workbench. */

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

import { type BrowserContext, chromium as playwright, type Page } from 'playwright-core';

import { chromium, SHOTS } from './paths.ts';
import { DEADLINE } from './until.ts';

const ARGUMENTS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

/** Big enough for all panes, small enough for a picture in the docs. */
const VIEWPORT = { width: 1400, height: 900 };

/** For a picture whose text is read at the width of a page. */
export const SMALL = { width: 1000, height: 640 };

const HOVER_MS = 1500;

export class Browser {
  readonly page: Page;
  private readonly context: BrowserContext;
  private readonly folder: string;

  private constructor(context: BrowserContext, page: Page, folder: string) {
    this.context = context;
    this.page = page;
    this.folder = folder;
  }

  /** Opens the workbench. `folder` keeps a browser's memory from one opening to the next, as a user's browser does. */
  static async open(url: string, folder = mkdtempSync(path.join(tmpdir(), 'dkb-'))): Promise<Browser> {
    const context = await playwright.launchPersistentContext(folder, {
      executablePath: chromium(),
      headless: true,
      viewport: VIEWPORT,
      args: ARGUMENTS,
      handleSIGINT: false, // they are the tests' own matter
      handleSIGTERM: false,
    });
    const page = context.pages()[0] ?? (await context.newPage());
    page.setDefaultTimeout(DEADLINE * 1000);
    await page.goto(url);
    await page.locator('.monaco-workbench .activitybar .action-label').first().waitFor();
    return new Browser(context, page, folder);
  }

  /** A picture in `shots/`, without what a mouse brings up; of a window of another size if one is given. */
  async shot(name: string, size = VIEWPORT): Promise<void> {
    await this.page.setViewportSize(size);
    await this.page.mouse.move(size.width / 2, 1);
    const hover = this.page.locator('.workbench-hover-container:visible').first();
    await hover.waitFor({ state: 'hidden', timeout: HOVER_MS }).catch(() => undefined); // it is only for looks
    await this.page.screenshot({ path: path.join(SHOTS, `${name}.png`) });
    await this.page.setViewportSize(VIEWPORT);
  }

  /** Closes it and opens another one with the same memory. */
  async reopen(url: string): Promise<Browser> {
    await this.context.close();
    return Browser.open(url, this.folder);
  }

  async close(): Promise<void> {
    await this.context.close();
    rmSync(this.folder, { recursive: true, force: true });
  }
}
