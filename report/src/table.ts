// A table that draws only the rows in sight, so that twenty thousand of them cost as much as thirty.
import { clear, freshId, h, set } from "./dom";

export interface Column<T> {
  title: string;
  /** A track of a CSS grid, such as "2fr" or "8rem". */
  width: string;
  cell: (row: T) => Node | string;
  sort?: (row: T) => number | string;
  end?: boolean;
}

export interface TableOptions<T> {
  label: string;
  columns: Column<T>[];
  rows: T[];
  pick?: (row: T) => void;
  /** Keys beyond the usual ones; true if the key was used. */
  key?: (row: T, key: string) => boolean;
  rowClass?: (row: T) => string;
  expanded?: (row: T) => boolean | undefined;
  level?: (row: T) => number;
  most?: number;
  empty?: string;
}

const HEIGHT = 30;
const PRINTED = 400;

export class Table<T> {
  readonly element: HTMLElement;
  private rows: T[];
  private readonly scroller: HTMLElement;
  private readonly body: HTMLElement;
  private readonly drawn = new Map<number, HTMLElement>();
  private readonly heads: HTMLElement[] = [];
  private current = 0;
  private sorted: { column: number; down: boolean } | undefined;
  private printing = false;

  constructor(private readonly options: TableOptions<T>) {
    this.rows = options.rows;
    const tree = options.expanded !== undefined;
    const tracks = options.columns.map((column) => column.width).join(" ");
    const head = h("div.row.head", { role: "row" }, options.columns.map((column, index) => this.head(column, index)));
    this.body = h("div.rows", { role: "rowgroup" });
    this.scroller = h("div.scroller", h("div.inner", { role: "presentation" }, h("div.heads", { role: "rowgroup" }, head), this.body));
    this.element = h("div.table", { role: tree ? "treegrid" : "grid", "aria-label": options.label, id: freshId("table") }, this.scroller);
    this.element.style.setProperty("--tracks", tracks);
    this.scroller.addEventListener("scroll", () => this.draw(), { passive: true });
    this.body.addEventListener("keydown", (event) => this.onkey(event));
    new ResizeObserver(() => this.draw()).observe(this.scroller);
    beforePrint(this.element, (printing) => {
      this.printing = printing;
      this.draw();
    });
    this.setRows(options.rows);
  }

  setRows(rows: T[], keep = false): void {
    this.rows = rows;
    this.order();
    if (!keep) this.current = 0;
    this.current = Math.min(this.current, Math.max(0, this.rows.length - 1));
    this.redraw();
    if (!keep) this.scroller.scrollTop = 0;
  }

  redraw(): void {
    const focused = this.body.contains(document.activeElement);
    this.drawn.clear();
    clear(this.body);
    this.body.style.height = `${Math.max(1, this.rows.length) * HEIGHT}px`;
    this.scroller.style.maxHeight = this.options.most ? `${(this.options.most + 1) * HEIGHT + 12}px` : "";
    this.element.style.minHeight = `${Math.min(7, Math.max(2, this.rows.length + 1)) * HEIGHT + 6}px`;
    set(this.element, { "aria-rowcount": this.rows.length + 1 });
    if (!this.rows.length) {
      const cell = h("div.cell.empty", { role: "gridcell" }, this.options.empty ?? "Nothing here.");
      this.body.append(h("div.row", { role: "row" }, cell));
    }
    this.draw();
    if (focused) this.drawn.get(this.current)?.focus();
  }

  show(row: T, focus = false): void {
    const index = this.rows.indexOf(row);
    if (index < 0) return;
    this.current = index;
    const top = index * HEIGHT;
    const view = this.scroller.clientHeight - 2 * HEIGHT;
    if (top < this.scroller.scrollTop || top > this.scroller.scrollTop + view) this.scroller.scrollTop = Math.max(0, top - view / 2);
    this.redraw();
    if (focus) this.drawn.get(index)?.focus();
  }

  private head(column: Column<T>, index: number): HTMLElement {
    const sort = column.sort && h("button.sort", { type: "button", onclick: () => this.sortBy(index) }, column.title);
    const cell = h("div.cell", { role: "columnheader" }, sort ?? column.title);
    if (column.end) cell.classList.add("end");
    this.heads.push(cell);
    return cell;
  }

  private sortBy(column: number): void {
    const numeric = this.rows.length > 0 && typeof this.options.columns[column]!.sort!(this.rows[0]!) === "number";
    this.sorted = this.sorted?.column === column ? { column, down: !this.sorted.down } : { column, down: numeric };
    this.setRows(this.options.rows === this.rows ? [...this.rows] : this.rows);
  }

  private order(): void {
    const by = this.sorted;
    this.heads.forEach((head, index) => {
      set(head, { "aria-sort": by?.column === index ? (by.down ? "descending" : "ascending") : undefined });
    });
    if (!by) return;
    const key = this.options.columns[by.column]!.sort!;
    const sign = by.down ? -1 : 1;
    this.rows = [...this.rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      return x < y ? -sign : x > y ? sign : 0;
    });
  }

  private draw(): void {
    const height = this.scroller.clientHeight || 600;
    const top = this.scroller.scrollTop;
    const first = this.printing ? 0 : Math.max(0, Math.floor(top / HEIGHT) - 4);
    const last = this.printing ? Math.min(this.rows.length, PRINTED) : Math.min(this.rows.length, Math.ceil((top + height) / HEIGHT) + 4);
    for (const [index, element] of this.drawn) {
      if ((index < first || index >= last) && index !== this.current) {
        element.remove();
        this.drawn.delete(index);
      }
    }
    for (let index = first; index < last; index++) this.drawRow(index);
    if (this.rows.length) this.drawRow(this.current);
  }

  private drawRow(index: number): void {
    if (this.drawn.has(index)) return;
    const row = this.rows[index]!;
    const { columns, rowClass, expanded, level } = this.options;
    const element = h(
      "div.row",
      { role: "row", "aria-rowindex": index + 2, tabindex: index === this.current ? 0 : -1, onclick: () => this.choose(index) },
      columns.map((column) => {
        const content = column.cell(row);
        const title = typeof content === "string" && content.length > 12 ? content : undefined;
        const cell = h("div.cell", { role: "gridcell", title }, content);
        if (column.end) cell.classList.add("end");
        return cell;
      }),
    );
    const extra = rowClass?.(row);
    if (extra) element.classList.add(extra);
    const open = expanded?.(row);
    set(element, { "aria-expanded": open === undefined ? undefined : String(open), "aria-level": level?.(row) });
    element.style.transform = `translateY(${index * HEIGHT}px)`;
    this.drawn.set(index, element);
    this.body.append(element);
  }

  private move(index: number): void {
    const old = this.drawn.get(this.current);
    if (old) set(old, { tabindex: -1 });
    this.current = Math.max(0, Math.min(this.rows.length - 1, index));
    const top = this.current * HEIGHT;
    const view = this.scroller.clientHeight - 2 * HEIGHT;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    if (top > this.scroller.scrollTop + view) this.scroller.scrollTop = top - view;
    this.draw();
    const now = this.drawn.get(this.current);
    if (now) {
      set(now, { tabindex: 0 });
      now.focus({ preventScroll: true });
    }
  }

  private choose(index: number): void {
    this.move(index);
    const row = this.rows[index];
    if (row !== undefined) this.options.pick?.(row);
  }

  private onkey(event: KeyboardEvent): void {
    const row = this.rows[this.current];
    if (row === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / HEIGHT) - 2);
    const moves: Record<string, number> = { ArrowDown: this.current + 1, ArrowUp: this.current - 1, PageDown: this.current + page, PageUp: this.current - page, Home: 0, End: this.rows.length - 1 };
    const to = moves[event.key];
    if (to !== undefined) this.move(to);
    else if (event.key === "Enter" || event.key === " ") {
      if (event.target instanceof HTMLButtonElement) return;
      this.options.pick?.(row);
    } else if (!this.options.key?.(row, event.key)) return;
    event.preventDefault();
  }
}

/** Calls `change(true)` before the page is printed and `change(false)` after, as long as the element is there. */
function beforePrint(element: Element, change: (printing: boolean) => void): void {
  const listen = (event: Event) => {
    if (element.isConnected) change(event.type === "beforeprint");
    else if (event.type === "afterprint") for (const name of ["beforeprint", "afterprint"]) removeEventListener(name, listen);
  };
  for (const name of ["beforeprint", "afterprint"]) addEventListener(name, listen);
}

/** A share of a whole as a short bar with its number. */
export function bar(share: number, text: string): HTMLElement {
  const fill = h("span.fill", { "aria-hidden": "true" });
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return h("span.bar", h("span.track", { "aria-hidden": "true" }, fill), h("span", text));
}
