// The model's own tree of modules, with the time that is spent inside each.
import type { App, View } from "../app";
import { h } from "../dom";
import { bytes, percent, quantity, seconds } from "../format";
import { operator, timeOf, type ModuleNode, type RegionModel } from "../model";
import type { Group } from "../schema";
import { bar, Table } from "../table";

interface Line {
  depth: number;
  module?: ModuleNode;
  group?: Group;
}

export function modules(app: App): View {
  const region = app.region();
  const open = new Set<ModuleNode>([region.modules]);
  for (let at = region.modules; at.children.length === 1; ) {
    at = at.children[0]!;
    open.add(at);
  }
  let lines = flatten(region.modules, open);
  const toggle = (line: Line, to?: boolean) => {
    if (!line.module) return;
    if (to ?? !open.has(line.module)) open.add(line.module);
    else open.delete(line.module);
    lines = flatten(region.modules, open);
    table.setRows(lines, true);
  };
  const table = new Table<Line>({
    label: "Modules",
    rows: lines,
    columns: [
      { title: "Module", width: "minmax(14rem, 2fr)", cell: (row) => name(row, open) },
      { title: "Time inside", width: "minmax(9rem, 1fr)", cell: (row) => (region.timed ? bar(total(row) / (region.time || 1), seconds(total(row))) : "–") },
      { title: "Share", width: "5rem", end: true, cell: (row) => (region.timed ? percent(total(row) / (region.time || 1)) : "–") },
      { title: "Own", width: "6rem", end: true, cell: (row) => (row.module && region.timed ? seconds(row.module.self) : "") },
      { title: "Kernels", width: "5rem", end: true, cell: (row) => (row.module ? String(row.module.kernels) : "") },
      { title: "Moved", width: "6.5rem", end: true, cell: (row) => bytes(row.module ? row.module.bytes : (row.group!.reads ?? 0) + (row.group!.writes ?? 0)) },
      { title: "Arithmetic", width: "7rem", end: true, cell: (row) => quantity(row.module ? row.module.flops : row.group!.flops, "FLOP") },
    ],
    expanded: (row) => (row.module && inside(row.module) ? open.has(row.module) : undefined),
    level: (row) => row.depth + 1,
    pick: (row) => (row.group ? app.select(row.group.id) : toggle(row)),
    key: (row, key) => {
      if (!row.module || (key !== "ArrowRight" && key !== "ArrowLeft")) return false;
      toggle(row, key === "ArrowRight");
      return true;
    },
    empty: "No modules are known for this region.",
  });
  return { element: h("div.fill", h("p.note", "Time of a kernel counts in the innermost module that holds all of it; a kernel shared by two modules counts in the one around both."), table.element) };
}

function inside(module: ModuleNode): boolean {
  return module.children.length + module.groups.length > 0;
}

function total(line: Line): number {
  return line.module ? line.module.time : timeOf(line.group!);
}

function flatten(root: ModuleNode, open: Set<ModuleNode>): Line[] {
  const lines: Line[] = [];
  const walk = (module: ModuleNode, depth: number) => {
    lines.push({ depth, module });
    if (!open.has(module)) return;
    for (const child of module.children) walk(child, depth + 1);
    for (const group of module.groups) if (group.kind !== "view") lines.push({ depth: depth + 1, group });
  };
  walk(root, 0);
  return lines;
}

function name(line: Line, open: Set<ModuleNode>): HTMLElement {
  const content = line.module
    ? [h("span.twist", { "aria-hidden": "true" }, inside(line.module) ? (open.has(line.module) ? "▾" : "▸") : ""), h("span", line.module.name), line.module.type ? h("span.dim", ` ${line.module.type}`) : null]
    : [h("span", { class: `swatch kind-${line.group!.kind ?? "kernel"}`, "aria-hidden": "true" }), h("span.mono", line.group!.name ?? line.group!.id)];
  const cell = h("span.tree", content);
  cell.style.paddingInlineStart = `${line.depth * 16}px`;
  return cell;
}

/** A short name of what a kernel computes: its operators, in order. */
export function operators(region: RegionModel, group: Group): string {
  let text = "";
  let last = "";
  for (const id of group.nodes ?? []) {
    const name = operator(region.node(id)?.op ?? id);
    if (name !== last) text += text ? ` → ${name}` : name;
    last = name;
  }
  return text;
}
