// Numbers as people read them: three digits, a unit, and a thin space between.

const THIN = "\u202f";

function digits(value: number): string {
  const size = Math.abs(value);
  if (size >= 100 || size === 0) return Math.round(value).toString();
  return value.toFixed(size >= 10 ? 1 : 2);
}

export function seconds(value: number | undefined): string {
  if (value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return `0${THIN}s`;
  if (size >= 1) return `${digits(value)}${THIN}s`;
  if (size >= 1e-3) return `${digits(value * 1e3)}${THIN}ms`;
  if (size >= 1e-6) return `${digits(value * 1e6)}${THIN}µs`;
  return `${digits(value * 1e9)}${THIN}ns`;
}

export function bytes(value: number | undefined): string {
  if (value === undefined) return "–";
  let size = value;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(size) < 1024) return `${unit === "B" ? Math.round(size) : digits(size)}${THIN}${unit}`;
    size /= 1024;
  }
  return `${digits(size)}${THIN}TiB`;
}

/** 1.25e9 with "FLOP" is 1.25 GFLOP. */
export function quantity(value: number | undefined, unit: string): string {
  if (value === undefined) return "–";
  let size = value;
  for (const prefix of ["", "k", "M", "G", "T"]) {
    if (Math.abs(size) < 1000) return `${prefix === "" && Number.isInteger(size) ? size : digits(size)}${THIN}${prefix}${unit}`;
    size /= 1000;
  }
  return `${digits(size)}${THIN}P${unit}`;
}

export function percent(share: number): string {
  if (share > 0 && share < 0.001) return `<${THIN}0.1${THIN}%`;
  return `${(share * 100).toFixed(share >= 0.0995 ? 0 : 1)}${THIN}%`;
}

export function count(value: number, one: string, many = `${one}s`): string {
  return `${value.toLocaleString("en")} ${value === 1 ? one : many}`;
}

export function shape(dtype: string | undefined, sizes: (number | string)[] | undefined): string {
  if (!dtype && !sizes) return "";
  return `${dtype ?? ""}${sizes ? `[${sizes.join(", ")}]` : ""}`;
}

/** What a node gives: one value, or several. */
export function results(node: { dtype?: string; shape?: (number | string)[]; results?: { dtype?: string; shape?: (number | string)[] }[] }): string {
  return node.results ? node.results.map((each) => shape(each.dtype, each.shape)).join(", ") : shape(node.dtype, node.shape);
}

/** The end of a path, which is what tells files apart. */
export function shortPath(path: string, parts = 2): string {
  return path.split("/").slice(-parts).join("/");
}

export function plain(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value) ?? String(value);
}
