import { expect, test } from "vitest";
import { JsonLines, lastDocument } from "../src/model/jsonLines";

test("documents come whole, however the pieces are cut", () => {
  const text = '{"a": 1}\n{"b": "x\\ny"}\n';
  for (let cut = 0; cut <= text.length; cut++) {
    const lines = new JsonLines();
    const found = [...lines.push(text.slice(0, cut)), ...lines.push(text.slice(cut)), ...lines.end()];
    expect(found).toEqual([
      { kind: "document", document: { a: 1 } },
      { kind: "document", document: { b: "x\ny" } },
    ]);
  }
});

test("a broken line is told, and the next ones are read", () => {
  const lines = new JsonLines();
  expect(lines.push('{"a": \nWARNING: x\n\n  \n{"b": 2}\r\n')).toEqual([
    { kind: "broken", text: '{"a": ' },
    { kind: "broken", text: "WARNING: x" },
    { kind: "document", document: { b: 2 } },
  ]);
});

test("the last line may lack its end", () => {
  const lines = new JsonLines();
  expect(lines.push('{"a": 1}')).toEqual([]);
  expect(lines.end()).toEqual([{ kind: "document", document: { a: 1 } }]);
  expect(lines.end()).toEqual([]);
});

test("of a whole output the last document counts", () => {
  expect(lastDocument('noise\n{"a": 1}\n{"a": 2}\n')).toEqual({ a: 2 });
  expect(lastDocument("noise")).toBeUndefined();
});
