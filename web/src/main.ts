// The page: its frame (models, key, theme, language, whether the server is there) and its two sections.

import { make, place } from "./dom.ts";
import { ExplorePage } from "./explore/page.ts";
import { FileSource, ServerSource, type Source } from "./explore/source.ts";
import { send, setKey, watchServer, wrong } from "./server.ts";
import { TasksPage, type Card, type Frame } from "./tasks/page.ts";
import { currentLanguage, setLanguage, t, type Language } from "./words.ts";

type Section = "tasks" | "explore";

/** What was saved in this file, if it is one that was saved. */
const saved = document.getElementById("bertie-saved");

const frame: Frame = {
  models: [],
  wanted: null,
  showModels(able: Card[], chosen: string | undefined): void {
    const select = place<HTMLSelectElement>("model");
    select.replaceChildren(...able.map((model) => make("option", { value: model.id }, model.id)));
    select.value = chosen ?? "";
    place("model-choice").hidden = able.length < 2;
    place("model-name").textContent = able.length < 2 ? (chosen ?? "") : "";
  },
  askForKey(): void {
    place("key-form").hidden = false;
    place("key").focus();
  },
};

const tasks = new TasksPage(place("tasks"), frame);
let explore: ExplorePage | null = null;
let hasTasks = false;

function section(): Section {
  const wanted = location.hash.startsWith("#explore") || !hasTasks;
  return explore !== null && wanted ? "explore" : "tasks";
}

function draw(): void {
  const chosen = section();
  place("tasks").hidden = chosen !== "tasks";
  place("explore").hidden = chosen !== "explore";
  document.body.classList.toggle("wide", chosen === "explore");
  for (const name of ["tasks", "explore"]) {
    const link = place(`section-${name}`);
    if (name === chosen) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (chosen === "tasks") tasks.draw();
  else explore!.draw();
  showKeys(chosen);
}

function showKeys(chosen: Section): void {
  const key = (...names: string[]): Node[] => names.flatMap((name, place) => [place ? " " : "", make("kbd", {}, name)] as Node[]);
  const places: Node[][] = [key("Ctrl", "Enter"), key("←", "→")];
  const parts: (Node | string)[] = chosen === "tasks" ? t("keysTasks", "\u0000", "\u0001").split(/([\u0000\u0001])/) : [];
  place("keys").replaceChildren(...parts.flatMap((part) => (part === "\u0000" ? places[0] : part === "\u0001" ? places[1] : [part])));
}

function setHealth(words: string, bad: boolean): void {
  const pill = place("health");
  delete pill.dataset.word;
  pill.textContent = words;
  pill.classList.toggle("bad", bad);
}

/** Is this server well, which models does it have, and what can be done with them? */
async function start(): Promise<void> {
  const info = await send("GET", "/info");
  if (info.status !== 200) {
    setHealth(info.status === 401 ? t("locked") : t("notWell"), true);
    if (info.status === 401) frame.askForKey();
    else {
      place("tasks").hidden = false;
      place("tasks").replaceChildren(wrong(info));
    }
    return;
  }
  place("key-form").hidden = true;
  setHealth(t("ready"), false);
  frame.models = info.payload.models ?? [];
  place("version").textContent = info.payload.version ? `bertie ${info.payload.version}` : "";
  const explored = frame.models.filter((model) => model.tasks.includes("explore"));
  hasTasks = frame.models.some((model) => model.tasks.some((task) => task !== "explore"));
  place("sections").hidden = !(explored.length && hasTasks);
  if (explored.length) makeExplore(new ServerSource(() => frame.askForKey()), explored);
  draw();
}

function makeExplore(source: Source, models: Card[]): void {
  explore ??= new ExplorePage(place("explore"), source, models, frame);
}

function startSaved(): void {
  place("docs").hidden = true;
  place("health").hidden = true;
  place("version").textContent = `bertie ${saved?.dataset.version ?? ""}`;
  hasTasks = false;
  FileSource.read(saved!).then((source) => {
    makeExplore(source, [{ id: source.model, tasks: ["explore"] }]);
    draw();
  }, (problem) => place("main").append(wrong({ status: 1, payload: String(problem), took: 0, headers: new Headers() })));
}

// -- theme and language -----------------------------------------------------------------------------------------------

function stored(name: string): string | null {
  try {
    return localStorage.getItem(name);
  } catch {
    return null; // no storage: the system's choice stands
  }
}

function store(name: string, value: string): void {
  try {
    localStorage.setItem(name, value);
  } catch {
    // as above
  }
}

function wire(): void {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = stored("bertie-theme");
  const setTheme = (): void => {
    document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
    explore?.redraw();
  };
  setTheme();
  dark.addEventListener("change", setTheme);
  place("theme").addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    store("bertie-theme", chosen);
    setTheme();
  });

  const language = stored("bertie-language") ?? (navigator.language.startsWith("zh") ? "zh" : "en");
  const speak = (which: Language): void => {
    setLanguage(which);
    place("language").lang = which === "zh" ? "en" : "zh-Hans";
  };
  speak(language === "zh" ? "zh" : "en");
  place("language").addEventListener("click", () => {
    const other = currentLanguage() === "en" ? "zh" : "en";
    store("bertie-language", other);
    speak(other);
    if (!saved && !place("health").classList.contains("bad")) setHealth(t("ready"), false);
    draw();
  });

  place("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const field = place<HTMLInputElement>("key");
    setKey(field.value.trim());
    field.value = "";
    void start();
  });
  place("model").addEventListener("change", () => {
    frame.wanted = place<HTMLSelectElement>("model").value;
    if (section() === "tasks") tasks.modelChosen();
    else explore!.modelChosen();
  });
  place("section-tasks").addEventListener("click", (event) => {
    event.preventDefault();
    history.pushState(null, "", location.pathname);
    draw();
  });
  window.addEventListener("hashchange", () => {
    if (section() === "explore" || !place("explore").hidden) draw();
    else tasks.follow();
  });
  watchServer(
    () => {
      place("gone").hidden = false;
      place("gone").textContent = t("gone");
      setHealth(t("goneShort"), true);
    },
    () => {
      place("gone").hidden = true;
      setHealth(t("ready"), false);
      if (explore === null && place("tabs") === null) void start();
      explore?.serverBack();
    },
  );
}

wire();
if (saved) startSaved();
else void start();
