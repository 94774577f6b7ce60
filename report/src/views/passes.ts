// The graph after each pass: a slider, the rewrites of that pass, and the program with what they changed.
import type { App, View } from "../app";
import { h, link, set, whenIdle } from "../dom";
import { count, results, seconds } from "../format";
import { touched, type Row } from "../history";
import { operator } from "../model";
import type { GraphNode, PassStep, Rewrite } from "../schema";
import { Table } from "../table";

const SIGNS = { same: "", added: "+", removed: "−", changed: "~" };
const NAMES = { same: "", added: "added", removed: "removed", changed: "changed" };

export function passes(app: App): View {
  const { history } = app.region();
  const { steps } = history;
  if (!history.at(0).order.length && !steps.length) return { element: h("p.note", "The passes of this region were not recorded.") };
  const interesting = steps.map((step) => (step.rewrites ?? []).length + touched(step).length > 0 || Object.keys(step.hits ?? {}).length > 0);
  let step = interesting.indexOf(true) + 1;
  let onlyChanges = true;
  let chosen: number | undefined;
  let rows: Row[] = []; // those that changed
  let shown: Row[] = [];

  const slider = h("input", { type: "range", min: 0, max: steps.length, step: 1, "aria-label": "Pass", oninput: () => show(Number(slider.value)) });
  const title = h("h2");
  const summary = h("p.dim", { role: "status" });
  const only = h("input", { type: "checkbox", id: "only-changes", checked: true, onchange: () => { onlyChanges = only.checked; fill(); } });
  const marks = h("div.marks", { "aria-hidden": "true" }, steps.map((_, index) => {
    const mark = h("span", { class: interesting[index] ? "mark-on" : "" });
    mark.style.left = `${(100 * (index + 1)) / Math.max(1, steps.length)}%`;
    return mark;
  }));
  const rewrites = h("div.rewrites");
  const table = new Table<Row>({
    label: "Program after the pass",
    rows: [],
    columns: [
      { title: "Change", width: "6.2rem", cell: (row) => h("span.state", `${SIGNS[row.state]} ${NAMES[row.state]}`) },
      { title: "Node", width: "minmax(8rem, 1fr)", cell: (row) => h("span.mono", row.id) },
      { title: "Operator", width: "minmax(10rem, 2.4fr)", cell: expression },
      { title: "Result", width: "minmax(8rem, 1.2fr)", cell: (row) => results(row.node) },
      { title: "Module", width: "minmax(6rem, 1.2fr)", cell: (row) => row.node.module ?? "" },
    ],
    rowClass: (row) => (chosen !== undefined && row.rewrite !== chosen && row.state !== "same" ? `row-${row.state}-dim` : `row-${row.state}`),
    pick: (row) => app.select(row.id),
    empty: "This pass changed nothing.",
  });

  const fill = () => {
    shown = onlyChanges && step > 0 ? rows.filter((row) => chosen === undefined || row.rewrite === chosen) : history.rows(step, true);
    table.setRows(shown);
  };

  const choose = (index: number | undefined) => {
    chosen = index;
    for (const button of rewrites.querySelectorAll("button")) set(button, { "aria-pressed": String(button.dataset.index === String(index)) });
    fill();
    const first = shown.find((row) => row.rewrite === index && row.state !== "removed") ?? shown.find((row) => row.rewrite === index);
    if (index !== undefined && first && !onlyChanges) table.show(first);
  };

  const show = (to: number) => {
    step = Math.max(0, Math.min(steps.length, to));
    chosen = undefined;
    slider.value = String(step);
    const at = steps[step - 1];
    set(slider, { "aria-valuetext": at?.pass ?? "as recorded" });
    title.textContent = at?.pass ?? "As recorded";
    rows = history.rows(step, false);
    const sums = { added: 0, removed: 0, changed: 0, same: 0 };
    for (const row of rows) sums[row.state]++;
    const changes = (["added", "removed", "changed"] as const).filter((state) => sums[state]).map((state) => `${sums[state]} ${state}`);
    summary.textContent = [`Pass ${step} of ${steps.length}`, at?.seconds === undefined ? "" : seconds(at.seconds), at && !known(at) && at.before !== undefined && at.after !== undefined ? `${at.before} nodes before, ${at.after} after` : count(history.at(step).order.length, "node"), ...changes].filter(Boolean).join(" · ");
    rewrites.replaceChildren(...(at ? [...list(at.rewrites ?? [], choose), ...tallies(at)] : []));
    fill();
  };
  show(step);
  whenIdle(() => history.at(steps.length));
  const stepBy = (by: number) => h("button.small", { type: "button", "aria-label": by < 0 ? "Earlier pass" : "Later pass", onclick: () => show(step + by) }, by < 0 ? "‹" : "›");
  return {
    element: h("div.fill", h("div.slider", stepBy(-1), h("div.track", slider, marks), stepBy(1)), title, summary, rewrites, h("label.check", only, " Only what this pass changed"), table.element),
  };
}

function expression(row: Row): Node | string {
  const text = (node: GraphNode) => `${operator(node.op)}(${node.args ?? (node.inputs ?? []).join(", ")})`;
  if (!row.before) return h("span.mono", text(row.node));
  if (text(row.before) === text(row.node)) return h("span.mono", text(row.node), differences(row.before, row.node).flatMap(([name, old, now]) => [h("span.dim", `  ${name} `), old ? h("del", old) : null, " ", h("ins", now || "none")]));
  return h("span.mono", h("del", text(row.before)), " ", h("ins", text(row.node)));
}

/** What a pass changed of a node beside its call. */
function differences(before: GraphNode, after: GraphNode): [string, string, string][] {
  const facts: [string, (node: GraphNode) => string][] = [
    ["kind", (node) => node.kind ?? ""],
    ["flags", (node) => (node.flags ?? []).join(", ")],
    ["result", results],
    ["module", (node) => node.module ?? ""],
  ];
  return facts.map(([name, of]): [string, string, string] => [name, of(before), of(after)]).filter(([, old, now]) => old !== now);
}

/** Whether a pass says what it changed, not only how much. */
function known(step: PassStep): boolean {
  return step.rewrites !== undefined || touched(step).length > 0;
}

/** Numbers of what was applied, where nothing more is known, and of what matched but was not applied. */
function tallies(step: PassStep): HTMLElement[] {
  const hits = known(step) ? [] : Object.entries(step.hits ?? {});
  const refused = step.refused ?? [];
  return [
    ...(hits.length ? [h("p.dim", `Applied: ${hits.map(([name, times]) => `${name} × ${times}`).join(", ")}`)] : []),
    ...(refused.length ? [h("details", h("summary", `Matched, but not applied (${refused.length})`), h("ul.why", refused.slice(0, 200).map((each) => h("li", h("code", each.name), each.times && each.times > 1 ? ` × ${each.times}` : null, h("span.dim", ` ${each.why ?? ""}`)))))] : []),
  ];
}

/** Rewrites of one name share a button; the first and the others are gone through by pressing it again. */
function list(rewrites: Rewrite[], choose: (index: number | undefined) => void): HTMLElement[] {
  if (!rewrites.length) return [];
  const byName = new Map<string, number[]>();
  rewrites.forEach((rewrite, index) => {
    const indices = byName.get(rewrite.name);
    if (indices) indices.push(index);
    else byName.set(rewrite.name, [index]);
  });
  const detail = h("p.dim", { role: "status" });
  const buttons = [...byName].map(([name, indices]) => {
    let at = -1;
    const button = h("button.pill", { type: "button", "aria-pressed": "false", onclick: () => {
      at = at + 1 >= indices.length ? -1 : at + 1;
      const index = at < 0 ? undefined : indices[at]!;
      button.dataset.index = index === undefined ? "none" : String(index);
      choose(index);
      const rewrite = index === undefined ? undefined : rewrites[index]!;
      detail.replaceChildren(rewrite ? `${name}, ${at + 1} of ${indices.length}${rewrite.source ? ` · ${rewrite.source}` : ""}${rewrite.note ? ` · ${rewrite.note}` : ""}` : "");
    } }, name, h("span.dim", ` ${indices.length > 1 ? `× ${indices.length}` : ""}`));
    return button;
  });
  return [h("div.pills", { role: "group", "aria-label": "Rewrites of this pass" }, buttons, buttons.length > 1 ? link("all", () => choose(undefined)) : null), detail];
}
