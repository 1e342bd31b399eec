import { describe, expect, test } from "vitest";
import { candidates, pythonBeside } from "../src/model/locate";
import { code, plain } from "../src/model/node";
import { endedProblem, isErrorRecord } from "../src/model/problems";
import { compareVersions, complaint, judge, installCommand, MINIMAL_VERSION } from "../src/model/version";

describe("where devkit is", () => {
  const around = { setting: "", folders: ["/w/a", "/w/b"], home: "/home/me", windows: false };

  test("the workspace's .venv, the selected Python's folder, then PATH", () => {
    expect(candidates(around)).toEqual(["/w/a/.venv/bin/devkit", "/w/b/.venv/bin/devkit", "devkit"]);
    expect(candidates({ ...around, selectedPython: "/v/bin/python" })[2]).toBe("/v/bin/devkit");
    expect(candidates({ ...around, folders: ["C:\\w"], windows: true })).toEqual([
      "C:\\w\\.venv\\Scripts\\devkit.exe",
      "devkit.exe",
    ]);
  });

  test("a setting is the only one", () => {
    expect(candidates({ ...around, setting: " ${workspaceFolder}/env/bin/devkit " })).toEqual(["/w/a/env/bin/devkit"]);
    expect(candidates({ ...around, setting: "~/bin/devkit" })).toEqual(["/home/me/bin/devkit"]);
  });

  test("the Python beside it", () => {
    expect(pythonBeside("/w/.venv/bin/devkit", false)).toBe("/w/.venv/bin/python");
    expect(pythonBeside("devkit", false)).toBeUndefined();
  });
});

describe("which devkit it is", () => {
  test("versions are compared by their numbers", () => {
    expect(compareVersions("0.10.0", "0.9.9")).toBeGreaterThan(0);
    expect(compareVersions("1.0", "1.0.0")).toBe(0);
    expect(compareVersions("0.1.0.dev3", "0.1.1")).toBeLessThan(0);
  });

  test("fine, old, or something else", () => {
    expect(judge(`devkit ${MINIMAL_VERSION}\n`)).toEqual({ kind: "fine", version: MINIMAL_VERSION });
    expect(judge("devkit 0.0.9\n")).toEqual({ kind: "old", version: "0.0.9" });
    expect(judge("Usage: devkit")).toMatchObject({ kind: "missing" });
    expect(judge("warning: slow disk\ndevkit 99.1\n")).toEqual({ kind: "fine", version: "99.1" });
  });

  test("the message has what is wrong and the command that fixes it", () => {
    expect(complaint({ kind: "old", version: "0.0.9" }, "/v/bin/devkit")).toContain("/v/bin/devkit is version 0.0.9");
    expect(installCommand("/my env/bin/python")).toBe(
      `"/my env/bin/python" -m pip install --upgrade "ray-devkit>=${MINIMAL_VERSION}"`,
    );
    expect(installCommand(undefined)).toMatch(/^python3 -m pip/);
  });
});

test("a process that ended without a record is known by its last words", () => {
  expect(endedProblem(2, "note\nerror: no such thing\nhint: look again\n")).toEqual({
    kind: "failed",
    error: "no such thing",
    hint: "look again",
  });
  expect(endedProblem(null, "")).toMatchObject({ error: "devkit was killed by a signal: no output" });
  expect(isErrorRecord({ error: "x", hint: "", exit_code: 1 })).toBe(true);
  expect(isErrorRecord({ error: "x" })).toBe(false);
});

test("Markdown shows text as it is", () => {
  expect(plain("a_b*[x](y) <i>")).toBe("a\\_b\\*\\[x\\]\\(y\\) \\<i\\>");
  expect(code("a ``` b")).toBe("````\na ``` b\n````");
});
