// One field that finds kernels, nodes, operators, modules, source lines and records, in all that the region has.
import type { App } from "./app";
import { freshId, h, whenIdle } from "./dom";
import { results, shortPath } from "./format";
import { operator } from "./model";
import { operators } from "./views/modules";

interface Found {
  kind: string;
  title: string;
  note: string;
  open: () => void;
}

interface Entry extends Found {
  /** What is searched, in lower case; the title's own matches come first. */
  words: string;
}

const SHOWN = 60;

export class Search {
  private readonly dialog: HTMLDialogElement;
  private readonly field: HTMLInputElement;
  private readonly list = h("ul", { role: "listbox", id: freshId("found"), "aria-label": "Found" });
  private readonly status = h("p.dim", { role: "status" });
  private index: { region: unknown; entries: Entry[] } | undefined;
  private found: Found[] = [];
  private at = 0;

  constructor(private readonly app: App) {
    this.field = h("input", { type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": this.list.id, "aria-label": "Search", placeholder: "Names, operators, modules, source lines", autocomplete: "off", spellcheck: "false", oninput: () => this.find(), onkeydown: (event: KeyboardEvent) => this.onkey(event) });
    // Escape is handled here: what the browser does for it comes later, when the dialog may be open again.
    this.dialog = h("dialog.search", { "aria-label": "Search", closedby: "none", onclick: (event: MouseEvent) => event.target === this.dialog && this.close() }, this.field, this.status, this.list);
    document.body.append(this.dialog);
    whenIdle(() => this.entries());
  }

  open(): void {
    if (this.dialog.open) return;
    this.dialog.showModal();
    this.field.select();
    this.find();
  }

  private entries(): Entry[] {
    const region = this.app.region();
    if (this.index?.region === region) return this.index.entries;
    const { app } = this;
    const entries: Entry[] = [];
    const add = (kind: string, title: string, note: string, open: () => void) => entries.push({ kind, title, note, open, words: `${title} ${note}`.toLowerCase() });
    for (const group of region.groups.values()) add(group.kind ?? "kernel", group.name ?? group.id, operators(region, group), () => app.select(group.id));
    const modules = [region.modules];
    for (let module = modules.pop(); module; module = modules.pop()) {
      const { path, type } = module;
      if (path) add("module", path, type, () => app.go("modules", { selected: undefined }));
      modules.push(...module.children);
    }
    for (const id of region.history.order) {
      const node = region.node(id)!;
      add(node.kind && node.kind !== "op" ? node.kind : "node", id, `${operator(node.op)} ${results(node)} ${node.module ?? ""}`, () => app.select(id));
    }
    const byLine = new Map<string, string>();
    for (const id of region.history.order) {
      const last = region.stack(region.node(id)!).at(-1);
      if (last && !byLine.has(`${last[0]}:${last[1]}`)) byLine.set(`${last[0]}:${last[1]}`, id);
    }
    for (const [place, id] of byLine) {
      const cut = place.lastIndexOf(":");
      const [file, line] = [place.slice(0, cut), Number(place.slice(cut + 1))];
      const part = app.report.sources?.[file]?.find((each) => line >= each.first && line < each.first + each.lines.length);
      add("line", part?.lines[line - part.first]?.trim() ?? place, `${shortPath(file)}:${line}`, () => app.select(id));
    }
    for (const record of app.report.records ?? []) add(record.kind, record.cause ?? record.code ?? record.kind, `${record.code ?? ""} ${record.file ? shortPath(record.file) : ""} ${record.function ?? ""}`, () => app.go("overview", { selected: undefined }));
    for (const constant of region.region.constants ?? []) add("constant", constant.name, (constant.from ?? []).join(", "), () => app.go("constants", { selected: undefined }));
    this.index = { region, entries };
    return entries;
  }

  private find(): void {
    const words = this.field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const entries = this.entries();
    const matches = words.length ? entries.filter((entry) => words.every((word) => entry.words.includes(word))) : [];
    const first = words[0] ?? "";
    const rank = (entry: Entry) => {
      const title = entry.title.toLowerCase();
      return title === first ? 0 : title.startsWith(first) ? 1 : title.includes(first) ? 2 : 3;
    };
    const ranked: Entry[][] = [[], [], [], []];
    for (const match of matches) ranked[rank(match)]!.push(match);
    this.found = ranked.flat().slice(0, SHOWN);
    this.at = 0;
    this.status.textContent = !words.length ? `${entries.length.toLocaleString("en")} things to find` : matches.length > SHOWN ? `${matches.length.toLocaleString("en")} found, the first ${SHOWN} shown` : `${matches.length} found`;
    this.list.replaceChildren(...this.found.map((item, index) => h("li", { role: "option", id: `${this.list.id}-${index}`, onclick: () => this.take(index) }, h("span.chip", item.kind), h("span.title", item.title), h("span.dim", item.note))));
    this.mark();
  }

  private mark(): void {
    [...this.list.children].forEach((option, index) => option.setAttribute("aria-selected", String(index === this.at)));
    if (this.found.length) this.field.setAttribute("aria-activedescendant", `${this.list.id}-${this.at}`);
    else this.field.removeAttribute("aria-activedescendant");
    this.list.children[this.at]?.scrollIntoView({ block: "nearest" });
  }

  private close(): void {
    // A field that is hidden keeps the focus for a while, and with it the next key.
    this.field.blur();
    this.dialog.close();
  }

  private take(index: number): void {
    this.close();
    this.found[index]?.open();
  }

  private onkey(event: KeyboardEvent): void {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && this.found.length) this.at = (this.at + step + this.found.length) % this.found.length;
    else if (event.key === "Enter") this.take(this.at);
    else if (event.key === "Escape") this.close();
    else return;
    this.mark();
    event.preventDefault();
    event.stopPropagation();
  }
}
