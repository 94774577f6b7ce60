// Rectangles over two axes, on a canvas: lifetimes of values in memory, or the stages of a compilation.
import { h, set } from "./dom";

export interface Interval<T> {
  x0: number;
  x1: number;
  y0: number;
  y1: number;
  color: string;
  label: string;
  data: T;
}

export interface ChartOptions<T> {
  label: string;
  intervals: Interval<T>[];
  height: number;
  /** Ends of both axes; of intervals where absent. */
  xMax: number;
  yMax: number;
  /** Depth grows downwards in a flame chart, offsets upwards in memory. */
  down?: boolean;
  xText: (value: number) => string;
  yText?: (value: number) => string;
  describe: (data: T) => string;
  pick?: (data: T) => void;
}

const LEFT = 62;
const BOTTOM = 22;

export class IntervalChart<T> {
  readonly element: HTMLElement;
  private readonly canvas = h("canvas");
  private readonly readout = h("div.readout", { role: "status" });
  private chosen: number | undefined;
  private from = 0;
  private to: number;
  private drag: { at: number; from: number; to: number } | undefined;

  constructor(private readonly options: ChartOptions<T>) {
    this.to = options.xMax;
    const say = "Arrow keys go from one to the next, plus and minus zoom, 0 shows all.";
    set(this.canvas, { tabindex: 0, role: "img", "aria-label": `${options.label}. ${options.intervals.length} entries. ${say}` });
    this.canvas.style.height = `${options.height}px`;
    const buttons = [["Zoom in", "+", 0.5], ["Zoom out", "−", 2], ["Show all", "All", 0]] as const;
    this.element = h("div.chart", h("div.bar-line", this.readout, buttons.map(([title, text, by]) => h("button.small", { type: "button", "aria-label": title, title, onclick: () => (by ? this.zoom(by, 0.5) : this.all()) }, text))), this.canvas);
    this.readout.textContent = "Point at a block, or use the arrow keys.";
    this.canvas.addEventListener("pointermove", (event) => this.onmove(event));
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      this.drag = { at: event.offsetX, from: this.from, to: this.to };
    });
    this.canvas.addEventListener("pointerup", (event) => this.onup(event));
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, (event.offsetX - LEFT) / this.plotWidth());
    }, { passive: false });
    this.canvas.addEventListener("keydown", (event) => this.onkey(event));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    document.addEventListener("themechange", () => this.draw());
  }

  choose(index: number | undefined): void {
    this.chosen = index;
    if (index !== undefined) {
      const at = this.options.intervals[index]!;
      this.readout.textContent = this.options.describe(at.data);
      if (at.x1 < this.from || at.x0 > this.to) {
        const half = (this.to - this.from) / 2;
        this.setRange((at.x0 + at.x1) / 2 - half, (at.x0 + at.x1) / 2 + half);
      }
    }
    this.draw();
  }

  private plotWidth(): number {
    return Math.max(1, this.canvas.clientWidth - LEFT - 4);
  }

  private all(): void {
    this.setRange(0, this.options.xMax);
  }

  private zoom(by: number, around: number): void {
    const span = Math.min(this.options.xMax, Math.max(this.options.xMax / 1e4, (this.to - this.from) * by));
    const pivot = this.from + (this.to - this.from) * around;
    this.setRange(pivot - span * around, pivot + span * (1 - around));
  }

  private setRange(from: number, to: number): void {
    const span = Math.min(this.options.xMax, to - from);
    this.from = Math.max(0, Math.min(from, this.options.xMax - span));
    this.to = this.from + span;
    this.draw();
  }

  private hit(x: number, y: number): number | undefined {
    const { intervals } = this.options;
    for (let index = intervals.length - 1; index >= 0; index--) {
      const [left, top, width, height] = this.box(intervals[index]!);
      if (x >= left - 1 && x <= left + Math.max(width, 2) && y >= top && y <= top + height) return index;
    }
    return undefined;
  }

  private onmove(event: PointerEvent): void {
    if (this.drag && event.buttons) {
      const by = ((this.drag.at - event.offsetX) / this.plotWidth()) * (this.drag.to - this.drag.from);
      this.setRange(this.drag.from + by, this.drag.to + by);
      return;
    }
    const index = this.hit(event.offsetX, event.offsetY);
    this.canvas.style.cursor = index === undefined ? "grab" : "pointer";
    if (index !== undefined && index !== this.chosen) this.choose(index);
  }

  private onup(event: PointerEvent): void {
    const still = this.drag && Math.abs(this.drag.at - event.offsetX) < 4;
    this.drag = undefined;
    const index = still ? this.hit(event.offsetX, event.offsetY) : undefined;
    if (index === undefined) return;
    this.choose(index);
    this.options.pick?.(this.options.intervals[index]!.data);
  }

  private onkey(event: KeyboardEvent): void {
    const { intervals, pick } = this.options;
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step && intervals.length) this.choose(((this.chosen ?? (step > 0 ? -1 : 0)) + step + intervals.length) % intervals.length);
    else if (event.key === "+" || event.key === "=") this.zoom(0.5, 0.5);
    else if (event.key === "-") this.zoom(2, 0.5);
    else if (event.key === "0") this.all();
    else if (event.key === "Enter" && this.chosen !== undefined) pick?.(intervals[this.chosen]!.data);
    else return;
    event.preventDefault();
  }

  private box(at: Interval<T>): [number, number, number, number] {
    const { height, yMax, down } = this.options;
    const plot = height - BOTTOM;
    const scale = this.plotWidth() / (this.to - this.from || 1);
    const y = (value: number) => (down ? (value / yMax) * plot : plot - (value / yMax) * plot);
    const top = Math.min(y(at.y0), y(at.y1));
    return [LEFT + (at.x0 - this.from) * scale, top, (at.x1 - at.x0) * scale, Math.abs(y(at.y1) - y(at.y0))];
  }

  private draw(): void {
    const { intervals, height, xText, yText, yMax } = this.options;
    const width = this.canvas.clientWidth;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    if (this.canvas.width !== width * ratio || this.canvas.height !== height * ratio) {
      this.canvas.width = width * ratio;
      this.canvas.height = height * ratio;
    }
    const pen = this.canvas.getContext("2d");
    if (!pen) return;
    const style = getComputedStyle(document.documentElement);
    const ink = (name: string) => style.getPropertyValue(name).trim();
    const inks = new Map<string, string>();
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = `11px ${ink("--sans")}`;
    pen.textBaseline = "middle";
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, width - LEFT, height - BOTTOM);
    pen.clip();
    intervals.forEach((at, index) => {
      const [left, top, wide, high] = this.box(at);
      if (left > width || left + wide < LEFT) return;
      if (!inks.has(at.color)) inks.set(at.color, ink(at.color));
      pen.fillStyle = inks.get(at.color)!;
      pen.fillRect(left, top, Math.max(wide - (wide > 3 ? 1 : 0), 0.75), Math.max(high - (high > 3 ? 1 : 0), 0.75));
      if (wide > 34 && high > 13) {
        pen.fillStyle = ink("--on-block");
        const start = Math.max(left, LEFT) + 4;
        const room = left + wide - start - 4;
        const letters = Math.floor(room / 6.2);
        if (letters > 2) pen.fillText(at.label.length > letters ? `${at.label.slice(0, letters - 1)}…` : at.label, start, top + Math.min(high, 20) / 2 + 0.5);
      }
      if (index === this.chosen) {
        pen.strokeStyle = ink("--text");
        pen.lineWidth = 2;
        pen.strokeRect(left + 1, top + 1, Math.max(wide - 2, 1), Math.max(high - 2, 1));
      }
    });
    pen.restore();
    pen.strokeStyle = ink("--line");
    pen.lineWidth = 1;
    pen.strokeRect(LEFT + 0.5, 0.5, width - LEFT - 1, height - BOTTOM - 1);
    pen.fillStyle = ink("--dim");
    pen.textAlign = "center";
    const ticks = Math.max(2, Math.min(8, Math.floor(width / 110)));
    for (let tick = 0; tick <= ticks; tick++) {
      const value = this.from + ((this.to - this.from) * tick) / ticks;
      const at = LEFT + (this.plotWidth() * tick) / ticks;
      pen.textAlign = tick === 0 ? "left" : tick === ticks ? "right" : "center";
      pen.fillText(xText(value), at, height - BOTTOM / 2 + 2);
    }
    if (yText) {
      pen.textAlign = "right";
      for (let tick = 0; tick <= 4; tick++) pen.fillText(yText((yMax * tick) / 4), LEFT - 6, Math.max(7, Math.min(height - BOTTOM - 7, (height - BOTTOM) * (1 - tick / 4))));
    }
    pen.textAlign = "left";
  }
}
