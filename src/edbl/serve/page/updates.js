// Models that are trained learn by updates: photos wait until one is started, and it tells how far it is.

import { button, byId, doing, make, notice, plural, say, swap } from "./dom.js";
import { events, send } from "./server.js";
import { change, mayTeach, onChange, path, refresh, state } from "./state.js";

const PAUSE = 500; // milliseconds

let followed = null;
let progress = null;

async function follow() {
  const name = state.name;
  if (followed === name) return;
  followed = name;
  progress = { phase: "starting", done: 0 };
  draw();
  try {
    for await (const told of events(path("/learn/events"))) {
      if (name !== state.name) return;
      if (told.event === "progress") progress = told;
      if (told.event === "done") notice("Learnt. The answers are those of the new model now.");
      if (told.event === "error") notice(told.error, { wrong: true });
      if (told.event === "done" || told.event === "error") break;
      draw();
    }
  } finally {
    progress = null;
    await end(name).finally(() => (followed = null));
  }
}

// The last word of an update comes a moment before its end.
async function end(name) {
  while (name === state.name) {
    await refresh();
    if (!state.info.updating) return;
    await new Promise((resolve) => setTimeout(resolve, PAUSE));
  }
}

const learn = (event) =>
  doing(event.currentTarget, async () => {
    await send(path("/learn"), {});
    say("Learning has started.");
    await follow();
  });

const discard = (event) => doing(event.currentTarget, () => change("/learn", {}, "DELETE"));

function words({ phase, epoch, of }) {
  return epoch ? `${phase}, epoch ${epoch} of ${of}` : phase;
}

function draw() {
  const place = byId("waiting");
  const { info } = state;
  if (!info || !mayTeach() || !(info.staged || progress)) {
    place.replaceChildren();
    return;
  }
  if (progress) {
    const bar = make("progress", { max: 1, value: progress.done ?? 0, "aria-label": "Learning" });
    swap(
      place,
      make(
        "div",
        { class: "update", tabindex: "-1" },
        make("p", {}, make("strong", {}, "Learning. "), make("span", { class: "quiet" }, words(progress))),
        bar,
        make("p", { class: "quiet" }, "Until it is done, answers are those of the model before."),
        button("Stop and discard", discard, { key: "discard", class: "risky" }),
      ),
    );
    return;
  }
  swap(
    place,
    make(
      "div",
      { class: "update", tabindex: "-1" },
      make(
        "p",
        {},
        make("strong", {}, `${plural(info.staged, "photo")} to learn. `),
        "This model is trained: it learns them together, which takes a while.",
      ),
      make(
        "div",
        { class: "doors" },
        button("Learn them now", learn, { class: "first", key: "learn" }),
        button("Discard them", discard, { key: "discard", class: "risky" }),
      ),
    ),
  );
}

export function start() {
  onChange(() => {
    draw();
    if (state.info?.updating && followed !== state.name) doing(null, follow);
  });
}
