// The classes: how many photos each has, how often it is told right, and what can be done with it.

import { ask, button, byId, doing, field, make, notice, plural, rightOf, swap } from "./dom.js";
import { picture } from "./server.js";
import { change, mayTeach, names, onChange, path, setTarget, state } from "./state.js";

const quoted = (name) => `“${name}”`;

function changed(text) {
  const undo = () => doing(null, () => change("/undo", { to: null }).then(() => notice("Taken back.")));
  notice(text, { action: "Undo", onaction: undo });
}

async function rename(name) {
  const { input, nodes } = field("New name", { value: name, required: true, maxlength: 200, autofocus: true });
  const wanted = await ask({
    title: `Rename ${quoted(name)}`,
    body: [make("div", { class: "line stacked" }, nodes)],
    agree: "Rename",
    value: () => input.value.trim() || null,
  });
  if (!wanted || wanted === name) return;
  await change("/rename", { old: name, new: wanted });
  changed(`${quoted(name)} is ${quoted(wanted)} now.`);
}

async function merge(name) {
  const others = names().filter((one) => one !== name);
  const select = make("select", { id: "merge-with", autofocus: true }, ...others.map((one) => make("option", {}, one)));
  const { input, nodes } = field("Name of both together", { value: name, required: true, maxlength: 200 });
  const agreed = await ask({
    title: `Merge ${quoted(name)} with another class`,
    body: [
      make("div", { class: "line stacked" }, make("label", { for: "merge-with" }, "The other class"), select),
      make("div", { class: "line stacked" }, nodes),
    ],
    agree: "Merge",
    value: () => (input.value.trim() ? { other: select.value, into: input.value.trim() } : null),
  });
  if (!agreed) return;
  await change("/merge", { classes: [name, agreed.other], into: agreed.into });
  changed(`${quoted(name)} and ${quoted(agreed.other)} are one class now: ${quoted(agreed.into)}.`);
}

async function forget(one) {
  const sure = await ask({
    title: `Forget ${quoted(one.name)}?`,
    body: [make("p", {}, `Its ${plural(one.photos, "photo")} will not count any more. This can be undone.`)],
    agree: "Forget it",
    danger: true,
    decline: "Keep it",
  });
  if (!sure) return;
  await change("/forget", { classes: [one.name] });
  changed(`${quoted(one.name)} is forgotten.`);
}

function more(name) {
  setTarget(name);
  location.hash = "#photos";
  byId("choose").focus();
}

// How often it is right, with its 95% interval, as on the report page.
function interval({ right, of, low, high }) {
  const band = make("i");
  band.style.left = `${100 * low}%`;
  band.style.width = `${100 * (high - low)}%`;
  const mark = make("b");
  mark.style.left = `${(100 * right) / of}%`;
  return make("span", { class: "interval", "aria-hidden": "true" }, band, mark);
}

function row(one, opened) {
  const cover = one.photo ? picture(path(`/photos/${encodeURIComponent(one.photo)}`), "") : null;
  const first = make("span", { class: "none", "aria-hidden": "true" }, [...one.name][0].toUpperCase());
  const right = one.accuracy?.of ? [interval(one.accuracy), make("span", {}, `${rightOf(one.accuracy)} right`)] : [];
  const told = make(
    "span",
    { class: "told" },
    make("strong", {}, one.name),
    make(
      "span",
      { class: "quiet" },
      one.photos > 0 && plural(one.photos, "photo"),
      ...right
        .slice(1)
        .map((text) => [" · ", text])
        .flat(),
    ),
    right[0],
  );
  const line = [cover ?? first, told];
  if (!mayTeach()) return make("li", { "data-class": one.name }, make("div", { class: "class" }, ...line));
  const act = (text, work, props = {}) =>
    button(text, (event) => doing(event.currentTarget, work), { key: `${text} ${one.name}`, ...props });
  const actions = make(
    "div",
    { class: "acts" },
    act("Add photos", () => more(one.name)),
    act("Rename", () => rename(one.name)),
    names().length > 1 && act("Merge…", () => merge(one.name)),
    act("Forget…", () => forget(one), { class: "risky" }),
  );
  const inner = make(
    "details",
    { open: opened },
    make("summary", { class: "class", key: `class ${one.name}` }, ...line),
    actions,
  );
  return make("li", { "data-class": one.name }, inner);
}

function adding() {
  const { input, nodes } = field("Add a class", {
    required: true,
    maxlength: 200,
    placeholder: "its name",
    key: "add",
  });
  const submit = (event) => {
    event.preventDefault();
    const name = input.value.trim();
    input.value = "";
    if (name) more(name);
  };
  const action = make("button", { key: "add-it" }, "Add");
  return make(
    "form",
    { class: "namer adding", onsubmit: submit },
    nodes[0],
    make("div", { class: "line" }, input, action),
  );
}

function draw() {
  const place = byId("class-list");
  const classes = state.info?.classes ?? [];
  const opened = new Set([...place.querySelectorAll("details[open]")].map((one) => one.closest("li").dataset.class));
  const accuracy = state.info?.accuracy;
  const measured = accuracy
    ? `${rightOf(accuracy)} right: ${
        state.info.learns === "by updates"
          ? "photos that it did not learn from"
          : "each photo is left out once, and told by all others"
      }.`
    : "";
  swap(
    place,
    make("ul", { class: "classes" }, ...classes.map((one) => row(one, opened.has(one.name)))),
    measured && make("p", { class: "quiet" }, measured),
    mayTeach() && adding(),
  );
}

export function start() {
  onChange((different) => {
    if (different || !byId("class-list").contains(document.activeElement)) draw();
  });
}
