// The graph as boxes in boxes: modules hold modules and kernels, kernels hold nodes. No box holds more than a screenful:
// of what lies flat, neighbours in the order of the program share a box.
import { operator, type ModuleNode, type RegionModel } from "./model";
import type { NodeId } from "./schema";
import { operators } from "./views/modules";

export type BoxKind = "module" | "part" | "group" | "node";

export interface Box {
  key: string;
  kind: BoxKind;
  title: string;
  note: string;
  /** What the panel shows for it; nothing for parts. */
  target: string | undefined;
  color: string;
  time: number;
  parent: Box | undefined;
  children: Box[];
  first: number;
  size: number;
}

export interface Link {
  from: Box;
  to: Box;
  count: number;
}

const MOST = 36;

export class Hierarchy {
  readonly root: Box;
  readonly leafOf = new Map<NodeId, Box>();
  private readonly links = new Map<Box, Link[]>();

  constructor(private readonly region: RegionModel) {
    this.root = this.fromModule(region.modules, undefined);
    // Nobody needs a box around all.
    while (this.root.children.length === 1 && this.root.children[0]!.kind === "module") adopt(this.root, this.root.children[0]!.children);
  }

  box(id: string): Box | undefined {
    const group = this.region.groups.get(id);
    // A kernel that works for nodes of others, such as one that packs a matrix, is where these are.
    const known = this.leafOf.get(group?.nodes?.find((each) => this.region.groupOf.get(each) === group) ?? group?.nodes?.[0] ?? id);
    return group && known?.kind === "node" && known.parent?.kind === "group" ? known.parent : known;
  }

  /** What flows between the children of a box. */
  linksIn(box: Box): Link[] {
    const known = this.links.get(box);
    if (known) return known;
    const found = new Map<string, Link>();
    for (const child of box.children) {
      for (const id of this.leaves(child)) {
        for (const reader of this.region.readers.get(id) ?? []) {
          const to = this.childHolding(reader, box);
          if (!to || to === child) continue;
          const key = `${child.key}\n${to.key}`;
          const link = found.get(key);
          if (link) link.count++;
          else found.set(key, { from: child, to, count: 1 });
        }
      }
    }
    const links = [...found.values()];
    this.links.set(box, links);
    return links;
  }

  leaves(box: Box): NodeId[] {
    const ids: NodeId[] = [];
    const walk = (at: Box) => {
      if (at.children.length) at.children.forEach(walk);
      else if (at.kind === "node" && at.target !== undefined) ids.push(at.target);
    };
    walk(box);
    return ids;
  }

  private childHolding(id: NodeId, box: Box): Box | undefined {
    let at = this.leafOf.get(id);
    while (at && at.parent !== box) at = at.parent;
    return at;
  }

  private fromModule(module: ModuleNode, parent: Box | undefined): Box {
    const box = makeBox(`m:${module.path}`, "module", module.name, module.type, undefined, parent);
    box.time = module.time;
    const children: Box[] = module.children.map((child) => this.fromModule(child, box)).filter((child) => child.size > 0);
    for (const group of module.groups) {
      const made = makeBox(`g:${group.id}`, "group", group.name ?? group.id, operators(this.region, group), group.id, box);
      made.color = `kind-${group.kind ?? "kernel"}`;
      made.time = (group.time ?? 0) * (group.calls ?? 1);
      made.children = (group.nodes ?? []).filter((id) => this.region.groupOf.get(id) === group && this.region.position.has(id)).map((id) => this.fromNode(id, made));
      made.first = Math.min(Infinity, ...made.children.map((child) => child.first));
      made.size = made.children.length;
      if (made.size) children.push(made);
    }
    for (const id of module.loose) children.push(this.fromNode(id, box));
    children.sort((a, b) => a.first - b.first);
    box.first = Math.min(Infinity, ...children.map((child) => child.first));
    box.size = children.reduce((sum, child) => sum + child.size, 0);
    const [only] = children;
    if (parent && only && children.length === 1) return unwrapped(box, only);
    box.children = pack(children, box);
    return box;
  }

  private fromNode(id: NodeId, parent: Box): Box {
    const node = this.region.node(id)!;
    const holder = node.kind === "input" || node.kind === "output";
    const box = makeBox(`n:${id}`, "node", holder ? id : operator(node.op), holder ? (node.kind ?? "") : id, id, parent);
    box.color = holder ? "kind-holder" : "kind-node";
    box.first = this.region.position.get(id) ?? 0;
    box.size = 1;
    this.leafOf.set(id, box);
    return box;
  }
}

function makeBox(key: string, kind: BoxKind, title: string, note: string, target: string | undefined, parent: Box | undefined): Box {
  return { key, kind, title, note, target, color: "", time: 0, parent, children: [], first: 0, size: 0 };
}

function adopt(parent: Box, children: Box[]): void {
  parent.children = children;
  for (const child of children) child.parent = parent;
}

/** A module that holds one thing is that thing, by its own name: one step for the reader instead of two. */
function unwrapped(module: Box, only: Box): Box {
  only.parent = module.parent;
  if (only.kind === "module") {
    only.title = `${module.title}.${only.title}`;
    only.note ||= module.note;
  } else {
    only.note = only.kind === "group" ? only.note : only.title;
    only.title = module.title;
  }
  return only;
}

function pack(children: Box[], parent: Box): Box[] {
  if (children.length <= MOST) return children;
  const length = Math.max(2, Math.ceil(children.length / MOST));
  const packed: Box[] = [];
  for (let from = 0; from < children.length; from += length) {
    const slice = children.slice(from, from + length);
    if (slice.length === 1) {
      packed.push(slice[0]!);
      continue;
    }
    const titles = [...new Set([slice[0]!.title, slice[slice.length - 1]!.title])];
    const part = makeBox(`p:${parent.key}:${from}:${length}`, "part", titles.join(" … "), `${slice.length} in order`, undefined, parent);
    for (const child of slice) child.parent = part;
    part.children = pack(slice, part);
    part.first = slice[0]!.first;
    part.size = slice.reduce((sum, child) => sum + child.size, 0);
    part.time = slice.reduce((sum, child) => sum + child.time, 0);
    packed.push(part);
  }
  return packed;
}
