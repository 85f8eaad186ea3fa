// Photos that were shown: what they show is asked, or told, a batch at a time.

import { button, byId, doing, make, plural, say, swap } from "./dom.js";
import { drawCard, imageOf } from "./card.js";
import { namer } from "./naming.js";
import { send, upload } from "./server.js";
import { mayTeach, onChange, path, setTarget, state, tells } from "./state.js";
import { teach } from "./teach.js";
import { beforeFirst, keepQuestion } from "./beginning.js";

const MOST = 10; // batches that stay on the page
const ASKED_AGAIN = 200; // photos whose answers follow what is learnt
const STRIP = 12; // pictures of a batch that was learnt

let batches = [];
let model = null;

const topOf = (photo) => (photo.answer?.unknown ? "unknown" : photo.answer?.classes[0]?.name);

const open = (batch) => batch.photos.filter((photo) => photo.id && !photo.taught);

export const isOpen = () => batches.some((batch) => open(batch).length);

// Show photos to the model. `into` is a batch that they join, as those of a camera do; `as` is what they are learnt as.
export async function show(files, { into = null, suggestion = "", focus = true, as = state.target } = {}) {
  const photos = files.map((file) => ({ file, name: file.name, id: null, answer: null, taught: null, error: null }));
  const batch = into ?? { photos: [], suggestion, element: make("div", { class: "batch", role: "group" }) };
  batch.photos.push(...photos);
  if (!batches.includes(batch)) batches = [batch, ...batches].slice(0, MOST);
  draw();
  for (let start = 0; start < photos.length; start += state.portion) {
    await ask(photos.slice(start, start + state.portion));
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
    const { predictions } = await upload(path("/predict"), photos.map((photo) => photo.file));
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
  const { predictions } = await send(path("/predict"), { photos: photos.map((photo) => photo.id) });
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
  return [make("h3", {}, `${done} of ${number} read`), make("progress", { max: batch.photos.length, value: done, "aria-label": "Photos read" })];
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
  const form = namer({ label, action: `Teach ${plural(left.length, "photo")}`, onname, value: batch.suggestion });
  if (!tells()) return [form, keepQuestion()];
  batch.together ??= Boolean(batch.suggestion) || 2 * left.filter((photo) => photo.answer.unknown).length >= left.length;
  const toggle = (event) => (batch.together = event.target.open);
  const summary = make("summary", { key: "together" }, "All the same? Name them together");
  return [make("details", { open: batch.together, ontoggle: toggle, class: "together" }, summary, form)];
}

function drawBatch(batch) {
  const label = batch.photos[0]?.taught;
  const whole = label && batch.photos.every((photo) => photo.taught === label || photo.error) && batch.photos.length > 1;
  const dismiss = button("×", () => dismissed(batch), { class: "close", "aria-label": "Put these photos away", key: "away" });
  batch.suggestion = batch.element.querySelector("[data-key='name']")?.value ?? batch.suggestion;
  batch.element.setAttribute("aria-label", plural(batch.photos.length, "photo"));
  batch.element.classList.toggle("tiles", !tells());
  if (whole) {
    const strip = batch.photos.filter((photo) => photo.taught).slice(0, STRIP).map((photo) => make("li", {}, imageOf(photo)));
    const line = make("p", { class: "answer done" }, make("span", { class: "quiet" }, `${plural(batch.photos.length, "photo")} learnt as `), label);
    swap(batch.element, make("div", { class: "top" }, line, dismiss), make("ul", { class: "strip" }, ...strip));
    return;
  }
  const top = make("div", { class: "top" }, ...heading(batch), dismiss);
  swap(batch.element, top, ...naming(batch), make("ul", { class: "cards" }, ...batch.photos.map(drawCard)));
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
  if (wanted.length !== place.children.length || wanted.some((one, k) => one !== place.children[k])) place.replaceChildren(...wanted);
  guide();
}

// The page says what to do, one sentence at a time.
function guide() {
  const [step, sentence, hint] = words();
  for (const [id, text] of [["step", step], ["guide", sentence], ["hint", hint]]) {
    const place = byId(id);
    place.hidden = !text;
    if (place.textContent !== text) place.textContent = text;
  }
  byId("stop-target").hidden = !state.target;
  const naming = mayTeach() && !tells() && isOpen();
  byId("choose").textContent = naming ? "Add photos" : "Choose photos";
  byId("choose").classList.toggle("first", !naming);
  byId("stage").classList.toggle("small", batches.length > 0);
}

function words() {
  const classes = state.info?.classes ?? [];
  if (!state.info) return ["", "Make a model first.", ""];
  if (!mayTeach()) return ["", "Show photos, and see what they are.", "Nothing is learnt here: this model is for asking alone."];
  if (state.target) return ["", `Show photos of ${state.target}.`, "They are learnt at once."];
  const named = !isOpen();
  if (!classes.length) {
    return named
      ? ["Step 1 of 3", "Show a few photos of one thing.", "Five will do. Drop them here, choose them, or use the camera."]
      : ["Step 1 of 3", "Now say below what they show.", ""];
  }
  if (classes.length === 1) {
    return named
      ? ["Step 2 of 3", "Now a few photos of something else.", `So that it can tell ${classes[0].name} from it.`]
      : ["Step 2 of 3", "Now say below what they show.", ""];
  }
  if (classes.length === 2 && named) {
    return ["Step 3 of 3", "Show it a new photo, and see what it says.", "Or teach a third thing: show photos of it and give it a name."];
  }
  return ["", "Show photos, and see what it says.", "Is an answer wrong? Click what it is, and it is learnt at once."];
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
    else guide();
    if (different) askAgain().catch(() => {});
  });
}
