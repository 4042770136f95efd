// The page itself: which tasks there are, the form of the chosen one, asking, and showing what came back.

import { make, trouble } from "./show.js";
import { TASKS } from "./tasks.js";

const REMEDIES = {
  0: "Is the server still running? Look at its log.",
  400: "Write something into the empty field.",
  401: "Enter a key that this server knows.",
  404: "Reload the page; the server's models may have changed.",
  408: "Try again; the request came in too slowly.",
  413: "Send less at once.",
  424: "Try a shorter text; the server's log says more.",
  429: "Wait a moment and ask again.",
  503: "Wait a moment; the server is starting or stopping.",
};

const place = (id) => document.getElementById(id);
const state = { key: "", tasks: [], task: null, models: [], values: new Map(), asked: 0, wanted: null };

// -- asking ---------------------------------------------------------------------------------------------------

function headers() {
  return { "content-type": "application/json", ...(state.key ? { authorization: `Bearer ${state.key}` } : {}) };
}

/** {status, payload, took, server}: never throws, whatever the network does. */
async function send(method, path, body) {
  const started = performance.now();
  try {
    const options = { method, headers: headers(), credentials: "omit", cache: "no-store" };
    const response = await fetch(path, body === undefined ? options : { ...options, body: JSON.stringify(body) });
    const words = await response.text();
    const took = performance.now() - started;
    let payload = words;
    try {
      payload = JSON.parse(words);
    } catch {
      // plain text is an answer too
    }
    return { status: response.status, payload, took, headers: response.headers };
  } catch (problem) {
    return { status: 0, payload: `The server cannot be reached (${problem.message}).`, took: 0, headers: new Headers() };
  }
}

function wrong(reply) {
  let said = reply.payload;
  if (said && typeof said === "object") said = said.error ?? said.detail ?? said;
  const remedy = (said && said.remedy) || (reply.payload && reply.payload.remedy);
  if (said && typeof said === "object") said = said.message ?? said.cause ?? JSON.stringify(said);
  const busy = reply.headers.get("retry-after");
  const advice = remedy || REMEDIES[reply.status] || "Change the input and ask again.";
  return trouble(String(said || `The server answered with status ${reply.status}.`), busy ? `${advice} (${busy} s)` : advice);
}

function curlOf({ path, body }) {
  const quoted = (words) => `'${words.replaceAll("'", `'\\''`)}'`;
  const key = state.key ? ` \\\n  -H "authorization: Bearer $BERTIE_API_KEY"` : "";
  return `curl -s ${location.origin}${path} \\\n  -H 'content-type: application/json'${key} \\\n  -d ${quoted(JSON.stringify(body))}`;
}

async function ask(event) {
  event.preventDefault();
  const { task } = state;
  const given = values(task);
  state.values.set(task.id, given);
  const request = task.request(given);
  const chosen = modelFor(task);
  if (state.models.length > 1 && chosen) request.body.model = chosen;
  const turn = ++state.asked;
  const button = place("send");
  button.disabled = true;
  place("curl").textContent = curlOf(request);
  const reply = await send("POST", request.path, request.body);
  button.disabled = false;
  if (turn !== state.asked || task !== state.task) return;
  if (reply.status === 401) askForKey();
  show(task, given, reply);
}

// -- showing ----------------------------------------------------------------------------------------------------

function show(task, given, reply) {
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
    answer.replaceChildren(trouble(`The answer cannot be drawn (${problem.message}).`, "It is below, as it came."));
  }
}

function timing({ took, headers: given }) {
  const line = make("p", { class: "took" }, make("span", {}, make("b", {}, took.toFixed(1)), " ms there and back"));
  const named = { "x-total-time": "in the server", "x-queue-time": "waiting", "x-inference-time": "in the model" };
  for (const [name, words] of Object.entries(named)) {
    const value = given.get(name);
    if (value !== null) line.append(make("span", {}, make("b", {}, value), ` ms ${words}`));
  }
  const tokens = given.get("x-compute-tokens");
  if (tokens !== null) line.append(make("span", {}, make("b", {}, tokens), " tokens"));
  return line;
}

/** JSON for people: long lists of numbers are cut. */
function shortened(payload) {
  if (typeof payload === "string") return payload;
  const cut = (key, value) => {
    const numbers = Array.isArray(value) && value.length > 12 && value.every((one) => typeof one === "number");
    return numbers ? [...value.slice(0, 8), `… ${value.length - 8} more`] : value;
  };
  return JSON.stringify(payload, cut, 1).replace(/\[\s+(-?\d[^[\]{}]*?)\s+\]/g, (list) => list.replace(/\s+/g, " "));
}

function blank() {
  place("answer").replaceChildren(make("p", { class: "empty" }, "The answer will stand here."));
  place("call").hidden = true;
  place("raw").hidden = true;
}

// -- the form ---------------------------------------------------------------------------------------------------

function fieldOf(field, value) {
  const id = `field-${field.name}`;
  let input;
  if (field.kind === "number") {
    input = make("input", { id, type: "number", min: 1, max: field.most, required: true, value });
  } else if (field.kind === "choice") {
    input = make("select", { id });
    for (const [name, words] of Object.entries(field.choices)) input.append(make("option", { value: name }, words));
    input.value = value;
  } else {
    input = make("textarea", { id, rows: field.rows, required: !field.optional, value });
    input.spellcheck = false;
  }
  input.name = field.name;
  const hint = field.hint ? make("span", { class: "hint" }, ` (${field.hint})`) : null;
  return make("div", { class: "field" }, make("label", { htmlFor: id }, field.label, hint), input);
}

function values(task) {
  const given = {};
  for (const field of task.fields) {
    const { value } = place(`field-${field.name}`);
    given[field.name] = field.kind === "number" ? Number(value) : value;
  }
  return given;
}

function choose(task, { focus = false } = {}) {
  if (state.task && place(`field-${state.task.fields[0].name}`)) state.values.set(state.task.id, values(state.task));
  state.task = task;
  const kept = state.values.get(task.id) ?? {};
  place("lead").textContent = task.lead;
  const fields = task.fields.map((field) => fieldOf(field, kept[field.name] ?? field.value));
  place("form").replaceChildren(...fields, make("div", {}, make("button", { id: "send", class: "primary" }, "Ask")));
  for (const tab of place("tabs").children) {
    const selected = tab.dataset.task === task.id;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    if (selected && focus) tab.focus();
  }
  place("ask").setAttribute("aria-labelledby", `tab-${task.id}`);
  history.replaceState(null, "", `#${task.id}`);
  showModels();
  blank();
}

function makeTabs() {
  state.tasks = TASKS.filter((task) => task.needs === null || ableTo(task).length);
  const tabs = state.tasks.map((task) => {
    const tab = make("button", { id: `tab-${task.id}`, type: "button" }, task.title);
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", "ask");
    tab.dataset.task = task.id;
    tab.addEventListener("click", () => choose(task));
    return tab;
  });
  place("tabs").replaceChildren(...tabs);
}

function onTabKey(event) {
  const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
  if (!(event.key in steps)) return;
  event.preventDefault();
  const last = state.tasks.length - 1;
  const at = state.tasks.indexOf(state.task);
  let next = Math.max(0, Math.min(last, at + steps[event.key]));
  if (Number.isFinite(steps[event.key])) next = (at + steps[event.key] + last + 1) % (last + 1);
  choose(state.tasks[next], { focus: true });
}

// -- models, keys, theme -----------------------------------------------------------------------------------------

/** The models that can do a task, the more suitable first. */
function ableTo({ needs, avoids }) {
  const able = state.models.filter((model) => needs === null || model.tasks.includes(needs));
  return able.sort((a, b) => a.tasks.includes(avoids) - b.tasks.includes(avoids));
}

function modelFor(task) {
  const able = ableTo(task);
  return (able.find((model) => model.id === state.wanted) ?? able[0])?.id;
}

function showModels() {
  const able = ableTo(state.task);
  const chosen = modelFor(state.task);
  place("model").replaceChildren(...able.map((model) => make("option", { value: model.id }, model.id)));
  place("model").value = chosen ?? "";
  place("model-choice").hidden = able.length < 2;
  place("model-name").textContent = able.length < 2 ? (chosen ?? "") : "";
}

function askForKey() {
  place("key-form").hidden = false;
  place("key").focus();
}

function setHealth(words, bad) {
  place("health").textContent = words;
  place("health").classList.toggle("bad", bad);
}

async function start() {
  const info = await send("GET", "/info");
  if (info.status !== 200) {
    setHealth(info.status === 401 ? "locked" : "not well", true);
    if (info.status === 401) askForKey();
    else place("answer").replaceChildren(wrong(info));
    place("columns").hidden = info.status === 401;
    return;
  }
  place("columns").hidden = false;
  place("key-form").hidden = true;
  setHealth("ready", false);
  state.models = info.payload.models ?? [];
  place("version").textContent = info.payload.version ? `bertie ${info.payload.version}` : "";
  makeTabs();
  choose(state.tasks.find((task) => `#${task.id}` === location.hash) ?? state.tasks[0]);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function wire() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem("bertie-theme");
  } catch {
    // no storage: the system's choice stands
  }
  setTheme(chosen ?? (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => chosen ?? setTheme(dark.matches ? "dark" : "light"));
  place("theme").addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    setTheme(chosen);
    try {
      localStorage.setItem("bertie-theme", chosen);
    } catch {
      // as above
    }
  });
  place("tabs").addEventListener("keydown", onTabKey);
  place("form").addEventListener("submit", ask);
  place("form").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) place("form").requestSubmit();
  });
  place("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    state.key = place("key").value.trim();
    place("key").value = "";
    start();
  });
  place("model").addEventListener("change", () => {
    state.wanted = place("model").value;
    blank();
  });
  place("copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(place("curl").textContent);
      place("copy").textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(place("curl"));
      place("copy").textContent = "Selected";
    }
    setTimeout(() => (place("copy").textContent = "Copy"), 1500);
  });
  window.addEventListener("hashchange", () => {
    const task = state.tasks.find((one) => `#${one.id}` === location.hash);
    if (task && task !== state.task) choose(task);
  });
}

wire();
start();
