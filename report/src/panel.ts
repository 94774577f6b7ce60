// All that is known of one kernel or node, from the user's line down to the machine's instructions.
import type { App } from "./app";
import { excerpt, text } from "./code";
import { freshId, h, link } from "./dom";
import { bytes, count, percent, quantity, results, seconds, shortPath } from "./format";
import { bytesOf, operator, timeOf, type RegionModel } from "./model";
import { limit, roofline } from "./roofline";
import type { Decision, Frame, GraphNode, Group, NodeId } from "./schema";

export function panel(app: App, id: string): HTMLElement {
  const region = app.region();
  const group = region.groups.get(id) ?? region.groupOf.get(id);
  const node = region.groups.has(id) ? undefined : region.node(id);
  if (!group && !node) return h("div.body", h("h2", id), h("p", "This report knows nothing of it."));
  const nodes = node ? [node] : (group?.nodes ?? []).map((each) => region.node(each)).filter((each) => each !== undefined);
  return h(
    "div.body",
    head(app, region, group, node),
    node ? nodeFacts(app, node) : null,
    group ? groupFacts(app, region, group, node) : null,
    sources(app, nodes),
    node ? null : section("ATen", h("ol.nodes", nodes.map((each) => h("li", nodeLine(app, each)))), true),
    dataflow(app, region, nodes),
    reasons(app, region, id, group),
    group ? texts(app, group) : null,
  );
}

function head(app: App, region: RegionModel, group: Group | undefined, node: GraphNode | undefined): HTMLElement {
  const kind = node ? (node.kind && node.kind !== "op" ? node.kind : "node") : (group?.kind ?? "kernel");
  const path = node ? node.module : group && region.modulePath(group);
  const modules = path ? link(path, () => app.go("modules", { selected: undefined }), "Show the modules") : null;
  return h(
    "div",
    h("p.dim", h("span", { class: `swatch kind-${node ? "node" : kind}`, "aria-hidden": "true" }), kind),
    h("h2", { id: "panel-title", tabindex: -1 }, node ? node.id : (group?.name ?? group?.id ?? "")),
    h("p.dim", modules, node?.type ? ` ${node.type}` : null),
    h("p.actions", h("button.small", { type: "button", onclick: () => app.go("graph") }, "Show in the graph")),
  );
}

function facts(rows: [string, Node | string | undefined][]): HTMLElement {
  return h("dl.facts", rows.filter(([, value]) => value !== undefined && value !== "").flatMap(([name, value]) => [h("dt", name), h("dd", value!)]));
}

function nodeFacts(app: App, node: GraphNode): HTMLElement {
  const groups = app.region().groupsOf.get(node.id) ?? [];
  return facts([
    ["Operator", node.op],
    ["Arguments", node.args],
    ["Result", results(node)],
    ["Marked", node.flags?.join(", ")],
    ["Size", node.bytes === undefined ? undefined : bytes(node.bytes)],
    ["Computed by", groups.length ? h("ul.nodes", groups.map((group) => h("li", link(group.name ?? group.id, () => app.select(group.id))))) : undefined],
  ]);
}

function groupFacts(app: App, region: RegionModel, group: Group, node: GraphNode | undefined): HTMLElement | null {
  if (node) return null;
  const { machine } = app.report;
  const dtype = (group.nodes ?? []).map((id) => region.node(id)?.dtype).find((each) => each !== undefined);
  const best = limit(group, machine, dtype);
  const size = bytesOf(group);
  const share = group.time !== undefined && region.time ? ` (${percent(timeOf(group) / region.time)} of all)` : "";
  const picture = roofline(region, group.id, (other) => app.select(other));
  return h(
    "div",
    facts([
      ["Time", group.time === undefined ? undefined : `${seconds(group.time)}${share}`],
      ["Calls in a run", group.calls === undefined || group.calls === 1 ? undefined : String(group.calls)],
      ["Step", group.step === undefined ? undefined : String(group.step)],
      ["Reads", group.reads === undefined ? undefined : bytes(group.reads)],
      ["Writes", group.writes === undefined ? undefined : bytes(group.writes)],
      ["Arithmetic", group.flops === undefined ? undefined : quantity(group.flops, "FLOP")],
      ["Reached", group.time && group.flops ? quantity(group.flops / group.time, "FLOP/s") : undefined],
      ["Memory rate", group.time && size ? quantity(size / group.time, "B/s") : undefined],
      ["Machine’s limit", best && group.time ? `${percent(best.seconds / group.time)} of it, set by ${best.by}` : undefined],
    ]),
    picture ?? null,
  );
}

function section(title: string, content: Node, open = false): HTMLElement {
  return h("details", { open }, h("summary", title), content);
}

function sources(app: App, nodes: GraphNode[]): HTMLElement | null {
  const frames = new Map<string, Frame[]>();
  for (const node of nodes) {
    const stack = app.region().stack(node);
    const last = stack[stack.length - 1];
    if (last && !frames.has(`${last[0]}:${last[1]}`)) frames.set(`${last[0]}:${last[1]}`, stack);
  }
  if (!frames.size) return null;
  const shown = [...frames.values()].slice(0, 6);
  const places = shown.map((stack, index) => {
    const [file, line, name] = stack[stack.length - 1]!;
    const outer = stack.slice(0, -1).reverse();
    return h(
      "div.place",
      h("p.where", { title: file }, `${shortPath(file)}:${line}`, name ? h("span.dim", ` in ${name}`) : null),
      index < 3 ? (excerpt(app.report, file, line, 2) ?? null) : null,
      outer.length ? h("details.inner", h("summary", `called from ${count(outer.length, "frame")}`), h("ol.frames", outer.map(([at, row, function_]) => h("li", { title: at }, `${shortPath(at)}:${row} in ${function_}`)))) : null,
    );
  });
  if (frames.size > shown.length) places.push(h("div.place", h("p.dim", `and ${frames.size - shown.length} more lines`)));
  return section(frames.size === 1 ? "Source line" : `Source lines (${frames.size})`, h("div", places), true);
}

export function nodeLine(app: App, node: GraphNode): HTMLElement {
  return h("code", link(node.id, () => app.select(node.id)), ` = ${node.op.replace(/^aten::/, "")}(`, h("span.dim", node.args ?? (node.inputs ?? []).join(", ")), ")", h("span.shape", ` ${results(node)}`));
}

function dataflow(app: App, region: RegionModel, nodes: GraphNode[]): HTMLElement | null {
  const own = new Set(nodes.map((node) => node.id));
  const inputs = new Set(nodes.flatMap((node) => node.inputs ?? []).filter((id) => !own.has(id)));
  const readers = new Set(nodes.flatMap((node) => region.readers.get(node.id) ?? []).filter((id) => !own.has(id)));
  if (!inputs.size && !readers.size) return null;
  const list = (title: string, ids: Set<NodeId>) =>
    ids.size
      ? h("div", h("h4", title), h("ul.nodes", [...ids].slice(0, 40).map((id) => h("li", reference(app, region, id))), ids.size > 40 ? h("li.dim", `and ${ids.size - 40} more`) : null))
      : null;
  return section("Reads and readers", h("div", list("Reads", inputs), list("Read by", readers)));
}

function reference(app: App, region: RegionModel, id: NodeId): HTMLElement {
  const node = region.node(id);
  const group = region.groupOf.get(id);
  return h("code", link(id, () => app.select(id)), h("span.dim", ` ${node ? (node.kind && node.kind !== "op" ? node.kind : operator(node.op)) : ""} ${node ? results(node) : ""}`), group ? [" in ", link(group.name ?? group.id, () => app.select(group.id))] : null);
}

function reasons(app: App, region: RegionModel, id: string, group: Group | undefined): HTMLElement | null {
  const ids = new Set([id, ...(group ? [group.id, ...(group.nodes ?? [])] : [])]);
  const decisions = new Set<Decision>();
  for (const each of ids) for (const decision of region.decisions.get(each) ?? []) decisions.add(decision);
  const why = group?.why ?? [];
  if (!decisions.size && !why.length) return null;
  const line = (decision: Decision) =>
    h("li", h(`span.verdict.${decision.fused ? "yes" : "no"}`, decision.fused ? "fused" : "apart"), " ", decision.what ? `${decision.what} ` : null, buffer(app, decision.a), decision.a && decision.b ? " · " : null, buffer(app, decision.b), decision.why ? h("div.dim", decision.why) : null);
  return section("Why this kernel", h("div", h("ul.why", why.map((each) => h("li", each))), h("ul.why", [...decisions].slice(0, 60).map(line))), true);
}

/** The name of a buffer, which leads to what computes it. */
export function buffer(app: App, name: string | undefined): Node | string {
  const id = name === undefined ? undefined : app.region().known(name);
  return id === undefined ? (name ?? "") : link(name!, () => app.select(id));
}

function texts(app: App, group: Group): HTMLElement | null {
  const known = (["loops", "llvm", "assembly"] as const)
    .map((stage) => ({ stage, content: app.report.texts?.[group.texts?.[stage] ?? -1] }))
    .filter((each): each is { stage: "loops" | "llvm" | "assembly"; content: string } => each.content !== undefined);
  if (!known.length) return null;
  const titles = { loops: "Loops", llvm: "LLVM", assembly: "Assembly" };
  return section("Generated code", tabs("Generated code", known.map(({ stage, content }) => ({ title: titles[stage], make: () => text(titles[stage], content, 22) }))), true);
}

/** Tabs as the keyboard knows them: arrows choose, Tab goes into the page of the chosen one. */
export function tabs(label: string, pages: { title: string; make: () => HTMLElement }[]): HTMLElement {
  const page = h("div.tabpage", { role: "tabpanel", id: freshId("page") });
  const buttons = pages.map((each, index) =>
    h("button.tab", { type: "button", role: "tab", id: freshId("tab"), "aria-controls": page.id, onclick: () => choose(index), onkeydown: (event: KeyboardEvent) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) choose((index + step + pages.length) % pages.length, true);
    } }, each.title),
  );
  const choose = (index: number, focus = false) => {
    buttons.forEach((button, at) => {
      button.setAttribute("aria-selected", String(at === index));
      button.tabIndex = at === index ? 0 : -1;
    });
    page.setAttribute("aria-labelledby", buttons[index]!.id);
    page.replaceChildren(pages[index]!.make());
    if (focus) buttons[index]!.focus();
  };
  choose(0);
  return h("div.tabs", h("div.tablist", { role: "tablist", "aria-label": label }, buttons), page);
}
