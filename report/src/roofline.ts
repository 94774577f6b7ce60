// What a kernel reaches, beside what this machine can: FLOP/s over FLOP per byte, both in decades.
import { svg } from "./dom";
import { quantity } from "./format";
import { bytesOf, timeOf, type RegionModel } from "./model";
import type { Group, Machine } from "./schema";

export interface Point {
  group: Group;
  intensity: number;
  rate: number;
}

export function point(group: Group): Point | undefined {
  const bytes = bytesOf(group);
  if (!group.time || !group.flops || !bytes) return undefined;
  return { group, intensity: group.flops / bytes, rate: group.flops / group.time };
}

/** The shortest time that the machine's limits allow, by arithmetic or by memory. */
export function limit(group: Group, machine: Machine | undefined, dtype = "float32"): { seconds: number; by: "arithmetic" | "memory" } | undefined {
  if (group.least !== undefined) return { seconds: group.least, by: group.bound ?? "memory" };
  const peak = machine?.peak_gflops?.[dtype] ?? machine?.peak_gflops?.float32;
  const arithmetic = peak && group.flops ? group.flops / (peak * 1e9) : 0;
  const bytes = bytesOf(group);
  const memory = machine?.peak_gbs && bytes ? bytes / (machine.peak_gbs * 1e9) : 0;
  if (!arithmetic && !memory) return undefined;
  return arithmetic >= memory ? { seconds: arithmetic, by: "arithmetic" } : { seconds: memory, by: "memory" };
}

export function roofline(region: RegionModel, selected: string | undefined, pick: (id: string) => void, size = { width: 420, height: 250 }): SVGSVGElement | undefined {
  const machine = region.report.machine;
  const points = (region.region.groups ?? []).map(point).filter((at) => at !== undefined);
  const roofs = roofsOf(machine, points);
  const slope = machine?.peak_gbs;
  if (!points.length || !roofs.length || !slope) return undefined;
  const top = Math.max(...roofs.map(([, peak]) => peak * 1e9));
  const ridge = top / (slope * 1e9);
  const x = scale([...points.map((at) => at.intensity), ridge * 3], 48, size.width - 22);
  const y = scale([...points.map((at) => at.rate), top * 1.5], size.height - 34, 10);
  const picture = svg("svg.roofline", { viewBox: `0 0 ${size.width} ${size.height}`, role: "img", "aria-label": `Roofline: ${points.length} kernels beside the limits of this machine` });
  for (const at of x.ticks) {
    picture.append(svg("line.grid", { x1: x.of(at), x2: x.of(at), y1: 10, y2: size.height - 34 }));
    picture.append(svg("text.tick.mid", { x: x.of(at), y: size.height - 20 }, tick(at)));
  }
  for (const at of y.ticks) {
    picture.append(svg("line.grid", { x1: 48, x2: size.width - 22, y1: y.of(at), y2: y.of(at) }));
    picture.append(svg("text.tick.end", { x: 43, y: y.of(at) + 3.5 }, tick(at / 1e9)));
  }
  picture.append(svg("text.tick.mid", { x: (48 + size.width) / 2, y: size.height - 4 }, "FLOP per byte"));
  picture.append(svg("text.tick", { x: 52, y: 20 }, "GFLOP/s"));
  for (const [dtype, peak] of roofs) {
    const corner = peak / slope;
    const left = Math.max(x.low, y.low / (slope * 1e9));
    const line = [[left, left * slope * 1e9], [Math.max(corner, x.low), peak * 1e9], [x.high, peak * 1e9]];
    picture.append(svg("polyline.roof", { points: line.map(([a, b]) => `${x.of(a!)},${y.of(b!)}`).join(" ") }));
    picture.append(svg("text.tick.end", { x: size.width - 24, y: y.of(peak * 1e9) - 4 }, `${dtype} ${quantity(peak * 1e9, "FLOP/s")}`));
  }
  const cache = machine?.peak_cache_gbs;
  if (cache && cache > slope) {
    const left = Math.max(x.low, y.low / (cache * 1e9));
    const line = [[left, left * cache * 1e9], [Math.max(top / (cache * 1e9), x.low), top]];
    picture.append(svg("polyline.roof.cache", { points: line.map(([a, b]) => `${x.of(a!)},${y.of(b!)}`).join(" ") }, svg("title", `From a core’s own cache: ${quantity(cache * 1e9, "B/s")}`)));
  }
  const chosen = points.find((at) => at.group.id === selected);
  // Kernels that would lie upon each other share a dot: that of the slowest.
  const spots = new Map<string, Point>();
  for (const at of points) {
    const spot = `${Math.round(x.of(at.intensity) / 3)} ${Math.round(y.of(at.rate) / 3)} ${at.group.kind ?? ""}`;
    const there = spots.get(spot);
    if (at !== chosen && (!there || timeOf(there.group) < timeOf(at.group))) spots.set(spot, at);
  }
  for (const at of [...spots.values(), ...(chosen ? [chosen] : [])]) {
    const share = region.time ? timeOf(at.group) / region.time : 0;
    const dot = svg(
      "circle",
      { class: `dot kind-${at.group.kind ?? "kernel"}${at === chosen ? " chosen" : ""}`, cx: x.of(at.intensity), cy: y.of(at.rate), r: Math.max(3, Math.sqrt(share) * 22), onclick: () => pick(at.group.id) },
      svg("title", `${at.group.name ?? at.group.id}: ${quantity(at.rate, "FLOP/s")}`),
    );
    picture.append(dot);
  }
  return picture;
}

/** The limits of arithmetic in what these kernels compute in: [names, 10^9 operations a second]. */
function roofsOf(machine: Machine | undefined, points: Point[]): [string, number][] {
  const used = new Set(points.map((at) => at.group.dtype ?? "float32"));
  const names = new Map<number, string[]>();
  for (const [dtype, peak] of Object.entries(machine?.peak_gflops ?? {})) {
    if (peak > 0 && used.has(dtype)) names.set(peak, [...(names.get(peak) ?? []), dtype]);
  }
  return [...names].map(([peak, each]) => [each.join(", "), peak]);
}

function scale(values: number[], from: number, to: number) {
  const low = Math.floor(Math.log10(Math.min(...values)));
  const high = Math.ceil(Math.log10(Math.max(...values)));
  const span = Math.max(1, high - low);
  const ticks: number[] = [];
  for (let at = low; at <= low + span; at += Math.ceil(span / 7)) ticks.push(10 ** at);
  return { low: 10 ** low, high: 10 ** (low + span), ticks, of: (value: number) => from + ((Math.log10(value) - low) / span) * (to - from) };
}

function tick(value: number): string {
  if (value >= 1e6) return quantity(value, "").trim();
  return value >= 0.01 ? String(Number(value.toPrecision(3))) : value.toExponential(0);
}
