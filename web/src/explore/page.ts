// Explore: a text at the top, the model's answer to it, its tokens, and the views, which share one selection.

import { make, onTabKeys, place, selectTab, trouble } from "../dom.ts";
import type { Card, Frame } from "../tasks/page.ts";
import { t, type Word } from "../words.ts";
import { AttentionView } from "./attention.ts";
import { AttributionView } from "./attribution.ts";
import { ImportanceView } from "./importance.ts";
import { LensView } from "./lens.ts";
import { PatchingView } from "./patching.ts";
import { savePicture } from "./pen.ts";
import { Failure, keyOf, type Options, type Progress, type Source } from "./source.ts";
import { VIEWS, linkOf, nothingOff, stateOf, type State, type ViewName } from "./state.ts";
import { SwitchboardView, column } from "./switchboard.ts";
import { View, nameOf, orFailure, type Answered, type Opened, type Stage } from "./view.ts";
import { WalkView } from "./walk.ts";

const VIEW_CLASSES: Record<ViewName, new (stage: Stage, root: HTMLElement) => View> = {
  attention: AttentionView,
  switchboard: SwitchboardView,
  walk: WalkView,
  attribution: AttributionView,
  lens: LensView,
  patching: PatchingView,
  importance: ImportanceView,
};
/** What the library must be able to do for a view; the lens also shows cosines, which every model has. */
const NEEDS: Record<ViewName, string[]> = {
  attention: ["attention"], switchboard: ["ablate"], walk: ["trace"], attribution: ["attribute"],
  lens: ["lens", "drift"], patching: ["patch"], importance: ["importance"],
};
const EXAMPLES: Record<string, [string, string | string[] | null]> = {
  fill: ["The man went to the [MASK] to buy a bottle of milk.", null],
  next: ["She opened the door.", "The room was empty."],
  answer: ["Where did Ada live?", "Ada Lovelace lived in London and wrote the first program."],
  choice: ["The glass fell off the table.", ["It broke.", "It sang."]],
  tag: ["Ada Lovelace lived in London and worked with Charles Babbage.", null],
  classify: ["A warm, funny, beautifully acted film.", null],
  embed: ["A man plays the guitar.", "Someone is making music."],
};
const PAIRED = ["next", "answer", "choice"];
const MOST_KEPT = 200;
const WRITE_MS = 250;

export class ExplorePage implements Stage {
  state: State;
  opened!: Opened;
  private isOpen = false;
  private view: View | null = null;
  private readonly keptAnswers = new Map<string, Promise<any>>();
  private turn = 0;
  private controller = new AbortController();
  private written = ""; // the link that this page wrote last
  private before = ""; // the address when a new one began to wait
  private writing: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly root: HTMLElement,
    readonly source: Source,
    private readonly models: Card[],
    private readonly frame: Frame,
  ) {
    this.state = stateOf(location.hash);
  }

  // -- what views use ---------------------------------------------------------------------------------------------

  async ask(what: string, options: Options = {}, signal?: AbortSignal): Promise<any> {
    return this.source.ask(what, this.subject(), options, signal);
  }

  kept(what: string, options: Options = {}): Promise<any> {
    const key = keyOf(what, options);
    const found = this.keptAnswers.get(key);
    if (found) return found;
    const asked = this.ask(what, options);
    this.keptAnswers.set(key, asked);
    asked.catch(() => this.keptAnswers.delete(key));
    if (this.keptAnswers.size > MOST_KEPT) this.keptAnswers.delete(this.keptAnswers.keys().next().value!);
    return asked;
  }

  work(what: string, options: Options, onProgress: (at: Progress) => void, signal: AbortSignal): Promise<any> {
    return this.source.work(what, this.subject(), options, onProgress, signal);
  }

  changed(): void {
    // When nothing else is to be done: the browser takes some milliseconds to note a new address.
    if (this.writing === undefined) this.before = location.hash;
    clearTimeout(this.writing);
    this.writing = setTimeout(() => this.write(), WRITE_MS);
  }

  /** Put the link that waits into the address, unless somebody else has changed that meanwhile. */
  private write(): void {
    if (this.writing === undefined) return;
    clearTimeout(this.writing);
    this.writing = undefined;
    if (this.root.hidden || location.hash !== this.before) return;
    this.written = linkOf(this.state);
    try {
      history.replaceState(null, "", this.written);
    } catch {
      // shown inside another page, which has the address
    }
  }

  chooseToken(token: number): void {
    this.state.token = token;
    this.changed();
    this.markToken();
    this.view?.selection();
  }

  chooseHead(layer: number, head: number): void {
    Object.assign(this.state, { layer, head });
    this.changed();
    this.view?.selection();
  }

  show(view: ViewName): void {
    this.state.view = view;
    this.changed();
    this.drawView();
  }

  private subject() {
    const { model, task, text, second } = this.state;
    return { model, task, text, second };
  }

  // -- the frame's calls ------------------------------------------------------------------------------------------

  /** Draw the section; if the link in the address is another one, go there. */
  draw(): void {
    this.write();
    if (location.hash.startsWith("#explore") && location.hash !== this.written && this.isOpen) {
      this.state = stateOf(location.hash);
      this.isOpen = false;
    }
    if (this.source.fixed) Object.assign(this.state, this.source.fixed);
    this.state.model = (this.models.find((model) => model.id === this.state.model) ?? this.models.find((model) => model.id === this.frame.wanted) ?? this.models[0]).id;
    this.frame.showModels(this.models, this.state.model);
    this.drawInput();
    if (this.isOpen) this.drawOpened();
    else if (this.state.text || this.source.fixed) void this.run(false);
    else void this.runExample();
  }

  redraw(): void {
    if (this.isOpen && !this.root.hidden) this.drawView();
  }

  modelChosen(): void {
    if (this.frame.wanted) this.state.model = this.frame.wanted;
    Object.assign(this.state, { task: null, off: nothingOff(), layer: 0, head: 0, target: 0, step: 0 });
    this.isOpen = false;
    this.drawInput();
    void orFailure(place("opened"), async () => {
      // The text stays, unless the model's task needs two and there is one.
      const { task } = await this.source.ask("model", this.subject());
      if (PAIRED.includes(task) && this.state.second === null) [this.state.text, this.state.second] = EXAMPLES[task];
      if (task === "choice" && typeof this.state.second === "string") this.state.second = [this.state.second];
      if (task !== "choice" && Array.isArray(this.state.second)) this.state.second = this.state.second[0];
      await this.run();
    });
  }

  /** The server was gone and has come back: what is shown may have been asked of the other one. */
  serverBack(): void {
    if (this.root.hidden) return;
    this.keptAnswers.clear();
    void this.run(false);
  }

  // -- the input --------------------------------------------------------------------------------------------------

  private drawInput(): void {
    const { state, source } = this;
    if (!source.live) {
      const notice = make("p", { class: "notice" }, t("savedPage", source.command));
      this.root.replaceChildren(notice, make("div", { id: "opened" }));
      return;
    }
    const text = make("textarea", { id: "explore-text", rows: 2, value: state.text, dir: "auto", spellcheck: false, required: true });
    const isList = state.task === "choice" || (this.isOpen && this.opened.task === "choice");
    const given = Array.isArray(state.second) ? state.second.join("\n") : (state.second ?? "");
    const second = make("textarea", { id: "explore-second", rows: isList ? 3 : 2, value: given, dir: "auto", spellcheck: false });
    const secondField = make("div", { class: "field", hidden: state.second === null }, make("label", { htmlFor: "explore-second" }, t(isList ? "choices" : "secondText"), isList ? make("span", { class: "hint" }, ` (${t("oneToALine")})`) : null), second);
    const toggle = make("button", { type: "button", class: "plain", id: "toggle-second" }, t(state.second === null ? "addSecond" : "removeSecond"));
    toggle.addEventListener("click", () => {
      secondField.hidden = !secondField.hidden;
      toggle.textContent = t(secondField.hidden ? "addSecond" : "removeSecond");
      if (!secondField.hidden) second.focus();
    });
    const button = make("button", { class: "primary", id: "explore-run" }, t("explore"));
    const tools: Node[] = [button, toggle];
    if (this.isOpen && this.opened.tasks.length > 1) tools.push(this.taskChoice());
    const form = make(
      "form",
      { class: "card", id: "explore-form", autocomplete: "off" },
      make("p", { class: "lead" }, t("exploreLead")),
      make("div", { class: "texts" }, make("div", { class: "field" }, make("label", { htmlFor: "explore-text" }, t("firstText")), text), secondField),
      make("div", { class: "filters" }, ...tools),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      state.text = text.value;
      const words = second.value.trim();
      state.second = secondField.hidden || !words ? null : isList ? words.split("\n").filter((line) => line.trim()) : second.value;
      Object.assign(state, { row: 0, token: -1, other: -1, target: 0, otherText: "" });
      void this.run();
    });
    form.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || !(event.target instanceof HTMLTextAreaElement)) return;
      if (isList && event.target === second && !event.ctrlKey && !event.metaKey) return; // a new line is a new choice
      event.preventDefault();
      form.requestSubmit();
    });
    this.root.replaceChildren(form, make("div", { id: "opened" }));
  }

  private taskChoice(): HTMLElement {
    const select = make("select", { id: "explore-task" });
    for (const task of this.opened.tasks) select.append(make("option", { value: task }, t(taskWord(task))));
    select.value = this.opened.task;
    select.addEventListener("change", () => {
      const task = select.value;
      Object.assign(this.state, { task, row: 0, token: -1, other: -1, target: 0, off: nothingOff() });
      if (PAIRED.includes(task) && this.state.second === null) [this.state.text, this.state.second] = EXAMPLES[task];
      void this.run();
    });
    return make("label", { class: "inline", htmlFor: "explore-task" }, make("span", {}, t("task")), select);
  }

  private async runExample(): Promise<void> {
    // Which example suits is known when the model's task is.
    const root = place("opened");
    await orFailure(root, async () => {
      const { task } = await this.source.ask("model", this.subject());
      [this.state.text, this.state.second] = EXAMPLES[task] ?? EXAMPLES.classify;
      this.drawInput();
      await this.run(false);
    });
  }

  private async run(write = true): Promise<void> {
    const turn = ++this.turn;
    this.controller.abort();
    this.controller = new AbortController();
    this.keptAnswers.clear();
    if (write) this.changed();
    const button = document.getElementById("explore-run");
    button?.setAttribute("aria-busy", "true");
    this.root.classList.add("busy");
    const root = place("opened");
    await orFailure(root, async () => {
      const opened: Opened = await this.source.ask("open", this.subject(), {}, this.controller.signal);
      if (turn !== this.turn) return;
      this.opened = opened;
      this.isOpen = true;
      this.clampState();
      this.drawInput();
      this.drawOpened();
    }).finally(() => {
      if (turn !== this.turn) return;
      button?.removeAttribute("aria-busy");
      this.root.classList.remove("busy");
    });
  }

  /** A link may name what this model or text does not have. */
  private clampState(): void {
    const { state, opened } = this;
    const within = (value: number, count: number): number => Math.max(0, Math.min(value, count - 1));
    state.row = within(state.row, opened.rows.length);
    const { tokens } = opened.rows[state.row];
    // The word that is looked for is what most people came to see.
    if (state.token < 0) state.token = Math.max(0, tokens.findIndex((token) => token.text === opened.mask));
    state.token = within(state.token, tokens.length);
    state.other = state.other < opened.rows[state.row].tokens.length ? state.other : -1;
    state.layer = within(state.layer, opened.num_layers);
    state.head = within(state.head, opened.num_heads);
    state.off.heads = state.off.heads.filter(([layer, head]) => opened.heads[layer]?.includes(head));
    state.off.layers = state.off.layers.filter((layer) => layer < opened.num_layers);
    state.off.feed_forward = state.off.feed_forward.filter((layer) => layer < opened.num_layers);
  }

  // -- what was opened --------------------------------------------------------------------------------------------

  private drawOpened(): void {
    const { opened, state } = this;
    const notices: Node[] = opened.truncated ? [make("p", { class: "notice", role: "status", id: "cut" }, t("cutNotice", opened.max_length))] : [];
    const [unknown, name] = opened.unknown;
    const all = opened.rows.reduce((sum, row) => sum + row.tokens.length, 0);
    if (unknown) notices.push(make("p", { class: "notice", role: "status", id: "unknown" }, t("unknownNotice", unknown, all, name)));
    const answer = make("section", { class: "card", id: "explore-answer", "aria-label": t("modelAnswer") }, make("h3", {}, t("modelAnswer")), make("p", { class: "hint" }, t("exploring")));
    const tabs = make("div", { class: "tabs", id: "views", role: "tablist", "aria-label": t("views") });
    for (const name of VIEWS) {
      const missing = !this.has(name);
      const tab = make("button", { type: "button", role: "tab", id: `view-${name}`, "aria-controls": "view", class: missing ? "missing" : "", "data-view": name }, t(name));
      tab.addEventListener("click", (event) => {
        this.show(name);
        if (event.detail) tab.blur(); // by mouse: arrow keys are the view's from now on, not the tabs'
      });
      tabs.append(tab);
    }
    onTabKeys(tabs, (tab) => tab.click());
    place("opened").replaceChildren(
      ...notices,
      make("div", { class: "reading" }, answer, this.tokenCard()),
      make("div", { class: "view-bar" }, tabs, this.saveButtons()),
      make("div", { id: "view", role: "tabpanel" }),
    );
    if (!VIEWS.includes(state.view)) state.view = "attention";
    this.drawView(); // first: what it asks for is looked at first
    void orFailure(answer, async () => answer.replaceChildren(shown(await this.kept("answer"))));
  }

  private tokenCard(): HTMLElement {
    const { opened, state } = this;
    const list = make("div", { id: "explore-tokens", class: "pieces", role: "group", "aria-label": t("tokensLabel") });
    const { tokens, segments } = opened.rows[state.row];
    tokens.forEach((token, at) => {
      const kind = `piece${token.special ? " special" : ""}${segments[at] ? " second" : ""}`;
      const button = make("button", { type: "button", class: kind, "aria-label": t("tokenNumber", at, nameOf(token)), title: `${at} · ${token.id}`, "data-token": at, tabIndex: -1 }, make("bdi", {}, nameOf(token)));
      button.addEventListener("click", () => this.chooseToken(at));
      list.append(button);
    });
    list.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step === undefined) return;
      event.preventDefault();
      const next = list.children[state.token + step] as HTMLElement | undefined;
      next?.click();
      next?.focus();
    });
    const card = make("section", { class: "card", "aria-label": t("tokensLabel") });
    if (opened.rows.length > 1) {
      const choose = make("div", { class: "chooser", role: "group", "aria-label": t("rows") });
      opened.rows.forEach((_, row) => {
        const button = make("button", { type: "button", "aria-pressed": String(row === state.row) }, t("rowLabel", row + 1));
        button.addEventListener("click", () => {
          Object.assign(state, { row, token: 0, other: -1 });
          this.changed();
          this.drawOpened();
        });
        choose.append(button);
      });
      card.append(choose);
    }
    card.append(make("h3", {}, t("tokensLabel")), list);
    requestAnimationFrame(() => this.markToken());
    return card;
  }

  private markToken(): void {
    for (const button of document.querySelectorAll<HTMLElement>("#explore-tokens button")) {
      const chosen = String(Number(button.dataset.token) === this.state.token);
      if (button.getAttribute("aria-pressed") === chosen) continue;
      button.setAttribute("aria-pressed", chosen);
      button.tabIndex = chosen === "true" ? 0 : -1;
    }
  }

  private saveButtons(): HTMLElement {
    const save = (kind: "svg" | "png", words: string): HTMLElement => {
      const button = make("button", { type: "button", class: "plain", id: `save-${kind}`, "aria-label": t("saveAs", words), title: t("saveAs", words) }, words);
      button.addEventListener("click", () => {
        const picture = this.view?.picture();
        if (picture) void savePicture(picture, `bertie-${this.state.view}`, kind);
      });
      return button;
    };
    const link = make("button", { type: "button", class: "plain", id: "copy-link" }, t("copyLink"));
    link.addEventListener("click", async () => {
      this.changed();
      this.write();
      try {
        await navigator.clipboard.writeText(location.href);
        link.textContent = t("copied");
      } catch {
        link.textContent = t("selected"); // the address bar has it
      }
      setTimeout(() => (link.textContent = t("copyLink")), 1500);
    });
    return make("div", { class: "filters" }, link, save("svg", t("asSvg")), save("png", t("asPng")));
  }

  private has(name: ViewName): boolean {
    return NEEDS[name].some((need) => this.opened.views.includes(need));
  }

  private drawView(): void {
    this.view?.leave();
    const { view: name } = this.state;
    selectTab(place("views"), `view-${name}`);
    const root = make("div", { id: "view", role: "tabpanel", "aria-labelledby": `view-${name}` });
    place("view").replaceWith(root);
    if (!this.has(name)) {
      this.view = null;
      const others = VIEWS.filter((one) => this.has(one)).map((one) => t(one));
      root.append(trouble(t("noView", this.opened.architecture, t(name)), t("viewsThereAre", others.join(", "))));
      return;
    }
    const view = (this.view = new VIEW_CLASSES[name](this, root));
    view.draw().then(
      () => root.setAttribute("data-ready", name),
      (problem) => {
        if (problem instanceof Failure) root.replaceChildren(problem.shown);
        else throw problem;
      },
    );
  }
}

function shown({ answer, no_answer }: Answered): HTMLElement {
  if (answer) return column(t("modelAnswer"), answer);
  return make("div", {}, make("h3", {}, t("modelAnswer")), make("p", {}, no_answer?.[0] ?? ""), make("p", { class: "hint" }, no_answer?.[1] ?? ""));
}

function taskWord(task: string): Word {
  const words: Record<string, Word> = { fill: "fillTitle", next: "nextTitle", classify: "classifyTitle", tag: "tagTitle", answer: "answerTitle", choice: "choices", embed: "embedTitle" };
  return words[task] ?? "task";
}
