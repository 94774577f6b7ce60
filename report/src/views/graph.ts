// The graph: modules and fused kernels as boxes that open, with what flows between them.
import type { App, View } from "../app";
import { clear, h, set, svg } from "../dom";
import { count, percent, seconds } from "../format";
import { Hierarchy, type Box } from "../hierarchy";
import { Layout, pathOf, type Placed } from "../layout";
import type { RegionModel } from "../model";

const FIRST_VIEW = 48;
const MOST_OPEN = 900;

export function graph(app: App): View {
  const region = app.region();
  if (!region.history.order.length) return { element: h("p.note", "The graph of this region is not known.") };
  const { hierarchy, layout } = drawing(region);
  let open = firstOpen(hierarchy.root);
  let zoom = 1;
  let placed: Placed[] = [];
  let current: Box | undefined;
  const elements = new Map<Box, HTMLElement>();
  const lines: { from: Box; to: Box; element: SVGPathElement }[] = [];
  const edges = svg("svg.edges", { "aria-hidden": "true" });
  const boxes = h("div.boxes", { role: "tree", "aria-label": "Graph: arrow keys move, right opens a box, left closes it, Enter shows what is known" });
  const canvas = h("div.canvas", edges, boxes);
  const space = h("div.space", canvas);
  const scroller = h("div.graph", space);
  const status = h("span.dim", { role: "status" });

  const draw = (keep?: Box) => {
    const before = keep && placed.find((at) => at.box === keep);
    const result = layout.place(open);
    placed = result.placed;
    elements.clear();
    lines.length = 0;
    set(edges, { width: result.width, height: result.height, viewBox: `0 0 ${result.width} ${result.height}` });
    canvas.style.width = `${result.width}px`;
    canvas.style.height = `${result.height}px`;
    clear(edges, svg("defs", svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" }, svg("path.arrow", { d: "M0,0.8 L7,4 L0,7.2 z" }))));
    for (const route of result.routes) {
      const element = svg("path.edge", { d: pathOf(route.points), "marker-end": "url(#arrow)" });
      edges.append(element);
      lines.push({ from: route.from, to: route.to, element });
    }
    clear(boxes, ...placed.map(make));
    if (!current || !elements.has(current)) current = placed[0]?.box;
    if (current) set(elements.get(current)!, { tabindex: 0 });
    status.textContent = `${count(region.operators.length, "operator")}, ${count(placed.length, "box", "boxes")} in sight`;
    applyZoom();
    mark(app.place.selected);
    const after = keep && placed.find((at) => at.box === keep);
    if (before && after) {
      scroller.scrollLeft += (after.x - before.x) * zoom;
      scroller.scrollTop += (after.y - before.y) * zoom;
    }
  };

  const make = (at: Placed): HTMLElement => {
    const { box } = at;
    const share = region.time && box.time ? box.time / region.time : 0;
    const opens = box.children.length > 0;
    const heat = h("span.heat", { "aria-hidden": "true" });
    heat.style.width = `${Math.min(100, share * 100)}%`;
    const name = [box.title, box.note, share ? `${percent(share)} of the time` : ""].filter(Boolean).join(", ");
    const element = h(
      "div",
      {
        class: `box box-${box.kind} ${box.color}${at.open ? " open" : ""}`,
        role: "treeitem",
        "aria-level": at.depth + 1,
        "aria-expanded": opens ? String(at.open) : undefined,
        title: name,
        tabindex: -1,
        onclick: (event: MouseEvent) => {
          event.stopPropagation();
          focus(box);
          if (box.target !== undefined) app.select(box.target);
          else toggle(box);
        },
        ondblclick: () => opens && box.target !== undefined && toggle(box),
      },
      opens ? h("span.twist", { "aria-hidden": "true", onclick: (event: MouseEvent) => { event.stopPropagation(); toggle(box); } }, at.open ? "▾" : "▸") : null,
      h("span.title", box.title),
      share && (at.open || box.kind !== "node") ? h("span.time", at.open ? `${seconds(box.time)} · ${percent(share)}` : percent(share)) : null,
      at.open || box.color === "kind-holder" ? null : h("span.note", box.note || `${box.size} nodes`),
      share ? heat : null,
    );
    element.style.transform = `translate(${at.x}px, ${at.y}px)`;
    element.style.width = `${at.width}px`;
    element.style.height = `${at.height}px`;
    elements.set(box, element);
    return element;
  };

  const focus = (box: Box | undefined) => {
    if (!box || !elements.has(box)) return;
    if (current && elements.has(current)) set(elements.get(current)!, { tabindex: -1 });
    current = box;
    const element = elements.get(box)!;
    set(element, { tabindex: 0 });
    element.focus({ preventScroll: true });
    const at = placed.find((each) => each.box === box)!;
    reveal(at);
  };

  const reveal = (at: Placed) => {
    const [x, y, right, bottom] = [at.x * zoom, at.y * zoom, (at.x + at.width) * zoom, (at.y + Math.min(at.height, 200)) * zoom];
    if (x < scroller.scrollLeft || right > scroller.scrollLeft + scroller.clientWidth) scroller.scrollLeft = (x + right - scroller.clientWidth) / 2;
    if (y < scroller.scrollTop || bottom > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = (y + bottom - scroller.clientHeight) / 2;
  };

  const toggle = (box: Box) => {
    if (!box.children.length) return;
    if (!open.delete(box)) open.add(box);
    current = box;
    draw(box);
    focus(box);
  };

  const mark = (id: string | undefined) => {
    const chosen = id === undefined ? undefined : inSight(hierarchy.box(id), elements);
    for (const [box, element] of elements) {
      element.classList.toggle("chosen", box === chosen);
      set(element, { "aria-selected": String(box === chosen) });
      element.classList.remove("near");
    }
    for (const line of lines) {
      const touches = chosen !== undefined && (line.from === chosen || line.to === chosen);
      line.element.classList.toggle("near", touches);
      if (touches) elements.get(line.from === chosen ? line.to : line.from)?.classList.add("near");
    }
  };

  const selected = (id: string | undefined) => {
    const box = id === undefined ? undefined : hierarchy.box(id);
    let opened = false;
    for (let up = box?.parent; up && up !== hierarchy.root; up = up.parent) {
      if (!open.has(up)) {
        open.add(up);
        opened = true;
      }
    }
    if (opened) draw();
    else mark(id);
    const at = placed.find((each) => each.box === box);
    if (at) reveal(at);
  };

  const applyZoom = () => {
    canvas.style.transform = `scale(${zoom})`;
    space.style.width = `${canvas.offsetWidth * zoom}px`;
    space.style.height = `${canvas.offsetHeight * zoom}px`;
  };

  const zoomTo = (to: number) => {
    const old = zoom;
    zoom = Math.max(0.1, Math.min(2, to));
    const [x, y] = [scroller.scrollLeft + scroller.clientWidth / 2, scroller.scrollTop + scroller.clientHeight / 2];
    applyZoom();
    scroller.scrollLeft = (x * zoom) / old - scroller.clientWidth / 2;
    scroller.scrollTop = (y * zoom) / old - scroller.clientHeight / 2;
  };

  const fit = () => {
    zoomTo(Math.min(1, Math.max(0.35, (scroller.clientWidth - 24) / Math.max(1, canvas.offsetWidth))));
    scroller.scrollLeft = Math.max(0, (canvas.offsetWidth * zoom - scroller.clientWidth) / 2);
  };

  boxes.addEventListener("focusin", (event) => {
    const box = placed.find((at) => elements.get(at.box) === event.target)?.box;
    if (!box || box === current) return;
    if (current) elements.get(current)?.setAttribute("tabindex", "-1");
    current = box;
    elements.get(box)!.setAttribute("tabindex", "0");
  });
  boxes.addEventListener("keydown", (event) => {
    if (!current || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = placed.findIndex((each) => each.box === current);
    const box = current;
    if (event.key === "ArrowDown") focus(placed[at + 1]?.box);
    else if (event.key === "ArrowUp") focus(placed[at - 1]?.box);
    else if (event.key === "Home") focus(placed[0]?.box);
    else if (event.key === "End") focus(placed[placed.length - 1]?.box);
    else if (event.key === "ArrowRight" && box.children.length) open.has(box) ? focus(box.children[0]) : toggle(box);
    else if (event.key === "ArrowLeft") open.has(box) && box.children.length ? toggle(box) : focus(box.parent);
    else if (event.key === "Enter" || event.key === " ") box.target !== undefined ? app.select(box.target) : toggle(box);
    else if (event.key === "+" || event.key === "=") zoomTo(zoom * 1.25);
    else if (event.key === "-") zoomTo(zoom / 1.25);
    else return;
    event.preventDefault();
  });
  scroller.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomTo(zoom * (event.deltaY > 0 ? 0.9 : 1.1));
  }, { passive: false });
  dragToScroll(scroller);

  const button = (text: string, title: string, act: () => void) => h("button.small", { type: "button", title, "aria-label": title, onclick: act }, text);
  const tools = h("div.bar-line", status, button("Open all", "Open all boxes, as far as a screen can take them", () => { open = allOpen(hierarchy.root); draw(); }), button("Close all", "Close all boxes", () => { open = new Set(); draw(); fit(); }), button("−", "Smaller", () => zoomTo(zoom / 1.25)), button("+", "Larger", () => zoomTo(zoom * 1.25)), button("Fit", "Fit to the width", fit));
  return { element: h("div.fill", tools, scroller), selected, shown: () => { draw(); fit(); selected(app.place.selected); } };
}

const drawings = new WeakMap<RegionModel, { hierarchy: Hierarchy; layout: Layout }>();

/** Boxes and places of a region, made once. */
function drawing(region: RegionModel): { hierarchy: Hierarchy; layout: Layout } {
  let made = drawings.get(region);
  if (!made) {
    const hierarchy = new Hierarchy(region);
    made = { hierarchy, layout: new Layout(hierarchy) };
    drawings.set(region, made);
  }
  return made;
}

/** What the view shows first, laid out before somebody asks for it. */
export function prepare(region: RegionModel): void {
  if (!region.history.order.length) return;
  const { hierarchy, layout } = drawing(region);
  layout.place(firstOpen(hierarchy.root));
}

function inSight(box: Box | undefined, elements: Map<Box, HTMLElement>): Box | undefined {
  let at = box;
  while (at && !elements.has(at)) at = at.parent;
  return at;
}

/** Boxes to open, from the outside in, while a screen still holds what comes in sight. */
function firstOpen(root: Box): Set<Box> {
  return opened(root, FIRST_VIEW, (box) => box.kind !== "group" && box.kind !== "part");
}

function allOpen(root: Box): Set<Box> {
  return opened(root, MOST_OPEN, () => true);
}

function opened(root: Box, most: number, may: (box: Box) => boolean): Set<Box> {
  const open = new Set<Box>();
  let shown = root.children.length;
  const queue = [...root.children];
  for (let box = queue.shift(); box; box = queue.shift()) {
    if (!box.children.length || !may(box) || shown + box.children.length > most) continue;
    open.add(box);
    shown += box.children.length;
    queue.push(...box.children);
  }
  return open;
}

function dragToScroll(scroller: HTMLElement): void {
  let start: { x: number; y: number; left: number; top: number } | undefined;
  scroller.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button !== 0 || (event.target as Element).closest(".box")) return;
    start = { x: event.clientX, y: event.clientY, left: scroller.scrollLeft, top: scroller.scrollTop };
    scroller.setPointerCapture(event.pointerId);
  });
  scroller.addEventListener("pointermove", (event) => {
    if (!start) return;
    scroller.scrollLeft = start.left - (event.clientX - start.x);
    scroller.scrollTop = start.top - (event.clientY - start.y);
  });
  const stop = () => (start = undefined);
  scroller.addEventListener("pointerup", stop);
  scroller.addEventListener("pointercancel", stop);
}
