// The model as a whole: its history, what can be taken away from here, what it is made of.

import { ask, button, byId, doing, make, notice, plural, rightOf, size, swap } from "./dom.js";
import { download, get, hasToken, send } from "./server.js";
import { change, mayTeach, onChange, path, refresh, state } from "./state.js";

const KEEPS = {
  photos: "small copies of photos, and what the network makes of them",
  features: "what the network makes of each photo, no photos",
  nothing: "sums over all photos",
};

const when = (text) => {
  const time = new Date(text);
  if (Number.isNaN(time.getTime())) return text;
  return make("time", { datetime: text }, time.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" }));
};

function back(one) {
  const go = (event) =>
    doing(event.currentTarget, async () => {
      await change("/undo", { to: one.version });
      notice(`Back at version ${one.version}. Later versions are kept: you can go there again.`);
    });
  return button("Go to this", go, { key: `back ${one.version}`, "aria-label": `Go to version ${one.version}` });
}

async function prune() {
  const sure = await ask({
    title: "Remove the versions before?",
    body: [
      make(
        "p",
        {},
        "The model stays as it is. What was forgotten is then gone from the disk, and nothing before this can be undone.",
      ),
    ],
    agree: "Remove them",
    danger: true,
    decline: "Keep them",
  });
  if (!sure) return;
  const told = await send(path("/prune"), {});
  notice(`Freed ${size(told.freed_mb)}.`);
  await refresh();
  await enter();
}

function historyPart(history) {
  const rows = [...history].reverse().map((one) => {
    const mark = one.current ? make("span", { class: "tag" }, "now") : mayTeach() && back(one);
    const about = make(
      "span",
      { class: "quiet" },
      `version ${one.version}, ${plural(one.classes, "class", "classes")}, `,
      when(one.when),
    );
    return make(
      "li",
      { class: one.current ? "current" : null },
      make("span", { class: "told" }, make("strong", {}, one.what), about),
      mark,
    );
  });
  const here = history.findIndex((one) => one.current);
  const undo = (event) =>
    doing(event.currentTarget, async () => {
      await change("/undo", { to: null });
      notice("The last change is taken back.");
    });
  return [
    make("h3", {}, "History"),
    make("p", { class: "quiet" }, "Every change makes a version, and each can be gone back to."),
    mayTeach() && here > 0 && make("p", {}, button("Undo the last change", undo, { key: "undo" })),
    make("ol", { class: "history" }, ...rows),
    mayTeach() &&
      history.length > 1 &&
      button("Remove the versions before…", (event) => doing(event.currentTarget, prune), {
        key: "prune",
        class: "risky",
      }),
  ];
}

function takePart() {
  const file = (rest, name) => (event) => doing(event.currentTarget, () => download(path(rest), name));
  const report = hasToken()
    ? button("Report", file("/report", `${state.name}.html`), { key: "report" })
    : make("a", { href: path("/report"), target: "_blank", rel: "noopener", class: "door", key: "report" }, "Report");
  return [
    make("h3", {}, "Take it with you"),
    make(
      "p",
      { class: "quiet" },
      "One ONNX file answers as this page does, without edbl. The report shows how far it can be trusted.",
    ),
    make("div", { class: "doors" }, button("Export", file("/export", `${state.name}.onnx`), { key: "export" }), report),
  ];
}

function joinPart() {
  const others = state.models.filter((one) => one.name !== state.name && one.exists);
  if (!state.several || !others.length || !mayTeach()) return [];
  const select = make(
    "select",
    { id: "join-with", key: "join-with" },
    ...others.map((one) => make("option", {}, one.name)),
  );
  const join = (event) =>
    doing(event.currentTarget, async () => {
      await change("/join", { model: select.value });
      notice(`All that ${select.value} was taught is in ${state.name} now.`);
    });
  return [
    make("h3", {}, "Join"),
    make("p", { class: "quiet" }, "Take in all classes and photos of another model; it stays as it is."),
    make(
      "div",
      { class: "line" },
      make("label", { for: "join-with" }, "From"),
      select,
      button("Join", join, { key: "join" }),
    ),
  ];
}

function aboutPart() {
  const { info } = state;
  const facts = [
    ["Photos", info.photos ? plural(info.photos, "photo") : null],
    ["Classes", info.classes.length],
    ["Right", info.accuracy ? rightOf(info.accuracy) : null],
    ["Network", info.backbone],
    ["Method", info.method],
    ["Looks at", info.image_size ? `${info.image_size} × ${info.image_size} pixels` : null],
    ["Keeps", KEEPS[info.keep] ?? info.keep],
    ["Size", info.memory_mb === undefined ? null : size(info.memory_mb)],
  ].filter(([, text]) => text);
  const rows = facts.flatMap(([term, text]) => [make("dt", {}, term), make("dd", {}, text)]);
  return [make("h3", {}, "What it is"), make("dl", {}, ...rows)];
}

async function load() {
  const name = state.name;
  const history = state.info.learns === "never" ? [] : (await get(path("/history"))).history;
  if (name !== state.name) return;
  if (state.several) state.models = (await get("/v1/models")).models;
  const taking = state.info.learns === "never" ? [] : takePart();
  const parts = [...(history.length ? historyPart(history) : []), ...taking, ...joinPart(), ...aboutPart()];
  swap(byId("model-parts"), ...parts);
}

export const enter = () => doing(null, load);

export function start() {
  onChange((different) => {
    if (different && document.body.dataset.view === "model-page" && state.info?.exists) enter();
  });
}
