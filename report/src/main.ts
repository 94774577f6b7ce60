// The frame around the views: header, navigation, the panel at the side, keys, and the place in the address.
import { readPlace, writePlace, type App, type Place, type View, type ViewKind } from "./app";
import { h, set, whenIdle } from "./dom";
import { load } from "./load";
import { RegionModel } from "./model";
import { panel } from "./panel";
import { Search } from "./search";
import type { Region, Report } from "./schema";
import { codeView, compileTime, constants, fusion, guards, memory } from "./views/facts";
import { graph, prepare } from "./views/graph";
import { kernels } from "./views/kernels";
import { modules } from "./views/modules";
import { overview } from "./views/overview";
import { passes } from "./views/passes";

const VIEWS: ViewKind[] = [
  { id: "overview", title: "Overview", make: overview },
  { id: "modules", title: "Modules", make: modules },
  { id: "kernels", title: "Kernels", count: (region) => [...region.groups.values()].filter((group) => group.kind !== "view").length, make: kernels },
  { id: "graph", title: "Graph", count: (region) => region.operators.length, make: graph },
  { id: "passes", title: "Passes", count: (region) => region.history.steps.length, make: passes },
  { id: "fusion", title: "Fusion", count: (region) => region.region.fusion?.length ?? 0, make: fusion },
  { id: "guards", title: "Guards", count: (region) => region.region.guards?.length ?? 0, make: guards },
  { id: "memory", title: "Memory", count: (region) => region.region.memory?.values?.length ?? 0, make: memory },
  { id: "constants", title: "Constants", count: (region) => region.region.constants?.length ?? 0, make: constants },
  { id: "compile", title: "Compile time", make: compileTime },
  { id: "code", title: "Code", make: codeView },
];

class Page implements App {
  place: Place;
  readonly regions: { label: string; index: number }[] = [];
  private readonly data: Region[] = [];
  private readonly models = new Map<number, RegionModel>();
  private readonly main = h("main", { id: "view", tabindex: -1 });
  private readonly aside = h("aside", { "aria-labelledby": "panel-title" });
  private readonly navigation = h("nav", { "aria-label": "Views" });
  private readonly heading = h("h1");
  private readonly search: Search;
  private view: View | undefined;
  private made: string | undefined;
  private cameFrom: HTMLElement | undefined;

  constructor(readonly report: Report) {
    const add = (region: Region, label: string) => {
      this.regions.push({ label, index: this.data.length });
      this.data.push(region);
    };
    // A record's region counts the report's own regions, so backwards come behind all of them.
    report.regions.forEach((region, index) => add(region, region.name || `region ${index}`));
    report.regions.forEach((region, index) => region.backward && add(region.backward, `${region.name || `region ${index}`} · backward`));
    this.place = location.hash ? this.valid(readPlace(location.hash)) : { view: "overview", region: this.largest(), selected: undefined };
    this.search = new Search(this);
    document.title = report.title ? `${report.title} – Lampwork report` : "Lampwork report";
    document.getElementById("page")!.replaceChildren(this.header(), h("div.frame", this.navigation, this.main, this.aside), this.footer());
    addEventListener("hashchange", () => {
      const place = this.valid(readPlace(location.hash));
      if (writePlace(place) !== writePlace(this.place)) this.change(place);
    });
    document.addEventListener("keydown", (event) => this.onkey(event));
    this.draw();
  }

  region(index = this.place.region): RegionModel {
    let model = this.models.get(index);
    if (!model) {
      const { label } = this.regions[index] ?? { label: "" };
      model = new RegionModel(this.report, this.data[index] ?? { name: "" }, label, index);
      this.models.set(index, model);
    }
    return model;
  }

  regionData(index: number): Region {
    return this.data[index] ?? { name: "" };
  }

  select(id: string | undefined): void {
    if (id !== undefined && document.activeElement instanceof HTMLElement && !this.aside.contains(document.activeElement)) this.cameFrom = document.activeElement;
    this.change({ ...this.place, selected: id });
  }

  go(view: string, change: Partial<Place> = {}): void {
    this.change({ ...this.place, ...change, view });
    this.main.focus({ preventScroll: true });
  }

  /** The region that most readers mean, where none is named. */
  private largest(): number {
    const sizes = this.data.map((region) => region.groups?.length ?? 0);
    return Math.max(0, sizes.indexOf(Math.max(0, ...sizes)));
  }

  private valid(place: Place): Place {
    return { view: VIEWS.some((view) => view.id === place.view) ? place.view : "overview", region: this.data[place.region] ? place.region : 0, selected: place.selected };
  }

  private change(place: Place): void {
    this.place = place;
    const hash = writePlace(place);
    if (location.hash !== hash) history.pushState(null, "", hash);
    this.draw();
  }

  private draw(): void {
    const region = this.region();
    const made = `${this.place.view}/${this.place.region}`;
    if (made !== this.made) {
      const kind = VIEWS.find((view) => view.id === this.place.view)!;
      this.made = made;
      this.view = kind.make(this);
      this.heading.textContent = kind.title;
      this.main.replaceChildren(this.heading, this.view.element);
      this.main.scrollTop = 0;
      this.view.shown?.();
      this.drawNavigation(region);
    }
    this.drawPanel();
    this.view?.selected?.(this.place.selected);
  }

  private drawNavigation(region: RegionModel): void {
    this.navigation.replaceChildren(
      ...VIEWS.map((view) => {
        const count = view.count?.(region, this.report);
        return h("a", { href: writePlace({ ...this.place, view: view.id, selected: undefined }), "aria-current": view.id === this.place.view ? "page" : undefined }, view.title, count ? h("span.count", count.toLocaleString("en")) : null);
      }),
    );
    this.navigation.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  private drawPanel(): void {
    const id = this.place.selected;
    this.aside.hidden = id === undefined;
    document.body.classList.toggle("with-panel", id !== undefined);
    if (id === undefined) {
      this.aside.replaceChildren();
      if (this.cameFrom?.isConnected) this.cameFrom.focus();
      this.cameFrom = undefined;
      return;
    }
    if (this.aside.dataset.id === `${this.place.region}/${id}` && this.aside.childElementCount) return;
    this.aside.dataset.id = `${this.place.region}/${id}`;
    const wide = h("button.small", { type: "button", "aria-pressed": String(document.body.classList.contains("wide-panel")), onclick: () => set(wide, { "aria-pressed": String(document.body.classList.toggle("wide-panel")) }) }, "Wide");
    const close = h("button.small", { type: "button", title: "Escape", onclick: () => this.select(undefined) }, "Close");
    const inPanel = this.aside.contains(document.activeElement);
    this.aside.replaceChildren(h("div.panel-tools", wide, close), panel(this, id));
    this.aside.scrollTop = 0;
    if (inPanel) document.getElementById("panel-title")?.focus();
  }

  private header(): HTMLElement {
    const { report } = this;
    const choice = h("select", { "aria-label": "Region", onchange: () => this.go(this.place.view, { region: Number(choice.value), selected: undefined }) }, this.regions.map(({ label, index }) => h("option", { value: index, selected: index === this.place.region }, label)));
    const meta = [report.lampwork && `Lampwork ${report.lampwork}`, report.torch && `torch ${report.torch}`, report.machine?.cpu, report.made?.replace("T", " ").slice(0, 16)].filter(Boolean).join(" · ");
    return h(
      "header",
      h("a.skip", { href: "#view", onclick: (event: MouseEvent) => { event.preventDefault(); this.main.focus(); } }, "To the content"),
      h("div.brand", h("span.lamp", { "aria-hidden": "true" }), h("strong", report.title || "Report"), h("span.meta", meta)),
      this.regions.length > 1 ? choice : null,
      h("button.find", { type: "button", onclick: () => this.search.open() }, "Search ", h("kbd", "/")),
      themeButton(),
    );
  }

  private footer(): HTMLElement {
    const text = document.getElementById("licenses")?.textContent ?? "";
    const dialog = h("dialog.licenses", { "aria-label": "Licences" }, h("form", { method: "dialog" }, h("button.small", "Close")), h("pre", { tabindex: 0 }, text));
    document.body.append(dialog);
    return h("footer", h("span", h("kbd", "/"), " search  ", h("kbd", "1"), "–", h("kbd", "9"), " views  ", h("kbd", "Esc"), " close the panel"), h("button.link", { type: "button", onclick: () => dialog.showModal() }, "Licences"));
  }

  private onkey(event: KeyboardEvent): void {
    const target = event.target;
    const typing = target instanceof HTMLInputElement || target instanceof HTMLSelectElement;
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && this.place.selected !== undefined) this.select(undefined);
    else if (typing && !(target instanceof HTMLInputElement && target.type === "range" && event.key === "/")) return;
    else if (event.key === "/") this.search.open();
    else if (/^[1-9]$/.test(event.key)) this.go(VIEWS[Number(event.key) - 1]!.id, { selected: undefined });
    else return;
    event.preventDefault();
  }
}

function themeButton(): HTMLElement {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const now = () => document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light");
  const label = () => set(button, { "aria-label": now() === "dark" ? "Light colours" : "Dark colours", title: now() === "dark" ? "Light colours" : "Dark colours" });
  const button = h("button.theme", { type: "button", onclick: () => {
    document.documentElement.dataset.theme = now() === "dark" ? "light" : "dark";
    label();
    document.dispatchEvent(new Event("themechange"));
  } }, "◐");
  dark.addEventListener("change", () => {
    label();
    document.dispatchEvent(new Event("themechange"));
  });
  label();
  return button;
}

async function start(): Promise<void> {
  try {
    const page = new Page(await load());
    document.documentElement.dataset.ready = "yes";
    // While the reader looks at the first view: what the others take longest for.
    whenIdle(() => prepare(page.region()));
    whenIdle(() => void page.region().history.at(page.region().history.steps.length));
  } catch (error) {
    const what = error instanceof Error ? error.message : String(error);
    document.getElementById("page")!.replaceChildren(h("main.failed", h("h1", "This report cannot be shown"), h("p", { role: "alert" }, what)));
    document.documentElement.dataset.ready = "failed";
    console.error(error);
  }
  performance.mark("lampwork-ready");
}

void start();
