import { expect, test } from "vitest";
import { isNews, jobsSeen, nextQuestion, type JobsSeen } from "../src/model/jobsSeen";
import { crash, job, ps, worker } from "./records";

const NONE: JobsSeen = new Map();
const workers = [worker(), worker({ rank: 1, connected: false }), worker({ job_id: "" })];
const running = jobsSeen(NONE, ps({ workers }), []);

test("a job runs while one of its processes does, and is remembered when they are gone", () => {
  expect([...running]).toEqual([["01000000", true]]);
  expect([...jobsSeen(running, ps({ workers: [worker({ connected: false })] }), [])]).toEqual([["01000000", false]]);
  expect([...jobsSeen(running, ps(), [crash({ job_id: "02000000" })])]).toEqual([
    ["01000000", false],
    ["02000000", false],
  ]);
});

test("the list is asked for when a job comes, and when it ends", () => {
  expect(isNews(NONE, running)).toBe(true);
  expect(isNews(running, running)).toBe(false);
  expect(isNews(running, jobsSeen(running, ps(), []))).toBe(true);
});

test("a job that has ended is asked about until it is known how, and not for ever", () => {
  const ended = jobsSeen(running, ps(), []);
  expect(nextQuestion(1, running, [job()])).toBeUndefined();
  expect(nextQuestion(1, ended, [job({ status: "SUCCEEDED" })])).toBe(2000);
  expect(nextQuestion(2, ended, [])).toBe(8000);
  expect(nextQuestion(3, ended, [])).toBeUndefined();
  expect(nextQuestion(1, ended, [job({ status: "FAILED" })])).toBeUndefined();
});
