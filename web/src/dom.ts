// Making elements. Everything that came from a person or a model becomes text nodes, never markup.

export type Child = Node | string | null | undefined;
type Properties = Record<string, unknown>;

/** An element with properties, attributes (`aria-…`, `data-…`, `role`) and children; strings become text nodes. */
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Properties = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (name === "class") element.className = String(value);
    else if (name.startsWith("on") && typeof value === "function") element.addEventListener(name.slice(2), value as EventListener);
    else if (name in element && !name.includes("-")) (element as unknown as Properties)[name] = value;
    else element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child): child is Node | string => child !== null && child !== undefined));
  return element;
}

export function place<T extends HTMLElement = HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page lacks #${id}`);
  return found as T;
}

/** A number for people; null is what JSON has for no number. */
export function number(value: number | null, digits = 3): string {
  if (value === null) return "–";
  return Number.isFinite(value) ? value.toFixed(digits).replace(/^-(0\.?0*)$/, "$1") : String(value);
}

export function percent(value: number): string {
  return `${(100 * value).toFixed(Math.abs(value) < 0.1 ? 2 : 1)} %`;
}

export function clip(text: string, size = 60): string {
  const letters = Array.from(text);
  return letters.length <= size ? text : `${letters.slice(0, size - 1).join("")}…`;
}

/** A name inside a line of another direction: between two Hebrew words, an arrow would point from the second to the first. */
export function isolated(name: string): string {
  return `\u2068${name}\u2069`;
}

export function heading(text: string): HTMLElement {
  return make("h2", {}, text);
}

/** What went wrong, and what to do about it. */
export function trouble(cause: string, remedy?: string): HTMLElement {
  return make("div", { class: "error", role: "alert" }, make("strong", {}, cause), remedy ? make("p", {}, remedy) : null);
}

/** A row of buttons of which one is chosen. */
export function chooser<T extends string>(
  label: string,
  choices: ReadonlyArray<readonly [T, string]>,
  chosen: T,
  choose: (value: T) => void,
): HTMLElement {
  const group = make("div", { class: "chooser", role: "group", "aria-label": label });
  for (const [value, words] of choices) {
    const button = make("button", { type: "button", "aria-pressed": String(value === chosen), "data-value": value }, words);
    button.addEventListener("click", () => {
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
      choose(value);
    });
    group.append(button);
  }
  return group;
}

/** Tabs after the ARIA pattern: arrow keys, Home and End move; one is in the tab order. */
export function onTabKeys(list: HTMLElement, choose: (tab: HTMLElement) => void): void {
  list.addEventListener("keydown", (event) => {
    const tabs = [...list.querySelectorAll<HTMLElement>("[role=tab]")];
    const at = tabs.findIndex((tab) => tab.getAttribute("aria-selected") === "true");
    const last = tabs.length - 1;
    const next: Record<string, number> = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at <= 0 ? last : at - 1, Home: 0, End: last };
    if (!(event.key in next) || last < 0) return;
    event.preventDefault();
    const tab = tabs[next[event.key]];
    choose(tab);
    document.getElementById(tab.id)?.focus();
  });
}

export function selectTab(list: HTMLElement, id: string): void {
  for (const tab of list.querySelectorAll<HTMLElement>("[role=tab]")) {
    const selected = tab.id === id;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    // Where they do not all fit, the chosen one is to be seen.
    if (selected) list.scrollLeft = tab.offsetLeft - list.offsetLeft - (list.clientWidth - tab.offsetWidth) / 2;
  }
}

/** Offer something as a file. */
export function download(blob: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
