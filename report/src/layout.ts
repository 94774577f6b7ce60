// Where boxes and links lie. Each open box is laid out by itself and then placed as one, so opening a box costs a
// layout of its own children and of those around it: a screenful each, however large the graph is.
import dagre from "@dagrejs/dagre";
import type { Box, Hierarchy } from "./hierarchy";

export interface Placed {
  box: Box;
  x: number;
  y: number;
  width: number;
  height: number;
  depth: number;
  open: boolean;
}

export interface Route {
  from: Box;
  to: Box;
  count: number;
  points: { x: number; y: number }[];
}

interface Level {
  width: number;
  height: number;
  children: { box: Box; x: number; y: number; width: number; height: number; level: Level | undefined }[];
  routes: Route[];
}

const PADDING = 14;
const HEADER = 30;
const BOX_HEIGHT = 42;

export class Layout {
  private levels = new Map<Box, { level: Level; opened: string }>();

  constructor(private readonly hierarchy: Hierarchy) {}

  place(open: Set<Box>): { placed: Placed[]; routes: Route[]; width: number; height: number } {
    const root = this.level(this.hierarchy.root, open).level;
    const placed: Placed[] = [];
    const routes: Route[] = [];
    const walk = (level: Level, dx: number, dy: number, depth: number) => {
      for (const route of level.routes) routes.push({ ...route, points: route.points.map((at) => ({ x: at.x + dx, y: at.y + dy })) });
      for (const child of level.children) {
        placed.push({ box: child.box, x: child.x + dx, y: child.y + dy, width: child.width, height: child.height, depth, open: child.level !== undefined });
        if (child.level) walk(child.level, dx + child.x + PADDING, dy + child.y + HEADER, depth + 1);
      }
    };
    walk(root, PADDING, PADDING, 0);
    return { placed, routes, width: root.width + 2 * PADDING, height: root.height + 2 * PADDING };
  }

  private level(box: Box, open: Set<Box>): { level: Level; opened: string } {
    const inner = new Map<Box, { level: Level; opened: string }>();
    for (const child of box.children) if (open.has(child) && child.children.length) inner.set(child, this.level(child, open));
    const opened = [...inner].map(([child, at]) => `${child.key}(${at.opened})`).join();
    const known = this.levels.get(box);
    if (known?.opened === opened) return known;
    const made = { level: this.arrange(box, inner), opened };
    this.levels.set(box, made);
    return made;
  }

  private arrange(box: Box, inner: Map<Box, { level: Level }>): Level {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "TB", nodesep: 22, ranksep: 26, edgesep: 12 });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const child of box.children) {
      const level = inner.get(child)?.level;
      const width = level ? Math.max(level.width + 2 * PADDING, boxWidth(child, child.time ? 120 : 0)) : boxWidth(child, child.time ? 56 : 0);
      graph.setNode(child.key, { width, height: level ? level.height + HEADER + PADDING : child.color === "kind-holder" ? 30 : BOX_HEIGHT });
    }
    const links = this.hierarchy.linksIn(box);
    for (const link of links) graph.setEdge(link.from.key, link.to.key, { weight: Math.min(8, link.count) });
    dagre.layout(graph);
    const size = graph.graph() as { width?: number; height?: number };
    const children = box.children.map((child) => {
      const at = graph.node(child.key) as { x: number; y: number; width: number; height: number };
      return { box: child, x: at.x - at.width / 2, y: at.y - at.height / 2, width: at.width, height: at.height, level: inner.get(child)?.level };
    });
    const routes = links.map((link) => ({ ...link, points: (graph.edge(link.from.key, link.to.key) as { points: { x: number; y: number }[] }).points }));
    return { width: finite(size.width), height: finite(size.height), children, routes };
  }
}

const pen = document.createElement("canvas").getContext("2d");
const family = getComputedStyle(document.body).fontFamily;

function textWidth(text: string, font: string, most: number): number {
  if (!pen) return most;
  pen.font = `${font} ${family}`;
  return Math.min(most, Math.ceil(pen.measureText(text).width));
}

/** Room for the title with what stands beside it, and for the note below; of very long ones the start. */
function boxWidth(box: Box, beside: number): number {
  const frame = box.children.length ? 40 : 26;
  return Math.max(84, frame + textWidth(box.title, "600 13px", 220) + beside, frame + textWidth(box.note, "11.5px", 230));
}

function finite(value: number | undefined): number {
  return value !== undefined && Number.isFinite(value) ? value : 0;
}

/** A path through the points of a route, with its corners rounded. */
export function pathOf(points: { x: number; y: number }[]): string {
  const [start, ...rest] = points.map((at) => `${at.x.toFixed(1)},${at.y.toFixed(1)}`);
  if (points.length < 3) return `M${start} L${rest.join(" L")}`;
  let path = `M${start}`;
  for (let index = 1; index < points.length - 1; index++) {
    const here = points[index]!;
    const next = points[index + 1]!;
    const end = index === points.length - 2 ? next : { x: (here.x + next.x) / 2, y: (here.y + next.y) / 2 };
    path += ` Q${here.x.toFixed(1)},${here.y.toFixed(1)} ${end.x.toFixed(1)},${end.y.toFixed(1)}`;
  }
  return path;
}
