// Photos that were shown: what they show is asked, or told, a batch at a time.

import { button, byId, doing, make, plural, say, swap } from "./dom.js";
import { guide } from "./guide.js";
import { drawCard, imageOf } from "./card.js";
import { namer } from "./naming.js";
import { send, upload } from "./server.js";
import { asking, mayTeach, onChange, portions, setTarget, state, tells, tooLarge } from "./state.js";
import { teach } from "./teach.js";
import { beforeFirst, keepQuestion } from "./beginning.js";

const MOST = 10; // batches that stay on the page
const ASKED_AGAIN = 200; // photos whose answers follow what is learnt
const SHOWN = 60; // cards of a batch at first
const STRIP = 12; // pictures of a batch that was learnt

let batches = [];
let model = null;

const topOf = (photo) => (photo.answer?.unknown ? "unknown" : photo.answer?.classes[0]?.name);

const open = (batch) => batch.photos.filter((photo) => photo.id && !photo.taught);

const isOpen = () => batches.some((batch) => open(batch).length);

// Show photos to the model. `into` is a batch that they join, as those of a camera do; `as` is what they are learnt as.
export async function show(files, { into = null, folder = "", focus = true, as = state.target } = {}) {
  const photos = files.map((file) => ({ file, name: file.name, id: null, answer: null, taught: null, error: null }));
  const batch = into ?? { photos: [], folder, typed: folder, element: make("div", { class: "batch", role: "group" }) };
  batch.photos.push(...photos);
  if (!batches.includes(batch)) batches = [batch, ...batches].slice(0, MOST);
  draw();
  for (const photo of photos) photo.error = tooLarge(photo.file) || null;
  const readable = photos.filter((photo) => !photo.error);
  for (const some of portions(readable, (photo) => photo.file)) {
    await ask(some);
    if (!batches.includes(batch)) return batch; // put away, or another model was chosen
    drawBatch(batch);
  }
  const read = photos.filter((photo) => photo.id);
  if (as && read.length) await doing(batch.element, () => teach(read, as));
  else tellAnswers(batch, photos);
  draw();
  if (focus && !as && !tells()) batch.element.querySelector("input")?.focus();
  return batch;
}

async function ask(photos) {
  try {
    const { predictions } = await upload(
      asking("/predict"),
      photos.map((photo) => photo.file),
    );
    photos.forEach((photo, number) => take(photo, predictions[number]));
  } catch (error) {
    for (const photo of photos) photo.error = error.message;
  }
}

function take(photo, answer) {
  photo.error = answer.error ?? null;
  photo.id = answer.id ?? photo.id;
  photo.answer = answer.error ? null : answer;
}

function tellAnswers(batch, photos) {
  const read = photos.filter((photo) => photo.id);
  if (!tells()) say(`${plural(read.length, "photo")}. What do they show?`);
  else if (read.length === 1) say(`It says: ${topOf(read[0])}.`);
  else say(`${plural(read.length, "photo")} answered, ${read.filter((photo) => photo.answer.unknown).length} unknown.`);
}

// Ask again what was asked before: the model has changed, and so do its answers.
async function askAgain() {
  const photos = batches.flatMap(open).slice(0, ASKED_AGAIN);
  if (!photos.length || !tells()) return;
  const before = photos.map(topOf);
  const { predictions } = await send(asking("/predict"), { photos: photos.map((photo) => photo.id) });
  let changed = 0;
  photos.forEach((photo, number) => {
    if (predictions[number].error) return;
    photo.answer = predictions[number];
    photo.was = before[number] && before[number] !== topOf(photo) ? before[number] : null;
    if (photo.was) changed += 1;
  });
  if (changed) say(`${plural(changed, "answer")} changed.`);
  draw();
}

function heading(batch) {
  const waiting = batch.photos.filter((photo) => !photo.id && !photo.error).length;
  const number = plural(batch.photos.length, "photo");
  if (!waiting) return [make("h3", {}, number)];
  const done = batch.photos.length - waiting;
  return [
    make("h3", {}, `${done} of ${number} read`),
    make("progress", { max: batch.photos.length, value: done, "aria-label": "Photos read" }),
  ];
}

function naming(batch) {
  const left = open(batch);
  if (!mayTeach() || !left.length || batch.photos.some((photo) => !photo.id && !photo.error)) return [];
  if (tells() && left.length === 1) return [];
  const onname = async (name) => {
    const made = await doing(batch.element, async () => {
      await beforeFirst();
      return teach(open(batch), name);
    });
    if (made) byId("choose").focus({ preventScroll: true });
  };
  const label = tells() ? "What all of them show" : left.length === 1 ? "What does it show?" : "What do they show?";
  const form = namer({ label, action: `Teach ${plural(left.length, "photo")}`, onname, value: batch.typed });
  if (!tells()) return [form, keepQuestion()];
  batch.together ??= Boolean(batch.folder) || 2 * left.filter((photo) => photo.answer.unknown).length > left.length;
  const toggle = (event) => (batch.together = event.target.open);
  const summary = make("summary", { key: "together" }, "All the same? Name them together");
  return [make("details", { open: batch.together, ontoggle: toggle, class: "together" }, summary, form)];
}

function drawBatch(batch) {
  const label = batch.photos[0]?.taught;
  const whole =
    label && batch.photos.every((photo) => photo.taught === label || photo.error) && batch.photos.length > 1;
  const dismiss = button("×", () => dismissed(batch), {
    class: "close",
    "aria-label": "Put these photos away",
    key: "away",
  });
  batch.typed = batch.element.querySelector("[data-key='name']")?.value ?? batch.typed;
  batch.element.setAttribute("aria-label", plural(batch.photos.length, "photo"));
  batch.element.classList.toggle("tiles", !tells());
  if (whole) {
    const strip = batch.photos
      .filter((photo) => photo.taught)
      .slice(0, STRIP)
      .map((photo) => make("li", {}, imageOf(photo)));
    const line = make(
      "p",
      { class: "answer done" },
      make("span", { class: "quiet" }, `${plural(batch.photos.length, "photo")} learnt as `),
      label,
    );
    swap(batch.element, make("div", { class: "top" }, line, dismiss), make("ul", { class: "strip" }, ...strip));
    return;
  }
  const top = make("div", { class: "top" }, ...heading(batch), dismiss);
  batch.shown ??= SHOWN;
  const more = () => {
    batch.shown += SHOWN;
    drawBatch(batch);
  };
  const left = batch.photos.length - batch.shown;
  const cards = make("ul", { class: "cards" }, ...batch.photos.slice(0, batch.shown).map(drawCard));
  swap(
    batch.element,
    top,
    ...naming(batch),
    cards,
    left > 0 && button(`Show more (${left})`, more, { key: "more", class: "more" }),
  );
}

// Folders that were dropped together, each named after what its photos show.
function suggested() {
  return mayTeach() ? batches.filter((batch) => batch.folder && open(batch).length) : [];
}

function offerAll() {
  const place = byId("folders");
  const named = suggested();
  const teachAll = (event) =>
    doing(event.currentTarget, async () => {
      await beforeFirst();
      for (const batch of suggested().reverse()) await teach(open(batch), batch.folder);
    });
  if (named.length < 2) place.replaceChildren();
  else {
    const text = `${named.length} folders, named after what they show?`;
    swap(
      place,
      make(
        "div",
        { class: "update" },
        make("p", {}, text),
        button("Teach all of them", teachAll, { class: "first", key: "all" }),
      ),
    );
  }
}

function dismissed(batch) {
  batches = batches.filter((one) => one !== batch);
  draw();
  byId("choose").focus();
}

export function draw() {
  const place = byId("batches");
  const wanted = batches.map((batch) => batch.element);
  batches.forEach(drawBatch);
  offerAll();
  if (wanted.length !== place.children.length || wanted.some((one, k) => one !== place.children[k]))
    place.replaceChildren(...wanted);
  guide(batches.length > 0, isOpen());
}

export function start() {
  byId("stop-target").addEventListener("click", () => {
    setTarget(null);
    byId("choose").focus();
  });
  onChange((different) => {
    if (model !== state.name) {
      batches = [];
      model = state.name;
    }
    if (different) draw();
    else guide(batches.length > 0, isOpen());
    if (different) askAgain().catch(() => {});
  });
}
