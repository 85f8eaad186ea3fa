// The page says what to do, one sentence at a time.

import { byId } from "./dom.js";
import { mayTeach, state, tells } from "./state.js";

export function guide(shown, unnamed) {
  const [step, sentence, hint] = words(unnamed);
  for (const [id, text] of [
    ["step", step],
    ["guide", sentence],
    ["hint", hint],
  ]) {
    const place = byId(id);
    place.hidden = !text;
    if (place.textContent !== text) place.textContent = text;
  }
  byId("stop-target").hidden = !state.target;
  const naming = mayTeach() && !tells() && unnamed;
  byId("choose").textContent = naming ? "Add photos" : "Choose photos";
  byId("choose").classList.toggle("first", !naming);
  byId("stage").classList.toggle("small", shown);
}

function words(unnamed) {
  const classes = state.info?.classes ?? [];
  if (!state.info) return ["", "Make a model first.", ""];
  if (!mayTeach())
    return ["", "Show photos, and see what they are.", "Nothing is learnt here: this model is for asking alone."];
  if (state.target) return ["", `Show photos of ${state.target}.`, "They are learnt at once."];
  if (!classes.length) {
    return !unnamed
      ? [
          "Step 1 of 3",
          "Show a few photos of one thing.",
          "Five will do. Drop them here, choose them, or use the camera.",
        ]
      : ["Step 1 of 3", "Now say below what they show.", ""];
  }
  if (classes.length === 1) {
    return !unnamed
      ? ["Step 2 of 3", "Now a few photos of something else.", `So that it can tell ${classes[0].name} from it.`]
      : ["Step 2 of 3", "Now say below what they show.", ""];
  }
  if (classes.length === 2 && !unnamed) {
    return [
      "Step 3 of 3",
      "Show it a new photo, and see what it says.",
      "Or teach a third thing: show photos of it and give it a name.",
    ];
  }
  return ["", "Show photos, and see what it says.", "Is an answer wrong? Click what it is, and it is learnt at once."];
}
