// The graph of a region as recorded, after each pass, and at the end: the steps hold only what each pass changed.
import type { Change, GraphNode, Graphs, NodeId, PassStep, Rewrite } from "./schema";

export interface Version {
  order: NodeId[];
  nodes: Map<NodeId, GraphNode>;
  positions?: Map<NodeId, number>;
}

/** One row of "what did this pass change": a node that stayed, or one that came, went or became another. */
export interface Row {
  id: NodeId;
  state: "same" | "added" | "removed" | "changed";
  node: GraphNode;
  before?: GraphNode;
  rewrite?: number;
}

export class History {
  readonly steps: PassStep[];
  readonly order: NodeId[];
  private readonly nodes: Map<NodeId, GraphNode>;
  private readonly versions: Version[];

  constructor(graphs: Graphs | undefined) {
    this.steps = graphs?.steps ?? [];
    const recorded = version(graphs?.recorded?.nodes ?? []);
    this.versions = [recorded];
    this.nodes = new Map(recorded.nodes);
    for (const step of this.steps) {
      const { added, changed } = changes(step);
      for (const [id, node] of [...added, ...changed]) this.nodes.set(id, node);
    }
    const end = graphs?.optimized;
    if (Array.isArray(end)) this.order = end.length ? end.filter((id) => this.nodes.has(id)) : this.at(this.steps.length).order;
    else if (end) {
      for (const node of end.nodes) this.nodes.set(node.id, node);
      this.order = end.nodes.map((node) => node.id);
    } else this.order = this.at(this.steps.length).order;
  }

  /** 0 is the graph as recorded, k the one after step k; made when it is asked for, after all before it. */
  at(step: number): Version {
    while (this.versions.length <= step) this.versions.push(apply(this.versions[this.versions.length - 1]!, this.steps[this.versions.length - 1]!));
    return this.versions[step]!;
  }

  /** A node of any version, the latest first. */
  find(id: NodeId): GraphNode | undefined {
    return this.nodes.get(id);
  }

  /** Rows in the order of the graph. Those that stayed are left out unless `all` are wanted: most graphs are long. */
  rows(step: number, all: boolean): Row[] {
    const now = this.at(step);
    if (step === 0) return all ? now.order.map((id) => ({ id, state: "same", node: now.nodes.get(id)! })) : [];
    const before = this.at(step - 1);
    const changed = changes(this.steps[step - 1]!);
    const rewriteOf = new Map<NodeId, number>();
    (this.steps[step - 1]!.rewrites ?? []).forEach((rewrite, index) => {
      for (const id of touched(rewrite)) if (!rewriteOf.has(id)) rewriteOf.set(id, index);
    });
    const rows: Row[] = [];
    const push = (id: NodeId, state: Row["state"], node: GraphNode, old?: GraphNode) => {
      const row: Row = { id, state, node };
      if (old) row.before = old;
      const rewrite = rewriteOf.get(id);
      if (rewrite !== undefined) row.rewrite = rewrite;
      rows.push(row);
      any = true;
    };
    let at = 0;
    let any = false;
    const positions = positionsIn(before);
    const removedUpTo = (end: number) => {
      for (; at < end; at++) {
        const id = before.order[at]!;
        if (!now.nodes.has(id)) push(id, "removed", before.nodes.get(id)!);
      }
    };
    for (const id of now.order) {
      const old = before.nodes.get(id);
      if (old) removedUpTo(positions.get(id)!);
      else removedUpTo(goneFrom(before.order, any ? at + (now.nodes.has(before.order[at]!) ? 1 : 0) : 0, now));
      const node = now.nodes.get(id)!;
      if (!old) push(id, "added", node);
      else if (changed.changed.has(id)) push(id, "changed", node, old !== node ? old : undefined);
      else {
        if (all) rows.push({ id, state: "same", node });
        any = true;
      }
    }
    removedUpTo(before.order.length);
    return rows;
  }
}

export function touched(change: Change): NodeId[] {
  return [...(change.removed ?? []), ...(change.added ?? []).map((node) => node.id), ...(change.changed ?? []).map(([id]) => id)];
}

export function parts(step: PassStep): (Change | Rewrite)[] {
  return [...(step.rewrites ?? []), step];
}

function version(nodes: GraphNode[]): Version {
  return { order: nodes.map((node) => node.id), nodes: new Map(nodes.map((node) => [node.id, node])) };
}

/** Where each node stands; made once. */
function positionsIn(version: Version): Map<NodeId, number> {
  version.positions ??= new Map(version.order.map((id, index) => [id, index]));
  return version.positions;
}

function changes(step: PassStep) {
  const removed = new Set<NodeId>();
  const added = new Map<NodeId, GraphNode>();
  const changed = new Map<NodeId, GraphNode>();
  for (const part of parts(step)) {
    for (const id of part.removed ?? []) {
      changed.delete(id);
      if (!added.delete(id)) removed.add(id);
    }
    for (const node of part.added ?? []) added.set(node.id, node);
    for (const [id, node] of part.changed ?? []) (added.has(id) ? added : changed).set(id, node);
  }
  return { removed, added, changed };
}

/** An added node stands behind the node it names, else behind its last input, else where a node of its step went. */
function apply(before: Version, step: PassStep): Version {
  const { removed, added, changed } = changes(step);
  if (!removed.size && !added.size && !changed.size) return before;
  const nodes = new Map(before.nodes);
  for (const id of removed) nodes.delete(id);
  for (const [id, node] of changed) if (nodes.has(id)) nodes.set(id, node);
  for (const [id, node] of added) nodes.set(id, node);
  const place = new Map(positionsIn(before));
  const firstGone = before.order.findIndex((id) => removed.has(id));
  const fallback = firstGone < 0 ? before.order.length - 1 : firstGone;
  const behind = new Map<number, NodeId[]>();
  for (const [id, node] of added) {
    const inputs = (node.inputs ?? []).map((input) => place.get(input)).filter((at) => at !== undefined);
    const at = (node.after !== undefined ? place.get(node.after) : undefined) ?? (inputs.length ? Math.max(...inputs) : fallback);
    place.set(id, at);
    const there = behind.get(at);
    if (there) there.push(id);
    else behind.set(at, [id]);
  }
  const order: NodeId[] = [...(behind.get(-1) ?? [])];
  before.order.forEach((id, index) => {
    if (!removed.has(id) && !added.has(id)) order.push(id);
    for (const fresh of behind.get(index) ?? []) order.push(fresh);
  });
  return { order, nodes };
}

/** The end of a run of removed nodes that starts at `from`. */
function goneFrom(order: NodeId[], from: number, now: Version): number {
  let end = from;
  while (end < order.length && !now.nodes.has(order[end]!)) end++;
  return end;
}
