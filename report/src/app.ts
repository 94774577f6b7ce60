// What every view needs: the report, the region in sight, and the ways to other places.
import type { RegionModel } from "./model";
import type { Region, Report } from "./schema";

export interface Place {
  view: string;
  region: number;
  selected: string | undefined;
}

export interface App {
  readonly report: Report;
  readonly place: Place;
  readonly regions: { label: string; index: number }[];
  region(index?: number): RegionModel;
  regionData(index: number): Region;
  /** Shows a kernel or a node in the panel; nothing closes it. */
  select(id: string | undefined): void;
  go(view: string, change?: Partial<Place>): void;
}

/** A view makes its element; `selected` hears of each selection while the view is in sight. */
export interface View {
  element: HTMLElement;
  selected?: (id: string | undefined) => void;
  shown?: () => void;
}

export interface ViewKind {
  id: string;
  title: string;
  count?: (region: RegionModel, report: Report) => number;
  make: (app: App) => View;
}

/** `#graph/0/k3` */
export function readPlace(hash: string): Place {
  const [view, region, selected] = hash.replace(/^#/, "").split("/").map(decode);
  return { view: view || "overview", region: Number(region) || 0, selected: selected || undefined };
}

export function writePlace(place: Place): string {
  return `#${[place.view, String(place.region), place.selected ?? ""].map(encodeURIComponent).join("/")}`;
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}
