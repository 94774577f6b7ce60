// A region made ready for the views: who computes what, who reads whom, and the tree of modules with its times.
import { History } from "./history";
import type { Decision, Frame, GraphNode, Group, NodeId, Region, Report } from "./schema";

export interface ModuleNode {
  path: string;
  name: string;
  type: string;
  children: ModuleNode[];
  parent: ModuleNode | undefined;
  /** What belongs to this module and to none inside it. */
  groups: Group[];
  loose: NodeId[];
  time: number;
  self: number;
  flops: number;
  bytes: number;
  kernels: number;
}

export class RegionModel {
  readonly history: History;
  readonly groups = new Map<string, Group>();
  /** All kernels that work for a node, and among them the one that computes it: that with most arithmetic. */
  readonly groupsOf = new Map<NodeId, Group[]>();
  readonly groupOf = new Map<NodeId, Group>();
  readonly readers = new Map<NodeId, NodeId[]>();
  readonly position = new Map<NodeId, number>();
  readonly time: number;
  readonly timed: boolean;
  readonly modules: ModuleNode;
  readonly decisions = new Map<string, Decision[]>();
  private counted: NodeId[] | undefined;
  private readonly moduleAt = new Map<string, ModuleNode>();

  constructor(readonly report: Report, readonly region: Region, readonly label: string, readonly index: number) {
    this.history = new History(region.graphs);
    for (const group of region.groups ?? []) {
      this.groups.set(group.id, group);
      for (const id of group.nodes ?? []) {
        push(this.groupsOf, id, group);
        const other = this.groupOf.get(id);
        if (!other || (group.flops ?? 0) >= (other.flops ?? 0)) this.groupOf.set(id, group);
      }
    }
    this.history.order.forEach((id, index) => {
      this.position.set(id, index);
      for (const input of this.node(id)?.inputs ?? []) push(this.readers, input, id);
    });
    const timed = (region.groups ?? []).filter((group) => group.time !== undefined);
    this.timed = timed.length > 0;
    this.time = timed.reduce((sum, group) => sum + timeOf(group), 0);
    for (const decision of region.fusion ?? []) {
      const ends = [decision.a, decision.b].map((name) => name !== undefined && this.known(name)).filter((id) => id !== false && id !== undefined);
      for (const id of new Set(ends)) push(this.decisions, id, decision);
    }
    this.modules = this.makeModules();
  }

  node(id: NodeId): GraphNode | undefined {
    return this.history.find(id);
  }

  /** The node or kernel of a buffer: layer_norm_mean is part of layer_norm. */
  known(name: string): string | undefined {
    for (let at = name; at; at = at.slice(0, Math.max(0, at.lastIndexOf("_")))) if (this.groups.has(at) || this.node(at)) return at;
    return undefined;
  }

  /** Where a node comes from in the user's program, the innermost frame last. */
  stack(node: GraphNode): Frame[] {
    if (Array.isArray(node.stack)) return node.stack;
    const stack = (this.report.stacks?.[node.stack ?? -1] ?? []).map((index) => this.report.frames?.[index]).filter((frame) => frame !== undefined);
    if (node.file === undefined || node.line === undefined) return stack;
    // What torch's own modules do for a line is less to the reader than the line.
    const at = stack.findLastIndex(([file, line]) => file === node.file && line === node.line);
    return at < 0 ? [...stack, [node.file, node.line, ""]] : stack.slice(0, at + 1);
  }

  /** Operators of the final graph, without what only holds a value. */
  get operators(): NodeId[] {
    this.counted ??= this.history.order.filter((id) => !isHolder(this.node(id)));
    return this.counted;
  }

  module(path: string): ModuleNode | undefined {
    return this.moduleAt.get(path);
  }

  /** The innermost module that holds all of a kernel: time of a kernel is spent in there for certain. */
  modulePath(group: Group): string {
    let common: string[] | undefined;
    for (const id of group.nodes ?? []) {
      const path = this.node(id)?.module;
      if (path === undefined || isHolder(this.node(id))) continue;
      const names = path === "" ? [] : path.split(".");
      if (common === undefined) common = names;
      else {
        let same = 0;
        while (same < common.length && common[same] === names[same]) same++;
        common = common.slice(0, same);
      }
    }
    return (common ?? []).join(".");
  }

  private makeModules(): ModuleNode {
    const root = emptyModule("", this.report.title ?? this.region.name, undefined);
    this.moduleAt.set("", root);
    for (const id of this.history.order) {
      const node = this.node(id);
      if (node?.module === undefined || isHolder(node)) continue;
      const made = this.makeModule(node.module);
      if (node.type) made.type = node.type;
    }
    for (const group of this.region.groups ?? []) {
      const at = this.makeModule(this.modulePath(group));
      at.groups.push(group);
      at.self += timeOf(group);
      for (let up: ModuleNode | undefined = at; up; up = up.parent) {
        up.time += timeOf(group);
        up.flops += (group.flops ?? 0) * (group.calls ?? 1);
        up.bytes += ((group.reads ?? 0) + (group.writes ?? 0)) * (group.calls ?? 1);
        up.kernels += group.kind === "view" ? 0 : 1;
      }
    }
    for (const id of this.history.order) {
      const node = this.node(id);
      if (!node || this.groupOf.has(id) || node.kind === "bound" || node.kind === "constant") continue;
      (isHolder(node) ? root : this.makeModule(node.module ?? "")).loose.push(id);
    }
    return root;
  }

  private makeModule(path: string): ModuleNode {
    const known = this.moduleAt.get(path);
    if (known) return known;
    const cut = path.lastIndexOf(".");
    const parent = this.makeModule(cut < 0 ? "" : path.slice(0, cut));
    const made = emptyModule(path, path.slice(cut + 1), parent);
    parent.children.push(made);
    this.moduleAt.set(path, made);
    return made;
  }
}

export function isHolder(node: GraphNode | undefined): boolean {
  return node?.kind === "bound" || node?.kind === "constant" || node?.kind === "input" || node?.kind === "output";
}

/** All time that a run of the region spends in a group. */
export function timeOf(group: Group): number {
  return (group.time ?? 0) * (group.calls ?? 1);
}

export function bytesOf(group: Group): number | undefined {
  return group.reads === undefined && group.writes === undefined ? undefined : (group.reads ?? 0) + (group.writes ?? 0);
}

const operatorNames = new Map<string, string>();

/** The name of an operator without its namespace and overload. */
export function operator(op: string): string {
  let name = operatorNames.get(op);
  if (name === undefined) {
    name = op.replace(/^aten::/, "").replace(/\.\w+$/, "");
    operatorNames.set(op, name);
  }
  return name;
}

function push<T>(map: Map<string, T[]>, key: string, value: T): void {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}

function emptyModule(path: string, name: string, parent: ModuleNode | undefined): ModuleNode {
  return { path, name, type: "", children: [], parent, groups: [], loose: [], time: 0, self: 0, flops: 0, bytes: 0, kernels: 0 };
}
