// One photo with what the model says of it. A click on a bar says what it is, and that is learnt at once.

import { button, doing, make, percent, swap } from "./dom.js";
import { whatIsIt } from "./naming.js";
import { picture } from "./server.js";
import { mayTeach, path, tells } from "./state.js";
import { learning, teach } from "./teach.js";

const BARS = 3;

export function imageOf(photo) {
  if (!photo.id) return make("span", { class: "none" }, photo.error ? "no picture" : "");
  photo.image ??= picture(
    path(`/photos/${encodeURIComponent(photo.id)}`),
    photo.name ? `Photo ${photo.name}` : "Photo",
  );
  return photo.image;
}

function bar(one, onclick) {
  const fill = make("i", { "aria-hidden": "true" });
  fill.style.width = `${Math.max(1, 100 * one.probability)}%`;
  const parts = [
    fill,
    make("span", { class: "which" }, one.name),
    make("span", { class: "share" }, percent(one.probability)),
  ];
  if (!onclick) return make("li", { class: "bar" }, ...parts);
  const told = { type: "button", class: "bar", onclick, key: `bar ${one.name}`, title: `Teach: this is ${one.name}` };
  return make("li", {}, make("button", told, ...parts));
}

export function bars(photo, onpick) {
  const shown = photo.answer.classes.slice(0, BARS);
  const rows = shown.map((one) => bar(one, onpick && ((event) => onpick(one.name, event.currentTarget))));
  return make(
    "ul",
    { class: "bars", "aria-label": onpick ? "What it says; click what it is" : "What it says" },
    ...rows,
  );
}

const perhaps = (best) =>
  best.probability > 0.5 ? `Perhaps ${best.name}, but unlike what it was taught.` : "Like nothing it was taught.";

function answered(photo, onpick, other) {
  const { unknown, classes } = photo.answer;
  const was = photo.was && make("span", { class: "was" }, ` before: ${photo.was}`);
  if (unknown) {
    return [
      make("p", { class: "answer unknown" }, "unknown", was),
      make("p", { class: "quiet" }, perhaps(classes[0])),
      onpick && button("What is it?", other, { class: "first", key: "other" }),
      bars(photo, onpick),
    ];
  }
  return [
    make("p", { class: "answer" }, classes[0].name, was),
    bars(photo, onpick),
    onpick && button("Something else…", other, { class: "plain", key: "other" }),
  ];
}

function inside(photo) {
  const pick = (name, element) => doing(element, () => teach([photo], name, true));
  const other = async (event) => {
    const element = event.currentTarget;
    const name = await whatIsIt(photo.image, photo.taught);
    if (name) await pick(name, element);
  };
  const onpick = mayTeach() ? pick : null;
  if (photo.taught) {
    const done = learning() ? "to be learnt as " : "learnt as ";
    const again = onpick && button("Change…", other, { class: "plain", key: "other" });
    return [make("p", { class: "answer done" }, make("span", { class: "quiet" }, done), photo.taught), again];
  }
  const wrong = photo.error && make("p", { class: "wrong", role: "alert" }, photo.error);
  if (!photo.id) return [wrong ?? make("p", { class: "quiet" }, "looking…")];
  if (!tells() || !photo.answer?.classes.length) return [wrong];
  return [wrong, ...answered(photo, onpick, other)];
}

export function drawCard(photo) {
  photo.element ??= make("li", { class: "card", tabindex: "-1" });
  const said = photo.taught
    ? `learnt as ${photo.taught}`
    : photo.answer?.unknown
      ? "unknown"
      : photo.answer?.classes[0]?.name;
  photo.element.setAttribute("aria-label", [photo.name || "photo", said].filter(Boolean).join(": "));
  photo.element.classList.toggle("taught", Boolean(photo.taught));
  photo.element.classList.toggle("waiting", !photo.id && !photo.error);
  photo.element.classList.toggle("changed", Boolean(photo.was));
  swap(photo.element, imageOf(photo), make("div", { class: "says" }, ...inside(photo).filter(Boolean)));
  return photo.element;
}
