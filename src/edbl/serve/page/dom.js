// Elements, words and dialogs. Names of classes and files reach the page as text and attributes, never as markup.

export const byId = (id) => document.getElementById(id);

// An element; `on...` are listeners, `key` is by what focus finds it again after it was drawn anew.
export function make(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "key") element.dataset.key = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const button = (text, onclick, props = {}) => make("button", { type: "button", onclick, ...props }, text);

// Draw the inside of an element anew; who was in it stays where they were, or at the element itself.
export function swap(element, ...children) {
  const inside = element.contains(document.activeElement) && element !== document.activeElement;
  const key = inside ? document.activeElement.dataset.key : null;
  element.replaceChildren(
    ...children.flat().filter((child) => child !== null && child !== undefined && child !== false),
  );
  if (!inside) return;
  const again = key && [...element.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key);
  const target = again || element.closest("[tabindex]") || byId("work");
  target.focus({ preventScroll: true });
}

export const plural = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

export function percent(share) {
  if (share > 0.99 && share < 1) return "over 99%";
  if (share < 0.01 && share > 0) return "under 1%";
  return `${Math.round(100 * share)}%`;
}

export const rightOf = (accuracy) => `${accuracy.right.toLocaleString("en")} of ${accuracy.of.toLocaleString("en")}`;

export function size(megabytes) {
  return megabytes < 0.1 ? "less than 0.1 MB" : `${megabytes.toLocaleString("en", { maximumFractionDigits: 1 })} MB`;
}

// Say it to those who do not see it.
export function say(text) {
  const spoken = byId("spoken");
  spoken.textContent = "";
  setTimeout(() => (spoken.textContent = text), 50);
}

let fading = 0;

// A line at the lower edge: what was done, and how to take it back.
export function notice(text, { action = "", onaction = null, wrong = false } = {}) {
  const place = byId("notice");
  say(text);
  clearTimeout(fading);
  const close = () => (place.hidden = true);
  const doIt = () => {
    close();
    onaction();
  };
  place.className = wrong ? "notice wrong" : "notice";
  place.hidden = false;
  swap(
    place,
    make("p", {}, text),
    action && button(action, doIt),
    button("×", close, { "aria-label": "Close this message", class: "close" }),
  );
  if (!wrong) fading = setTimeout(() => !place.matches(":hover, :focus-within") && close(), 15000);
}

// Run what a button stands for; what goes wrong is told, and never twice at once.
export async function doing(element, work) {
  if (element?.getAttribute("aria-busy") === "true") return null;
  element?.setAttribute("aria-busy", "true");
  try {
    return await work();
  } catch (error) {
    notice(error.message, { wrong: true });
    return null;
  } finally {
    element?.removeAttribute("aria-busy");
  }
}

// A dialog. Resolves with what it was finished with, or null where it was closed; focus goes back to where it was.
export function open(title, ...body) {
  const before = document.activeElement;
  return new Promise((resolve) => {
    let outcome = null;
    const dialog = make(
      "dialog",
      { "aria-labelledby": "dialog-title" },
      make("h2", { id: "dialog-title" }, title),
      ...body,
    );
    dialog.finish = (result) => {
      outcome = result;
      dialog.close();
    };
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (before?.isConnected) before.focus({ preventScroll: true });
      resolve(outcome);
    });
    document.body.append(dialog);
    dialog.showModal();
    (dialog.querySelector("[autofocus]") ?? dialog.querySelector("input, select, button"))?.focus();
  });
}

export const finish = (element, result) => element.closest("dialog").finish(result);

// Ask something: resolves with what `value` returns once it is agreed to, and with null where it is not.
export function ask({ title, body = [], agree, danger = false, value = () => true, decline = "Cancel" }) {
  const submit = (event) => {
    event.preventDefault();
    const result = value();
    if (result !== null) finish(form, result);
  };
  const doors = make(
    "div",
    { class: "doors" },
    make("button", { class: danger ? "danger" : "first" }, agree),
    button(decline, () => finish(form, null), { autofocus: danger }),
  );
  const form = make("form", { onsubmit: submit }, ...body, doors);
  return open(title, form);
}

// A field with its label; ids are counted so that they are there once.
let fields = 0;
export function field(label, props = {}) {
  const id = `field-${++fields}`;
  const input = make("input", { id, autocomplete: "off", ...props });
  return { input, nodes: [make("label", { for: id }, label), input] };
}
