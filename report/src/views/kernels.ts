// All kernels and calls beside the machine's limits, the slowest first.
import type { App, View } from "../app";
import { h } from "../dom";
import { bytes, percent, quantity, seconds } from "../format";
import { bytesOf, timeOf } from "../model";
import { limit, roofline } from "../roofline";
import type { Group } from "../schema";
import { bar, Table, type Column } from "../table";
import { operators } from "./modules";

export function kernels(app: App): View {
  const region = app.region();
  const { machine } = app.report;
  const groups = [...region.groups.values()].filter((group) => group.kind !== "view").sort((a, b) => timeOf(b) - timeOf(a) || (a.step ?? 0) - (b.step ?? 0));
  const most = groups[0] ? timeOf(groups[0]) : 0;
  const reached = (group: Group) => {
    const best = limit(group, machine, region.node(group.nodes?.[0] ?? "")?.dtype);
    return best && group.time ? best.seconds / group.time : undefined;
  };
  const timed: Column<Group>[] = [
    { title: "Time", width: "minmax(8rem, 1fr)", cell: (row) => (row.time === undefined ? "–" : bar(most ? timeOf(row) / most : 0, seconds(timeOf(row)))), sort: timeOf },
    { title: "Share", width: "5rem", end: true, cell: (row) => (row.time === undefined || !region.time ? "–" : percent(timeOf(row) / region.time)), sort: timeOf },
  ];
  const rates: Column<Group>[] = [
    { title: "Rate", width: "7.5rem", end: true, cell: (row) => (row.time && row.flops ? quantity(row.flops / row.time, "FLOP/s") : "–"), sort: (row) => (row.time && row.flops ? row.flops / row.time : -1) },
    { title: "Of limit", width: "5.5rem", end: true, cell: (row) => { const share = reached(row); return share === undefined ? "–" : percent(share); }, sort: (row) => reached(row) ?? -1 },
  ];
  const table = new Table<Group>({
    label: "Kernels",
    rows: groups,
    columns: [
      { title: "Kernel", width: "minmax(9rem, 1.3fr)", cell: (row) => h("span.tree", h("span", { class: `swatch kind-${row.kind ?? "kernel"}`, "aria-hidden": "true" }), h("span.mono", { title: row.name }, row.name ?? row.id)), sort: (row) => row.name ?? row.id },
      { title: "Computes", width: "minmax(7rem, 2fr)", cell: (row) => operators(region, row), sort: (row) => operators(region, row) },
      ...(region.timed ? [...timed, ...rates] : []),
      { title: "Moved", width: "6.5rem", end: true, cell: (row) => bytes(bytesOf(row)), sort: (row) => bytesOf(row) ?? -1 },
      { title: "Arithmetic", width: "7rem", end: true, cell: (row) => quantity(row.flops, "FLOP"), sort: (row) => row.flops ?? -1 },
    ],
    pick: (row) => app.select(row.id),
    empty: "This region has no kernels.",
  });
  const frame = h("div.roof");
  const draw = (selected: string | undefined) => {
    const picture = roofline(region, selected, (id) => app.select(id), { width: 760, height: 270 });
    frame.replaceChildren(...(picture ? [picture] : []));
  };
  draw(app.place.selected);
  const once = region.timed && region.region.runs === 1;
  const note = once ? h("p.note", "Times are of one run, and the first run of a version is slower than the others. A call of what is compiled already shows those; so does ", h("code", "lampwork explain script.py"), ", with medians.") : null;
  return { element: h("div.fill", note, frame, table.element), selected: draw };
}
