// Elements from data: text goes in as text nodes only, so that no name or source line can become markup.

type Child = Node | string | number | null | undefined | false;
type Attributes = Record<string, string | number | boolean | ((event: never) => void) | undefined>;

const SVG = "http://www.w3.org/2000/svg";

/** `h("button.small", { type: "button", onclick: f }, "Text")`; functions become listeners, `true` an empty attribute. */
export function h<K extends keyof HTMLElementTagNameMap>(spec: K | `${K}.${string}`, ...rest: (Attributes | Child | Child[])[]): HTMLElementTagNameMap[K] {
  const [tag, ...classes] = spec.split(".");
  const element = document.createElement(tag as K);
  if (classes.length) element.className = classes.join(" ");
  fill(element, rest);
  return element;
}

export function svg<K extends keyof SVGElementTagNameMap>(spec: K | `${K}.${string}`, ...rest: (Attributes | Child | Child[])[]): SVGElementTagNameMap[K] {
  const [tag, ...classes] = spec.split(".");
  const element = document.createElementNS(SVG, tag as K);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  fill(element, rest);
  return element;
}

function fill(element: Element, rest: (Attributes | Child | Child[])[]): void {
  for (const item of rest) {
    if (item === null || item === undefined || item === false) continue;
    if (Array.isArray(item)) for (const child of item) append(element, child);
    else if (item instanceof Node || typeof item !== "object") append(element, item);
    else set(element, item);
  }
}

function append(element: Element, child: Child): void {
  if (child === null || child === undefined || child === false) return;
  element.append(child instanceof Node ? child : String(child));
}

export function set(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) element.removeAttribute(name);
    else if (typeof value === "function") element.addEventListener(name.replace(/^on/, ""), value as unknown as EventListener);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

export function clear(element: Element, ...children: Node[]): void {
  element.replaceChildren(...children);
}

/** A button that looks like a link: it goes to a place of this report. */
export function link(text: string, go: () => void, title?: string): HTMLButtonElement {
  return h("button.link", { type: "button", onclick: go, title }, text);
}

/** Does what a later key press needs while nobody waits; Safari knows no idle time. */
export function whenIdle(act: () => void): void {
  if (typeof requestIdleCallback === "function") requestIdleCallback(act);
  else setTimeout(act, 300);
}

let next = 0;
/** An id for `aria-labelledby` and its like. */
export function freshId(stem: string): string {
  return `${stem}-${++next}`;
}
