// The data of the page, plain or compressed, and whether it is data that this page reads.
import type { Report } from "./schema";

export async function load(): Promise<Report> {
  const element = document.getElementById("lampwork-data");
  const content = element?.textContent ?? "";
  const text = element?.getAttribute("data-encoding") === "gzip-base64" ? await unpack(content) : content;
  const data: unknown = JSON.parse(text);
  if (element) element.textContent = "";
  if (typeof data !== "object" || data === null) throw new Error("This page holds no report: it is the template that `lampwork explain` fills.");
  const { format, regions } = data as Partial<Report>;
  if (format !== 1) throw new Error(`This page reads reports of format 1; this one says ${JSON.stringify(format)}. Write it anew with the same version of Lampwork.`);
  if (!Array.isArray(regions)) throw new Error("The report has no list of regions.");
  return data as Report;
}

async function unpack(base64: string): Promise<string> {
  const binary = atob(base64.trim());
  const packed = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index++) packed[index] = binary.charCodeAt(index);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}
