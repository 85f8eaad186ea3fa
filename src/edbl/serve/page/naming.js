// "What is it?": a field for a name, with the known classes to click.

import { button, finish, make, open } from "./dom.js";
import { names } from "./state.js";

const SHOWN = 12;
const LONGEST = 200;

let lists = 0;

// A known class keeps its own spelling: "Cat" typed where there is "cat" makes no second class.
function spelt(text) {
  const name = text.trim().replace(/\s+/g, " ");
  const alike = names().find((one) => one.toLowerCase() === name.toLowerCase());
  return alike ?? name;
}

// A form that calls `onname` with what was typed or clicked.
export function namer({ label, action, onname, value = "", without = null, focus = false, chips = true }) {
  const id = `namer-${++lists}`;
  const input = make("input", {
    id,
    value,
    autocomplete: "off",
    autocapitalize: "none",
    maxlength: LONGEST,
    required: true,
    key: "name",
    autofocus: focus,
    placeholder: names().length ? "a known class, or a new name" : "for example: my cat",
  });
  const choices = make("div", { class: "chips", role: "group", "aria-label": "Classes" });
  const drawChoices = () => {
    const typed = input.value.trim().toLowerCase();
    const found = names().filter((one) => one !== without && one.toLowerCase().includes(typed));
    const shown = found.slice(0, SHOWN);
    choices.replaceChildren(
      ...shown.map((one) => button(one, () => onname(one), { class: "chip", key: `chip ${one}` })),
    );
    if (found.length > shown.length)
      choices.append(make("span", { class: "quiet" }, `and ${found.length - SHOWN} more: type to find them`));
  };
  if (chips) {
    input.addEventListener("input", drawChoices);
    drawChoices();
  }
  const submit = (event) => {
    event.preventDefault();
    const name = spelt(input.value);
    if (name) onname(name);
  };
  return make(
    "form",
    { class: "namer", onsubmit: submit },
    make("label", { for: id }, label),
    make("div", { class: "line" }, input, make("button", { class: "first", key: "teach" }, action)),
    chips && names().length ? choices : null,
  );
}

// Ask what one photo is, in a dialog. Resolves with a name or null.
export function whatIsIt(image, without = null) {
  const form = namer({
    label: "Its name",
    action: "Teach",
    onname: (name) => finish(form, name),
    without,
    focus: true,
  });
  const shown = image ? [make("div", { class: "shown" }, image.cloneNode(true))] : [];
  const cancel = make(
    "div",
    { class: "doors" },
    button("Cancel", () => finish(form, null)),
  );
  return open("What is it?", ...shown, form, cancel);
}
