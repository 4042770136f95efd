// The tasks of a server to try: a tab to a task, the form of the chosen one, running it, and showing what came back.

import { make, number, onTabKeys, place, selectTab, trouble } from "../dom.ts";
import { hasKey, send, wrong, type Reply } from "../server.ts";
import { t } from "../words.ts";
import { TASKS, type Field, type Given, type Task } from "./tasks.ts";

export interface Card {
  id: string;
  tasks: string[];
}

/** What the section needs of the page around it. */
export interface Frame {
  models: Card[];
  wanted: string | null;
  showModels(able: Card[], chosen: string | undefined): void;
  askForKey(): void;
}

export class TasksPage {
  private tasks: Task[] = [];
  private task: Task | null = null;
  private readonly values = new Map<string, Given>();
  private asked = 0;

  constructor(private readonly root: HTMLElement, private readonly frame: Frame) {}

  /** Draw the section; the task in the address is chosen. */
  draw(): void {
    this.keep();
    this.tasks = TASKS.filter((task) => task.needs === null || this.ableTo(task).length);
    const tabs = make("div", { id: "tabs", class: "tabs", role: "tablist", "aria-label": t("tasks") });
    for (const task of this.tasks) {
      const tab = make("button", { id: `tab-${task.id}`, type: "button", role: "tab", "aria-controls": "ask", "data-task": task.id }, t(task.title));
      tab.addEventListener("click", () => this.choose(task));
      tabs.append(tab);
    }
    onTabKeys(tabs, (tab) => tab.click());
    const form = make("form", { id: "form", autocomplete: "off" });
    form.addEventListener("submit", (event) => void this.ask(event));
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    const copy = make("button", { id: "copy", type: "button" }, t("copy"));
    copy.addEventListener("click", () => void this.copyCurl(copy));
    this.root.replaceChildren(
      tabs,
      make(
        "div",
        { id: "columns" },
        make("section", { class: "card", id: "ask", role: "tabpanel" }, make("p", { id: "lead", class: "lead" }), form),
        make(
          "section",
          { id: "found", "aria-live": "polite", "aria-label": t("answer") },
          make("div", { class: "card", id: "answer" }),
          make("details", { id: "call" }, make("summary", {}, t("sameWithCurl")), make("div", { class: "code" }, make("pre", { id: "curl", tabIndex: 0 }), copy)),
          make("details", { id: "raw" }, make("summary", {}, t("rawResponse")), make("pre", { id: "json", tabIndex: 0 })),
        ),
      ),
    );
    const named = this.tasks.find((task) => `#${task.id}` === location.hash);
    this.choose(named ?? this.tasks.find((task) => task === this.task) ?? this.tasks[0]);
  }

  /** The address has changed. */
  follow(): void {
    const task = this.tasks.find((one) => `#${one.id}` === location.hash);
    if (task && task !== this.task) this.choose(task);
  }

  modelChosen(): void {
    this.blank();
  }

  // -- running --------------------------------------------------------------------------------------------------

  private async ask(event: Event): Promise<void> {
    event.preventDefault();
    const task = this.task!;
    const given = this.given(task);
    this.values.set(task.id, given);
    const request = task.request(given);
    const chosen = this.modelFor(task);
    if (this.frame.models.length > 1 && chosen) request.body.model = chosen;
    const turn = ++this.asked;
    const button = place<HTMLButtonElement>("send");
    button.disabled = true;
    place("curl").textContent = curlOf(request);
    const reply = await send("POST", request.path, request.body);
    button.disabled = false;
    if (turn !== this.asked || task !== this.task) return;
    if (reply.status === 401) this.frame.askForKey();
    this.show(task, given, reply);
  }

  private show(task: Task, given: Given, reply: Reply): void {
    const answer = place("answer");
    place("call").hidden = false;
    place("raw").hidden = false;
    place("json").textContent = shortened(reply.payload);
    if (reply.status !== 200) {
      answer.replaceChildren(wrong(reply));
      return;
    }
    try {
      answer.replaceChildren(...task.show(reply.payload, given), timing(reply));
    } catch (problem) {
      answer.replaceChildren(trouble(t("cannotDraw", problem instanceof Error ? problem.message : problem), t("rawBelow")));
    }
  }

  private blank(): void {
    place("answer").replaceChildren(make("p", { class: "empty" }, t("answerPlace")));
    place("call").hidden = true;
    place("raw").hidden = true;
  }

  private async copyCurl(button: HTMLElement): Promise<void> {
    try {
      await navigator.clipboard.writeText(place("curl").textContent ?? "");
      button.textContent = t("copied");
    } catch {
      getSelection()?.selectAllChildren(place("curl"));
      button.textContent = t("selected");
    }
    setTimeout(() => (button.textContent = t("copy")), 1500);
  }

  // -- the form -------------------------------------------------------------------------------------------------

  private choose(task: Task): void {
    this.keep();
    this.task = task;
    const kept = this.values.get(task.id) ?? {};
    place("lead").textContent = t(task.lead);
    const fields = task.fields.map((field) => fieldOf(field, kept[field.name] ?? field.value));
    place("form").replaceChildren(...fields, make("div", {}, make("button", { id: "send", class: "primary" }, t("run"))));
    selectTab(place("tabs"), `tab-${task.id}`);
    place("ask").setAttribute("aria-labelledby", `tab-${task.id}`);
    history.replaceState(null, "", `#${task.id}`);
    this.frame.showModels(this.ableTo(task), this.modelFor(task));
    this.blank();
  }

  /** What stands in the form is there again when its task is. */
  private keep(): void {
    if (this.task && document.getElementById(`field-${this.task.fields[0].name}`)) this.values.set(this.task.id, this.given(this.task));
  }

  private given(task: Task): Given {
    const given: Given = {};
    for (const field of task.fields) {
      const { value } = place<HTMLInputElement>(`field-${field.name}`);
      given[field.name] = field.kind === "number" ? Number(value) : value;
    }
    return given;
  }

  /** The models that can do a task, the more suitable first. */
  private ableTo({ needs, avoids }: Task): Card[] {
    const able = this.frame.models.filter((model) => needs === null || model.tasks.includes(needs));
    return able.sort((a, b) => Number(a.tasks.includes(avoids ?? "")) - Number(b.tasks.includes(avoids ?? "")));
  }

  private modelFor(task: Task): string | undefined {
    const able = this.ableTo(task);
    return (able.find((model) => model.id === this.frame.wanted) ?? able[0])?.id;
  }
}

function fieldOf(field: Field, value: string | number): HTMLElement {
  const id = `field-${field.name}`;
  let input: HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement;
  if (field.kind === "number") {
    input = make("input", { id, type: "number", min: 1, max: field.most, required: true, value });
  } else if (field.kind === "choice") {
    input = make("select", { id });
    for (const [name, words] of Object.entries(field.choices ?? {})) input.append(make("option", { value: name }, t(words)));
    input.value = String(value);
  } else {
    input = make("textarea", { id, rows: field.rows, required: !field.optional, value, dir: "auto" });
    input.spellcheck = false;
  }
  input.name = field.name;
  const hint = field.hint ? make("span", { class: "hint" }, ` (${t(field.hint)})`) : null;
  return make("div", { class: "field" }, make("label", { htmlFor: id }, t(field.label), hint), input);
}

function curlOf({ path, body }: { path: string; body: unknown }): string {
  const inQuotes = (words: string): string => `'${words.replaceAll("'", `'\\''`)}'`;
  const key = hasKey() ? ` \\\n  -H "authorization: Bearer $BERTIE_API_KEY"` : "";
  return `curl -s ${location.origin}${path} \\\n  -H 'content-type: application/json'${key} \\\n  -d ${inQuotes(JSON.stringify(body))}`;
}

function timing({ took, headers }: Reply): HTMLElement {
  const line = make("p", { class: "took" }, make("span", {}, make("b", {}, number(took, 1)), ` ${t("roundTrip")}`));
  const named = [["x-total-time", "inServer"], ["x-queue-time", "waitingTime"], ["x-inference-time", "inModel"]] as const;
  for (const [name, words] of named) {
    const value = headers.get(name);
    if (value !== null) line.append(make("span", {}, make("b", {}, value), ` ${t(words)}`));
  }
  const tokens = headers.get("x-compute-tokens");
  if (tokens !== null) line.append(make("span", {}, make("b", {}, tokens), ` ${t("tokensCount")}`));
  return line;
}

/** JSON for people: long lists of numbers are cut. */
function shortened(payload: unknown): string {
  if (typeof payload === "string") return payload;
  const cut = (_: string, value: unknown): unknown => {
    const numbers = Array.isArray(value) && value.length > 12 && value.every((one) => typeof one === "number");
    return numbers ? [...value.slice(0, 8), `… ${value.length - 8} more`] : value;
  };
  return JSON.stringify(payload, cut, 1).replace(/\[\s+(-?\d[^[\]{}]*?)\s+\]/g, (list) => list.replace(/\s+/g, " "));
}
