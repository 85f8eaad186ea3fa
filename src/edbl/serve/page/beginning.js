// The beginning of a model: its name, and what it keeps of photos.

import { ask, field, make } from "./dom.js";
import { send } from "./server.js";
import { readModels, state } from "./state.js";

let small = true;

const undecided = () => state.info && !state.several && !state.info.exists && state.info.learns !== "by updates";

// Shown beside the first name that is given, while it can still be chosen.
export function keepQuestion() {
  if (!undecided()) return null;
  const box = make("input", {
    type: "checkbox",
    checked: small,
    key: "keep",
    onchange: (event) => (small = event.target.checked),
  });
  return make(
    "label",
    { class: "radio keep" },
    box,
    "Keep small copies of photos in the model, so that mistakes can be shown",
  );
}

export async function beforeFirst() {
  if (!undecided()) return;
  await send("/v1/models", { name: state.name, keep: small ? "photos" : "features" });
}

const KEEPS = [
  ["photos", "Yes: then mistakes can be shown and put right."],
  ["features", "No: only the numbers that the network makes of each photo. Photos cannot be shown later."],
  ["nothing", "As little as can be: only sums over all photos. Then nobody can say how often it is right."],
];

export async function newModel() {
  const { input, nodes } = field("Its name", { required: true, maxlength: 64, autofocus: true });
  const choices = KEEPS.map(([value, text]) => {
    const radio = make("input", { type: "radio", name: "keep", value, checked: value === "photos" });
    return make("label", { class: "radio" }, radio, text);
  });
  const legend = make("legend", {}, "Keep small copies of photos, so that mistakes can be shown?");
  const made = await ask({
    title: "A new model",
    body: [make("div", { class: "line stacked" }, nodes), make("fieldset", {}, legend, ...choices)],
    agree: "Make it",
    value: () => ({
      name: input.value.trim(),
      keep: choices.map((one) => one.firstChild).find((one) => one.checked).value,
    }),
  });
  if (!made?.name) return;
  await send("/v1/models", made);
  await readModels(made.name);
}
