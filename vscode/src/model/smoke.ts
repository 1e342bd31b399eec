/** What the smoke test found, as the Test Explorer wants it. */

import type { CheckResult, SmokeDocument } from "./records";

export interface CheckItem {
  readonly id: string;
  readonly label: string;
  readonly status: CheckResult["status"];
  readonly message: string;
  readonly milliseconds: number;
}

export function isSmoke(document: unknown): document is SmokeDocument {
  const one = document as Partial<SmokeDocument> | null;
  return typeof one === "object" && one !== null && Array.isArray(one.checks) && typeof one.verdict === "string";
}

/** One item for each check, in their order; a name that comes twice gets a number. */
export function checkItems(record: SmokeDocument): CheckItem[] {
  const seen = new Map<string, number>();
  return record.checks.map((check) => {
    const before = seen.get(check.name) ?? 0;
    seen.set(check.name, before + 1);
    return {
      id: before ? `${check.name}#${before + 1}` : check.name,
      label: check.name,
      status: check.status,
      message: check.detail,
      milliseconds: Math.round(check.seconds * 1000),
    };
  });
}

/** `pass in 18.0 s: 17 passed, 1 failed: weight-sync`. */
export function verdict(record: SmokeDocument): string {
  const with_ = (status: CheckResult["status"]): CheckResult[] =>
    record.checks.filter((check) => check.status === status);
  const failed = with_("fail");
  const parts = [`${with_("pass").length} passed`];
  if (failed.length) {
    parts.push(`${failed.length} failed: ${failed.map((check) => check.name).join(", ")}`);
  }
  if (with_("skip").length) {
    parts.push(`${with_("skip").length} skipped`);
  }
  return `${record.verdict} in ${record.seconds.toFixed(1)} s: ${parts.join(", ")}`;
}
