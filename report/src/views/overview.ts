// What a reader asks first: what is wrong and how to mend it, then time, memory, and what ran where.
import type { App, View } from "../app";
import { excerpt } from "../code";
import { h, link } from "../dom";
import { bytes, count, percent, plain, seconds, shortPath } from "../format";
import { timeOf, type ModuleNode, type RegionModel } from "../model";
import type { Record_ } from "../schema";
import { bar, Table } from "../table";
import { operators } from "./modules";

export function overview(app: App): View {
  const region = app.region();
  return {
    element: h("div.stack", app.regions.length > 1 ? h("h2.region", region.label) : null, numbers(app, region), records(app), region.timed ? h("div.columns", slowest(app, region), modules(app, region)) : null, kinds(region), partition(app, region), regions(app), functions(app), settings(app)),
  };
}

function numbers(app: App, region: RegionModel): HTMLElement {
  const { region: data } = region;
  const compile = Object.values(data.seconds ?? {}).reduce((sum, each) => sum + each, 0);
  const groups = data.groups ?? [];
  const records = app.report.records ?? [];
  const tiles: [string, string, string][] = [];
  const time = data.time ?? (region.timed ? region.time : undefined);
  const runs = data.runs === undefined ? "" : data.runs === 1 ? ", seen once" : `, median of ${data.runs}`;
  if (time !== undefined) tiles.push([seconds(time), `a run${runs}`, data.time === undefined ? "sum of its kernels" : `${percent(region.time / data.time)} in kernels`]);
  if (groups.length) tiles.push([String(groups.filter((group) => group.kind !== "view").length), "kernels and calls", `from ${count(region.operators.length, "operator")}`]);
  if (data.memory?.arena !== undefined) tiles.push([bytes(data.memory.arena), "memory of intermediates", data.memory.saved ? `${bytes(data.memory.saved)} kept for backward` : ""]);
  if (compile) tiles.push([seconds(compile), "to compile", data.hits === undefined ? "" : `run ${count(data.hits, "time")} since`]);
  const breaks = records.filter((record) => record.kind === "break").length;
  tiles.push([String(breaks), breaks === 1 ? "graph break" : "graph breaks", count(app.report.regions.length, "region")]);
  return h("dl.tiles", tiles.map(([value, name, note]) => h("div", h("dt", name), h("dd", h("strong", value), h("span", note)))));
}

const ORDER = ["fault", "break", "refusal", "recompile"];
const TITLES: Record<string, string> = { fault: "Fault", break: "Graph break", refusal: "Refused", recompile: "Compiled again" };

function records(app: App): HTMLElement {
  const all = distinct(app.report.records ?? []).sort((a, b) => rank(a) - rank(b));
  if (!all.length) return h("p.calm", "No breaks, refusals or recompilations: all of it was compiled, once.");
  const list = h("div.cards", all.slice(0, 12).map((record) => card(app, record, record.times)));
  if (all.length > 12) {
    const more = h("button", { type: "button", onclick: () => {
      more.remove();
      list.append(...all.slice(12, 200).map((record) => card(app, record, record.times)));
      if (all.length > 200) list.append(h("p.dim", `and ${all.length - 200} more`));
    } }, `Show ${Math.min(all.length, 200) - 12} more`);
    return h("section", h("h2", "What to mend first"), list, more);
  }
  return h("section", h("h2", "What to mend first"), list);
}

function rank(record: Record_): number {
  const at = ORDER.indexOf(record.kind);
  return at < 0 ? ORDER.length : at;
}

/** What happened at one place for one reason is one thing to mend, however often it happened. */
export function distinct(records: Record_[]): (Record_ & { times: number })[] {
  const found = new Map<string, Record_ & { times: number }>();
  for (const record of records) {
    const { kind, code, cause, file, line, module, values } = record;
    const key = JSON.stringify([kind, code, cause, file, line, module, values]);
    const other = found.get(key);
    if (other) other.times++;
    else found.set(key, { ...record, times: 1 });
  }
  return [...found.values()];
}

export function card(app: App, record: Record_, times = 1): HTMLElement {
  const where = record.file ? `${shortPath(record.file)}${record.line === undefined ? "" : `:${record.line}`}` : "";
  const [old, now] = record.values ?? [];
  return h(
    `article.card.record-${ORDER.includes(record.kind) ? record.kind : "other"}`,
    h("h3", h("span.chip", TITLES[record.kind] ?? record.kind), record.code ? h("code", record.code) : null, h("span.where", { title: record.file }, where, record.function ? h("span.dim", ` in ${record.function}`) : null), times > 1 ? h("span.dim", `${times} times`) : null),
    record.cause ? h("p", record.cause) : null,
    record.values ? h("p.values", h("span", "compiled for "), h("code.old", plain(old)), h("span", " now "), h("code.new", plain(now))) : null,
    record.file && record.line !== undefined ? (excerpt(app.report, record.file, record.line, 2) ?? null) : null,
    record.fix ? h("p.fix", h("strong", "Fix "), record.fix) : null,
    record.module ? h("p.dim", `Module ${record.module}`) : null,
  );
}

function slowest(app: App, region: RegionModel): HTMLElement | null {
  if (!region.timed) return null;
  const top = [...region.groups.values()].filter((group) => group.time).sort((a, b) => timeOf(b) - timeOf(a)).slice(0, 8);
  const most = timeOf(top[0]!);
  return h("section", h("h2", "Slowest kernels"), h("ul.ranks", top.map((group) => h("li", h("span.ellipsis", link(group.name ?? group.id, () => app.select(group.id)), h("span.dim", ` ${operators(region, group)}`)), bar(timeOf(group) / most, seconds(timeOf(group)))))), h("p", link("All kernels", () => app.go("kernels", { selected: undefined }))));
}

function modules(app: App, region: RegionModel): HTMLElement | null {
  if (!region.timed || !region.modules.children.length) return null;
  const top = heaviest(region.modules);
  if (!top.length) return null;
  return h("section", h("h2", "Time by module"), h("ul.ranks", top.map((each) => h("li", h("span.ellipsis", { title: each.path }, each.path), bar(each.time / region.time, `${seconds(each.time)} · ${percent(each.time / region.time)}`)))), h("p", link("All modules", () => app.go("modules", { selected: undefined }))));
}

/** Modules that say where the time goes: the heaviest is opened up as long as few enough are in the list. */
function heaviest(root: ModuleNode): ModuleNode[] {
  const byTime = (modules: ModuleNode[]) => modules.filter((each) => each.time).sort((a, b) => b.time - a.time);
  let list = byTime(root.children);
  for (;;) {
    const widest = list.find((each) => each.children.length && each.self < each.time / 2);
    if (!widest || list.length - 1 + widest.children.length > 14) return list.slice(0, 8);
    list = byTime([...list.filter((each) => each !== widest), ...widest.children]);
  }
}

function kinds(region: RegionModel): HTMLElement | null {
  if (!region.timed) return null;
  const sums = new Map<string, number>();
  for (const group of region.groups.values()) sums.set(group.kind ?? "kernel", (sums.get(group.kind ?? "kernel") ?? 0) + timeOf(group));
  const sorted = [...sums].filter(([, time]) => time > 0).sort((a, b) => b[1] - a[1]);
  const strip = h("div.strip", { "aria-hidden": "true" }, sorted.map(([kind, time]) => {
    const part = h("span", { class: `kind-${kind}` });
    part.style.flexGrow = String((1000 * time) / region.time);
    return part;
  }));
  return h("section", h("h2", "Time by kind of work"), strip, h("ul.legend", sorted.map(([kind, time]) => h("li", h("span", { class: `swatch kind-${kind}`, "aria-hidden": "true" }), `${kind} `, h("span.dim", `${seconds(time)} · ${percent(time / region.time)}`)))));
}

function partition(app: App, region: RegionModel): HTMLElement | null {
  const parts = region.region.partition;
  if (!parts?.length) return null;
  return h("section", h("h2", "What ran where"), new Table({
    label: "What ran where",
    rows: parts,
    most: 8,
    columns: [
      { title: "Backend", width: "10rem", cell: (row) => row.backend, sort: (row) => row.backend },
      { title: "Nodes", width: "5rem", end: true, cell: (row) => String(row.nodes?.length ?? 0), sort: (row) => row.nodes?.length ?? 0 },
      { title: "Why", width: "1fr", cell: (row) => row.why ?? "" },
    ],
    pick: (row) => row.nodes?.[0] !== undefined && app.select(row.nodes[0]),
  }).element);
}

function regions(app: App): HTMLElement | null {
  if (app.regions.length < 2) return null;
  return h("section", h("h2", "Regions"), new Table({
    label: "Regions",
    rows: app.regions,
    most: 8,
    columns: [
      { title: "Region", width: "2fr", cell: (row) => row.label, sort: (row) => row.label },
      { title: "Runs", width: "5rem", end: true, cell: (row) => String(data(app, row.index).hits ?? "–"), sort: (row) => data(app, row.index).hits ?? 0 },
      { title: "Kernels", width: "5rem", end: true, cell: (row) => String(data(app, row.index).groups?.length ?? 0), sort: (row) => data(app, row.index).groups?.length ?? 0 },
      { title: "Time", width: "6rem", end: true, cell: (row) => seconds(time(app, row.index)), sort: (row) => time(app, row.index) ?? 0 },
      { title: "Memory", width: "6rem", end: true, cell: (row) => bytes(data(app, row.index).memory?.arena), sort: (row) => data(app, row.index).memory?.arena ?? 0 },
    ],
    pick: (row) => app.go("overview", { region: row.index, selected: undefined }),
  }).element);
}

function data(app: App, index: number) {
  return app.regionData(index);
}

function time(app: App, index: number): number | undefined {
  const region = data(app, index);
  if (region.time !== undefined) return region.time;
  const timed = (region.groups ?? []).filter((group) => group.time !== undefined);
  return timed.length ? timed.reduce((sum, group) => sum + timeOf(group), 0) : undefined;
}

function functions(app: App): HTMLElement | null {
  const all = app.report.functions;
  if (!all?.length) return null;
  return h("section", h("h2", "Functions"), h("ul.plain", all.slice(0, 50).map((each) => h("li", h("code", each.name), " ", h("span.dim", [count(each.regions?.length ?? 0, "region"), ...(each.refusals?.length ? [`refused: ${each.refusals.map(plain).join("; ")}`] : [])].join(", "))))));
}

function settings(app: App): HTMLElement | null {
  const { machine, options } = app.report;
  const rows: [string, string][] = [];
  if (machine?.cpu) rows.push(["Machine", [machine.cpu, machine.isa, machine.threads === undefined ? "" : count(machine.threads, "thread")].filter(Boolean).join(", ")]);
  if (machine?.peak_gbs) rows.push(["Memory rate", `${machine.peak_gbs.toFixed(1)} GB/s`]);
  for (const [dtype, peak] of Object.entries(machine?.peak_gflops ?? {})) rows.push([`Peak, ${dtype}`, `${peak.toFixed(0)} GFLOP/s`]);
  for (const [name, value] of Object.entries(options ?? {})) if (value !== "" && value !== null) rows.push([name, plain(value)]);
  if (!rows.length) return null;
  return h("section", h("h2", "Machine and options"), h("dl.facts.settings", rows.flatMap(([name, value]) => [h("dt", name), h("dd", value)])));
}
