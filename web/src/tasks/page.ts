// The tasks of a server to try: a tab to a task, the form of the chosen one, running it, and showing what came back.

import { download, make, number, onTabKeys, place, selectTab, trouble } from "../dom.ts";
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

// What is shown below an answer, once there is one.
const PARTS = ["call", "program", "raw"];
// A model of the hub for each task that needs one of its own.
const EXAMPLES: Record<string, string> = {
  embed: "all-MiniLM-L6-v2",
  similarity: "all-MiniLM-L6-v2",
  rerank: "cross-encoder/ms-marco-MiniLM-L6-v2",
  classify: "distilbert-base-uncased-finetuned-sst-2-english",
  zero_shot: "MoritzLaurer/multilingual-MiniLMv2-L6-mnli-xnli",
  tag: "dslim/bert-base-NER",
  answer: "deepset/bert-base-cased-squad2",
  fill: "bert-base-uncased",
  next: "bert-base-uncased",
  features: "all-MiniLM-L6-v2",
};

export class TasksPage {
  private tasks: Task[] = [];
  private task: Task | null = null;
  private readonly values = new Map<string, Given>();
  private asked = 0;
  private payload: unknown = null;

  constructor(private readonly root: HTMLElement, private readonly frame: Frame) {}

  /** Draw the section; the task in the address is chosen. */
  draw(): void {
    this.keep();
    this.tasks = TASKS;
    const tabs = make("div", { id: "tabs", class: "tabs", role: "tablist", "aria-label": t("tasks") });
    for (const task of this.tasks) {
      const missing = this.isMissing(task) ? "missing" : "";
      const tab = make("button", { id: `tab-${task.id}`, type: "button", role: "tab", "aria-controls": "ask", class: missing, "data-task": task.id }, t(task.title));
      tab.addEventListener("click", () => this.choose(task));
      tabs.append(tab);
    }
    onTabKeys(tabs, (tab) => tab.click());
    const form = make("form", { id: "form", autocomplete: "off" });
    form.addEventListener("submit", (event) => void this.ask(event));
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
    const copied = (id: string, words: () => string): HTMLElement => {
      const button = make("button", { id, type: "button" }, t("copy"));
      button.addEventListener("click", () => void copy(button, words()));
      return button;
    };
    const snippet = (id: string): HTMLElement => make("pre", { id, tabIndex: 0 });
    const keep = make("button", { id: "keep", type: "button" }, t("download"));
    keep.addEventListener("click", () => download(new Blob([whole(this.payload)], { type: "application/json" }), `${this.task?.id}.json`));
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
          make("details", { id: "call" }, make("summary", {}, t("sameWithCurl")), make("div", { class: "code" }, snippet("curl"), copied("copy", () => textOf("curl")))),
          make("details", { id: "program" }, make("summary", {}, t("sameWithPython")), make("div", { class: "code" }, snippet("python"), copied("copy-python", () => textOf("python")))),
          make("details", { id: "raw" }, make("summary", {}, t("rawResponse")), make("div", { class: "code" }, snippet("json"), copied("copy-json", () => whole(this.payload)), keep)),
        ),
      ),
    );
    const named = this.tasks.find((task) => `#${task.id}` === location.hash);
    const first = this.tasks.find((task) => !this.isMissing(task)) ?? this.tasks[0];
    this.choose(named ?? this.tasks.find((task) => task === this.task) ?? first);
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
    place("python").textContent = pythonOf(request);
    const reply = await send("POST", request.path, request.body);
    button.disabled = false;
    if (turn !== this.asked || task !== this.task) return;
    if (reply.status === 401) this.frame.askForKey();
    this.show(task, given, reply);
  }

  private show(task: Task, given: Given, reply: Reply): void {
    const answer = place("answer");
    for (const part of PARTS) place(part).hidden = false;
    this.payload = reply.payload;
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
    for (const part of PARTS) place(part).hidden = true;
  }

  // -- the form -------------------------------------------------------------------------------------------------

  private choose(task: Task): void {
    this.keep();
    this.task = task;
    const kept = this.values.get(task.id) ?? {};
    place("lead").textContent = t(task.lead);
    const fields = task.fields.map((field) => fieldOf(field, kept[field.name] ?? field.value));
    const run = make("button", { id: "send", class: "primary", disabled: this.isMissing(task) }, t("run"));
    place("form").replaceChildren(...fields, make("div", {}, run));
    selectTab(place("tabs"), `tab-${task.id}`);
    place("ask").setAttribute("aria-labelledby", `tab-${task.id}`);
    history.replaceState(null, "", `#${task.id}`);
    this.frame.showModels(this.ableTo(task), this.modelFor(task));
    this.blank();
    if (this.isMissing(task)) {
      const command = make("pre", { class: "how", tabIndex: 0 }, `bertie serve -m ${EXAMPLES[task.needs ?? ""] ?? "./my-model"}`);
      place("answer").replaceChildren(make("p", {}, t("noModelFor")), make("p", {}, t("getModelFor")), command);
    }
  }

  private isMissing(task: Task): boolean {
    return task.needs !== null && !this.ableTo(task).length;
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

function pythonOf({ path, body }: { path: string; body: unknown }): string {
  // JSON is Python but for three words, which stand outside of strings.
  const shown = JSON.stringify(body, null, 4).replace(/("(?:[^"\\\\]|\\\\.)*")|\b(true|false|null)\b/g, (_, words, name) => words ?? PYTHON[name]);
  const key = hasKey() ? `headers = {"authorization": f"Bearer {os.environ['BERTIE_API_KEY']}"}\n` : "";
  const imports = hasKey() ? "import os\n\nimport requests\n\n" : "import requests\n\n";
  return `${imports}${key}body = ${shown}\nreply = requests.post("${location.origin}${path}", json=body${key ? ", headers=headers" : ""})\nprint(reply.json())`;
}

const PYTHON: Record<string, string> = { true: "True", false: "False", null: "None" };

const textOf = (id: string): string => place(id).textContent ?? "";

const whole = (payload: unknown): string => (typeof payload === "string" ? payload : JSON.stringify(payload, null, 1));

async function copy(button: HTMLElement, words: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(words);
    button.textContent = t("copied");
  } catch {
    const shown = button.parentElement?.querySelector("pre");
    if (shown) getSelection()?.selectAllChildren(shown);
    button.textContent = t("selected");
  }
  setTimeout(() => (button.textContent = t("copy")), 1500);
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
