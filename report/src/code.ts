// Text of any length in a fixed font, of which only the lines in sight are drawn; and excerpts of the user's source.
import { h } from "./dom";
import { count, shortPath } from "./format";
import type { Report } from "./schema";

const LINE = 18;
const PRINTED = 1500;

export interface CodeOptions {
  label: string;
  first?: number;
  marked?: number;
  most?: number;
}

export function code(text: string, options: CodeOptions): HTMLElement {
  const lines = text.replace(/\n$/, "").split("\n");
  const first = options.first ?? 1;
  const shown = Math.min(lines.length, options.most ?? 24);
  const width = lines.reduce((most, line) => Math.max(most, line.length), 0);
  const gutter = h("pre.gutter", { "aria-hidden": "true" });
  const body = h("pre.text");
  const mark = h("div.mark", { "aria-hidden": "true" });
  const inner = h("div.lines", mark, gutter, body);
  const scroller = h("div.code", { tabindex: 0, role: "region", "aria-label": options.label }, inner);
  scroller.classList.toggle("long", lines.length > shown);
  scroller.style.height = `${shown * LINE + 18}px`;
  inner.style.height = `${lines.length * LINE}px`;
  inner.style.minWidth = `calc(${width}ch + ${String(first + lines.length).length + 4}ch)`;
  mark.hidden = options.marked === undefined;
  if (options.marked !== undefined) mark.style.transform = `translateY(${(options.marked - first) * LINE}px)`;
  const draw = (from: number, to: number) => {
    const numbers = [];
    for (let line = from; line < to; line++) numbers.push(String(first + line));
    gutter.textContent = numbers.join("\n");
    body.textContent = lines.slice(from, to).join("\n");
    for (const part of [gutter, body]) part.style.transform = `translateY(${from * LINE}px)`;
  };
  const inSight = () => {
    const from = Math.max(0, Math.floor(scroller.scrollTop / LINE) - 40);
    draw(from, Math.min(lines.length, from + shown + 80));
  };
  scroller.addEventListener("scroll", inSight, { passive: true });
  const printing = () => (scroller.isConnected ? draw(0, Math.min(lines.length, PRINTED)) : removeEventListener("beforeprint", printing));
  addEventListener("beforeprint", printing);
  inSight();
  return scroller;
}

/** A long text under its title, with a way to copy all of it. */
export function text(title: string, content: string, most?: number): HTMLElement {
  const lines = content.replace(/\n$/, "").split("\n").length;
  const status = h("span", { role: "status" });
  const copy = h("button.small", {
    type: "button",
    onclick: async () => {
      status.textContent = (await copied(content)) ? "Copied" : "Could not copy";
      setTimeout(() => (status.textContent = ""), 1500);
    },
  }, "Copy");
  return h("div", h("div.bar-line", h("span.dim", count(lines, "line")), status, copy), code(content, { label: title, ...(most !== undefined && { most }) }));
}

async function copied(content: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(content);
    return true;
  } catch {
    return false;
  }
}

/** The lines around one of the user's lines, as far as the report has them. */
export function excerpt(report: Report, file: string, line: number, around = 3): HTMLElement | undefined {
  for (const part of report.sources?.[file] ?? []) {
    if (line < part.first || line >= part.first + part.lines.length) continue;
    const from = Math.max(part.first, line - around);
    const lines = part.lines.slice(from - part.first, line - part.first + around + 1);
    return code(lines.join("\n"), { label: `${shortPath(file)}, line ${line}`, first: from, marked: line, most: 2 * around + 1 });
  }
  return undefined;
}
