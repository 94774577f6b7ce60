// The data of a report, format 1, as `lampwork.inspect.report` writes it. A key that is absent is not known.
// Times are seconds, sizes bytes; a TextRef is an index into `texts`.

export type TextRef = number;
export type NodeId = string;
/** File, line, function. */
export type Frame = [string, number, string];

export interface GraphNode {
  id: NodeId;
  op: string;
  args?: string;
  inputs?: NodeId[];
  kind?: "input" | "bound" | "constant" | "op" | "output";
  dtype?: string;
  shape?: (number | string)[];
  module?: string;
  type?: string;
  /** An index into `stacks`, or the frames themselves, the innermost last. */
  stack?: number | Frame[];
  file?: string;
  line?: number;
  /** Of nodes with several results. */
  results?: { dtype?: string; shape?: (number | string)[] }[];
  flags?: string[];
  bytes?: number;
  after?: NodeId;
}

export interface Change {
  removed?: NodeId[];
  added?: GraphNode[];
  changed?: [NodeId, GraphNode][];
}

export interface Rewrite extends Change {
  name: string;
  source?: string;
  note?: string;
}

export interface PassStep extends Change {
  pass: string;
  seconds?: number;
  /** Numbers of nodes. */
  before?: number;
  after?: number;
  hits?: Record<string, number>;
  /** What matched, but was not applied. */
  refused?: { name: string; why?: string; times?: number }[];
  rewrites?: Rewrite[];
}

export interface Graphs {
  recorded?: { nodes: GraphNode[] };
  steps?: PassStep[];
  optimized?: NodeId[] | { nodes: GraphNode[] };
}

export type GroupKind = "kernel" | "gemm" | "conv" | "attention" | "aten" | "view";

export interface Group {
  id: string;
  name?: string;
  kind?: string;
  nodes?: NodeId[];
  step?: number;
  reads?: number;
  writes?: number;
  flops?: number;
  /** Of one call: the median of those that were seen. */
  time?: number;
  calls?: number;
  dtype?: string;
  /** What a call would take at the machine's limits, and which of them sets it. */
  least?: number;
  bound?: "arithmetic" | "memory";
  why?: string[];
  texts?: { loops?: TextRef; llvm?: TextRef; assembly?: TextRef };
}

export interface Decision {
  what?: string;
  /** Names of buffers: of nodes, or of parts of them, such as layer_norm_mean. */
  a?: string;
  b?: string;
  fused: boolean;
  why?: string;
}

export interface MemoryValue {
  name: string;
  offset?: number;
  size: number;
  first: number;
  last: number;
  kind?: string;
}

export interface Memory {
  arena?: number;
  values?: MemoryValue[];
  steps?: string[];
  saved?: number;
}

export interface Flame {
  name: string;
  start: number;
  seconds: number;
  depth: number;
}

export interface Region {
  name: string;
  kind?: string;
  hits?: number;
  /** Of one run: the median of so many `runs`. */
  time?: number;
  runs?: number;
  seconds?: Record<string, number>;
  counts?: Record<string, number | string>;
  flame?: Flame[];
  lines?: Record<string, string>;
  guards?: { condition: string; line?: string; slow?: boolean }[];
  symbols?: string[];
  graphs?: Graphs;
  groups?: Group[];
  fusion?: Decision[];
  memory?: Memory;
  constants?: { name: string; from?: string[]; bytes?: number; refreshed?: number; when?: string }[];
  program?: TextRef;
  bytecode?: TextRef;
  definitions?: TextRef;
  fusion_text?: TextRef;
  saved?: TextRef;
  partition?: { backend: string; nodes?: NodeId[]; why?: string }[];
  backward?: Region;
}

export interface Record_ {
  kind: string;
  code?: string;
  cause?: string;
  fix?: string;
  file?: string;
  line?: number;
  function?: string;
  module?: string;
  region?: number;
  values?: [unknown, unknown];
}

export interface Machine {
  cpu?: string;
  isa?: string;
  threads?: number;
  peak_gflops?: Record<string, number>;
  /** From memory, and from a core's own cache. */
  peak_gbs?: number;
  peak_cache_gbs?: number;
}

export interface Report {
  format: 1;
  lampwork?: string;
  torch?: string;
  made?: string;
  title?: string;
  machine?: Machine;
  options?: Record<string, unknown>;
  sources?: Record<string, { first: number; lines: string[] }[]>;
  frames?: Frame[];
  stacks?: number[][];
  records?: Record_[];
  regions: Region[];
  functions?: { name: string; regions?: number[]; refusals?: unknown[] }[];
  texts?: string[];
}
