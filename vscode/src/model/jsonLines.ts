/** Lines of JSON out of pieces of text, cut anywhere; a line that is no JSON is told, and the next ones are read. */

export type Line =
  { readonly kind: "document"; readonly document: unknown } | { readonly kind: "broken"; readonly text: string };

export class JsonLines {
  private rest = "";

  /** The whole lines that this piece completes. */
  push(piece: string): Line[] {
    const parts = (this.rest + piece).split("\n");
    this.rest = parts.pop() ?? "";
    return parts.flatMap(read);
  }

  /** What stands after the last line break: a process may end without one. */
  end(): Line[] {
    const last = this.rest;
    this.rest = "";
    return read(last);
  }
}

function read(text: string): Line[] {
  if (!text.trim()) {
    return [];
  }
  try {
    return [{ kind: "document", document: JSON.parse(text) as unknown }];
  } catch {
    return [{ kind: "broken", text }];
  }
}

/** The last document of a whole output, or undefined. */
export function lastDocument(text: string): unknown {
  const lines = new JsonLines();
  const found = [...lines.push(text), ...lines.end()].filter((line) => line.kind === "document");
  return found.at(-1)?.document;
}
