// Views that are a table or a chart of one part of the data each: fusion, guards, memory, constants, compile time, code.
import type { App, View } from "../app";
import { text } from "../code";
import { h } from "../dom";
import { bytes, count, seconds } from "../format";
import { IntervalChart, type Interval } from "../intervals";
import { buffer, tabs } from "../panel";
import type { Decision, Flame, MemoryValue } from "../schema";
import { Table } from "../table";
import { card } from "./overview";

export function fusion(app: App): View {
  const all = app.region().region.fusion ?? [];
  const choices: [string, (decision: Decision) => boolean][] = [["All", () => true], ["Fused", (decision) => decision.fused], ["Apart", (decision) => !decision.fused]];
  const table = new Table<Decision>({
    label: "Fusion decisions",
    rows: all,
    columns: [
      { title: "Decision", width: "6rem", cell: (row) => h(`span.verdict.${row.fused ? "yes" : "no"}`, row.fused ? "fused" : "apart"), sort: (row) => Number(row.fused) },
      ...(all.some((each) => each.what) ? [{ title: "What", width: "minmax(6rem, 1fr)", cell: (row: Decision) => row.what ?? "", sort: (row: Decision) => row.what ?? "" }] : []),
      { title: "First", width: "minmax(8rem, 1fr)", cell: (row) => buffer(app, row.a), sort: (row) => row.a ?? "" },
      { title: "Second", width: "minmax(8rem, 1fr)", cell: (row) => buffer(app, row.b), sort: (row) => row.b ?? "" },
      { title: "Why", width: "minmax(12rem, 3fr)", cell: (row) => row.why ?? "", sort: (row) => row.why ?? "" },
    ],
    pick: (row) => {
      const id = [row.b, row.a].map((name) => name && app.region().known(name)).find(Boolean);
      if (id) app.select(id);
    },
    empty: "No decisions about fusion were recorded.",
  });
  const buttons = choices.map(([name, keep]) => h("button.pill", { type: "button", "aria-pressed": String(name === "All"), onclick: () => {
    for (const each of buttons) each.setAttribute("aria-pressed", String(each.textContent!.startsWith(name)));
    table.setRows(all.filter(keep));
  } }, `${name} ${all.filter(keep).length}`));
  return { element: h("div.fill", h("div.pills", { role: "group", "aria-label": "Which decisions" }, buttons), table.element) };
}

export function guards(app: App): View {
  const { region, index } = app.region();
  const all = region.guards ?? [];
  const again = (app.report.records ?? []).filter((record) => record.kind === "recompile" && (record.region === undefined || record.region === index));
  const full = h("p.full.mono", { role: "status" });
  const table = new Table({
    label: "Guards",
    rows: all,
    columns: [
      { title: "What must hold", width: "minmax(14rem, 3fr)", cell: (row: (typeof all)[number]) => h("span.mono", { title: row.condition }, row.condition), sort: (row) => row.condition },
      { title: "Line", width: "minmax(8rem, 1fr)", cell: (row) => row.line ?? "", sort: (row) => row.line ?? "" },
      { title: "Checked", width: "7rem", cell: (row) => (row.slow === undefined ? "" : row.slow ? "in Python" : "in C++"), sort: (row) => Number(row.slow ?? -1) },
    ],
    pick: (row) => (full.textContent = row.condition),
    empty: "This region has no guards.",
  });
  return {
    element: h(
      "div.fill",
      again.length ? h("section", h("h2", `Compiled again ${count(again.length, "time")}`), h("div.cards", again.slice(0, 20).map((record) => card(app, record)))) : h("p.calm", "Nothing was compiled again for this region."),
      region.symbols?.length ? h("p", h("strong", "Sizes left open: "), region.symbols.join(", ")) : null,
      h("h2", "Guards"),
      full,
      table.element,
    ),
  };
}

const MEMORY_INKS: Record<string, string> = { arena: "--ink-arena", fresh: "--ink-fresh", heap: "--ink-heap", constant: "--ink-constant" };

export function memory(app: App): View {
  const { memory: plan } = app.region().region;
  const values = plan?.values ?? [];
  if (!plan || !values.length) return { element: h("p.note", "The memory plan of this region is not known.") };
  const placed = values.filter((value) => value.offset !== undefined);
  const end = Math.max(1, ...values.map((value) => value.last + 1));
  const top = Math.max(1, plan.arena ?? 0, ...placed.map((value) => value.offset! + value.size));
  const owner = (value: MemoryValue) => (app.region().node(value.name) ? value.name : plan.steps?.[value.first]);
  const describe = (value: MemoryValue) => `${value.name} · ${bytes(value.size)} · steps ${value.first}–${value.last}${value.offset === undefined ? "" : ` · at ${bytes(value.offset)}`}${value.kind ? ` · ${value.kind}` : ""}`;
  const chart = new IntervalChart<MemoryValue>({
    label: "Memory: values by step and place in the arena",
    height: 380,
    xMax: end,
    yMax: top,
    intervals: placed.map((value) => ({ x0: value.first, x1: value.last + 1, y0: value.offset!, y1: value.offset! + value.size, color: MEMORY_INKS[value.kind ?? "arena"] ?? "--ink-arena", label: value.name, data: value })),
    xText: (at) => (end < 20 ? at.toFixed(1).replace(".0", "") : String(Math.round(at))),
    yText: (at) => bytes(at),
    describe,
    pick: (value) => app.select(owner(value)),
  });
  const peak = highest(values, end);
  const table = new Table<MemoryValue>({
    label: "Values in memory",
    rows: [...values].sort((a, b) => b.size - a.size),
    columns: [
      { title: "Value", width: "minmax(10rem, 2fr)", cell: (row) => h("span.mono", row.name), sort: (row) => row.name },
      { title: "Kind", width: "7rem", cell: (row) => row.kind ?? "", sort: (row) => row.kind ?? "" },
      { title: "Size", width: "7rem", end: true, cell: (row) => bytes(row.size), sort: (row) => row.size },
      { title: "Place", width: "7rem", end: true, cell: (row) => (row.offset === undefined ? "" : bytes(row.offset)), sort: (row) => row.offset ?? -1 },
      { title: "From step", width: "6rem", end: true, cell: (row) => String(row.first), sort: (row) => row.first },
      { title: "To step", width: "6rem", end: true, cell: (row) => String(row.last), sort: (row) => row.last },
    ],
    pick: (row) => {
      const index = placed.indexOf(row);
      if (index >= 0) chart.choose(index);
      app.select(owner(row));
    },
  });
  const note = [plan.arena === undefined ? "" : `Arena ${bytes(plan.arena)}`, `most alive at once ${bytes(peak.size)}, at step ${peak.step}`, plan.saved ? `${bytes(plan.saved)} kept for backward` : ""].filter(Boolean).join(" · ");
  return { element: h("div.fill", h("p.note", note), chart.element, table.element) };
}

function highest(values: MemoryValue[], end: number): { size: number; step: number } {
  const change = new Float64Array(end + 1);
  for (const value of values) {
    if (value.kind === "constant") continue;
    change[value.first] = (change[value.first] ?? 0) + value.size;
    change[value.last + 1] = (change[value.last + 1] ?? 0) - value.size;
  }
  let now = 0;
  let best = { size: 0, step: 0 };
  for (let step = 0; step < end; step++) {
    now += change[step]!;
    if (now > best.size) best = { size: now, step };
  }
  return best;
}

export function constants(app: App): View {
  const all = app.region().region.constants ?? [];
  const table = new Table({
    label: "Constants",
    rows: all,
    columns: [
      { title: "Constant", width: "minmax(10rem, 1.4fr)", cell: (row: (typeof all)[number]) => h("span.mono", row.name), sort: (row) => row.name },
      { title: "Made from", width: "minmax(12rem, 3fr)", cell: (row) => (row.from ?? []).join(", "), sort: (row) => (row.from ?? []).join(", ") },
      { title: "Size", width: "7rem", end: true, cell: (row) => bytes(row.bytes), sort: (row) => row.bytes ?? -1 },
      { title: "Made again", width: "7rem", end: true, cell: (row) => (row.refreshed === undefined ? "–" : `${row.refreshed} ×`), sort: (row) => row.refreshed ?? -1 },
      { title: "When", width: "minmax(9rem, 2fr)", cell: (row) => row.when ?? "" },
    ],
    pick: (row) => app.region().node(row.name) && app.select(row.name),
    empty: "Nothing was computed ahead from weights.",
  });
  return { element: h("div.fill", h("p.note", "Computed once from weights and buffers, and again by itself when one of them changes."), table.element) };
}

const FLAME_INKS = ["--flame-0", "--flame-1", "--flame-2", "--flame-3"];

export function compileTime(app: App): View {
  const { region } = app.region();
  const flame = region.flame ?? [];
  const stages = Object.entries(region.seconds ?? {});
  const whole = stages.reduce((sum, [, time]) => sum + time, 0);
  const parts: HTMLElement[] = [];
  if (flame.length) {
    const depth = Math.max(...flame.map((each) => each.depth)) + 1;
    const start = Math.min(...flame.map((each) => each.start));
    const end = Math.max(...flame.map((each) => each.start + each.seconds)) - start;
    const intervals: Interval<Flame>[] = flame.map((each) => ({ x0: each.start - start, x1: each.start - start + each.seconds, y0: each.depth, y1: each.depth + 1, color: FLAME_INKS[hash(each.name) % FLAME_INKS.length]!, label: each.name, data: each }));
    parts.push(new IntervalChart<Flame>({ label: "Compile time", height: Math.min(420, depth * 24 + 22), xMax: end || 1e-9, yMax: depth, down: true, intervals, xText: seconds, describe: (each) => `${each.name} · ${seconds(each.seconds)}` }).element);
  }
  if (stages.length) {
    parts.push(new Table({
      label: "Stages",
      rows: stages.sort((a, b) => b[1] - a[1]),
      columns: [
        { title: "Stage", width: "minmax(10rem, 2fr)", cell: (row: [string, number]) => row[0], sort: (row) => row[0] },
        { title: "Time", width: "7rem", end: true, cell: (row) => seconds(row[1]), sort: (row) => row[1] },
        { title: "Share", width: "6rem", end: true, cell: (row) => `${((100 * row[1]) / (whole || 1)).toFixed(1)} %`, sort: (row) => row[1] },
      ],
    }).element);
  }
  if (!parts.length) return { element: h("p.note", "The times of this compilation were not kept.") };
  return { element: h("div.fill", h("p.note", whole ? `${seconds(whole)} in all` : ""), parts) };
}

function hash(name: string): number {
  let sum = 7;
  for (const letter of name) sum = (sum * 31 + letter.charCodeAt(0)) % 65521;
  return sum;
}

export function codeView(app: App): View {
  const { region } = app.region();
  const pages = [
    ["Program", region.program],
    ["Bytecode", region.bytecode],
    ["Definitions", region.definitions],
    ["Fusion", region.fusion_text],
    ["Saved for backward", region.saved],
  ] as const;
  const known = pages.flatMap(([title, at]) => {
    const content = at === undefined ? undefined : app.report.texts?.[at];
    return content === undefined ? [] : [{ title, make: () => text(title, content, 36) }];
  });
  if (!known.length) return { element: h("p.note", "No program text is known for this region.") };
  return { element: h("div.fill", h("p.note", "Code of single kernels stands in the panel of each."), tabs("Code of the region", known)) };
}
