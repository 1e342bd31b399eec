import { expect, test } from "vitest";
import { debugChoices } from "../src/model/choices";
import { Offers } from "../src/model/offers";
import { cluster, live, ps, stop, worker } from "./records";

function running(...jobs: string[]): ReturnType<typeof debugChoices> {
  const workers = jobs.map((job) => worker({ job_id: job }));
  const stops = jobs.map((job, at) => stop({ id: `a-${at}`, job_id: job }));
  return debugChoices([cluster({ watch: live(ps({ workers, stops })) })], []);
}

test("the newest job is offered once, a later one again", () => {
  const offers = new Offers();
  expect(offers.next(running("01000000", "02000000"))?.configuration).toMatchObject({ all: true, job: "02000000" });
  expect(offers.next(running("01000000", "02000000"))).toBeUndefined();
  expect(offers.next(running("01000000", "02000000", "03000000"))?.configuration.job).toBe("03000000");
});

test("a job of another cluster is another job", () => {
  const offers = new Offers();
  const of = (key: string): ReturnType<typeof debugChoices> =>
    debugChoices([cluster({ key, watch: live(ps({ workers: [worker({ job_id: "01000000" })] })) })], []);
  expect(offers.next(of("http://a:8265"))).toBeDefined();
  expect(offers.next(of("http://b:8265"))).toBeDefined();
  expect(offers.next(of("http://a:8265"))).toBeUndefined();
});

test("without a job nothing is offered", () => {
  expect(new Offers().next(debugChoices([cluster({ watch: live(ps({ stops: [stop()] })) })], []))).toBeUndefined();
  expect(new Offers().next([])).toBeUndefined();
});
