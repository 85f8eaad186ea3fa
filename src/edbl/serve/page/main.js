// The page of a model: which part of it is shown, which model, and what everybody hears first.

import * as classes from "./classes.js";
import * as intake from "./intake.js";
import * as model from "./model.js";
import * as photos from "./photos.js";
import * as review from "./review.js";
import * as updates from "./updates.js";
import { newModel } from "./beginning.js";
import { button, byId, doing, make, plural, rightOf } from "./dom.js";
import { tokenFromAddress } from "./server.js";
import { onChange, readModels, refresh, state, take } from "./state.js";

const VIEWS = { photos: null, classes: null, review: review.enter, "model-page": model.enter };
const WIDE = matchMedia("(min-width: 60rem)");
const OFTEN = 10000; // milliseconds between looks for changes that others made

function view() {
  const wanted = location.hash.slice(1);
  const there = state.info?.exists && wanted in VIEWS && (wanted !== "review" || state.info.learns !== "never");
  return there ? wanted : "photos";
}

function enter(focus) {
  const name = view();
  const before = document.body.dataset.view;
  const there = name === "classes" && WIDE.matches ? "photos" : name; // where the classes stand beside the photos
  document.body.dataset.view = name;
  for (const link of byId("parts").querySelectorAll("a")) {
    if (link.hash === `#${there}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  byId("review").hidden = name !== "review";
  byId("model-page").hidden = name !== "model-page";
  if (name !== before) VIEWS[name]?.();
  if (focus && name !== before) {
    byId(name).querySelector("h2").focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

function facts() {
  const { info } = state;
  if (!info) return "";
  if (!info.classes.length) return "Nothing is taught yet.";
  const told = [plural(info.classes.length, "class", "classes")];
  if (info.photos) told.push(plural(info.photos, "photo")); // an exported file does not say how many
  if (info.accuracy?.of) told.push(`${rightOf(info.accuracy)} right`);
  return told.join(" · ");
}

function draw() {
  const { info } = state;
  byId("name").textContent = info?.name ?? "Teach a model what it sees";
  document.title = info ? `${info.name} · edbl` : "edbl";
  if (byId("facts").textContent !== facts()) byId("facts").textContent = facts();
  byId("parts").hidden = !info?.exists;
  byId("parts").querySelector("[href='#review']").hidden = info?.learns === "never";
  document.body.classList.toggle("bare", !info?.exists);
  document.body.classList.toggle("without", !info);
  byId("choice").hidden = !state.several;
  byId("model").replaceChildren(
    ...state.models.map((one) => make("option", { selected: one.name === state.name }, one.name)),
  );
  byId("new-model").hidden = !state.writable;
  byId("use-camera").disabled = byId("choose").disabled = !info;
  if (document.body.dataset.view !== view()) enter(false);
}

function choose() {
  byId("model").addEventListener("change", (event) => {
    const found = state.models.find((one) => one.name === event.target.value);
    state.target = null;
    take(found, true);
    doing(byId("model"), refresh);
    history.replaceState(null, "", `?model=${encodeURIComponent(found.name)}${location.hash}`);
  });
  byId("new-model").addEventListener("click", (event) => doing(event.currentTarget, newModel));
}

function look() {
  if (document.visibilityState === "visible" && state.name && !document.querySelector("dialog"))
    refresh().catch(() => {});
}

async function begin() {
  try {
    await readModels(new URLSearchParams(location.search).get("model"));
    enter(false);
  } catch (error) {
    byId("photos").replaceChildren(
      make(
        "div",
        { class: "alert", role: "alert" },
        make("p", {}, error.message),
        button("Try again", () => location.reload()),
      ),
    );
  }
}

tokenFromAddress();
for (const part of [photos, classes, review, model, updates, intake]) part.start();
onChange(draw);
choose();
addEventListener("hashchange", () => enter(true));
WIDE.addEventListener("change", () => enter(false));
setInterval(look, OFTEN);
begin();
