// What is worth a second look: photos that it is least sure of, its mistakes, and names that look wrong.

import { button, byId, doing, make, notice, percent, plural, swap } from "./dom.js";
import { drawCard, imageOf } from "./card.js";
import { whatIsIt } from "./naming.js";
import { get } from "./server.js";
import { asking, change, mayTeach, onChange, path, state } from "./state.js";
import { photoOf, teach } from "./teach.js";

const SHOWN = 60;

const settled = new Set(); // what was looked at and is to stay as it is, while the page is open

const PARTS = [
  {
    call: "next",
    of: (told) => told.photos,
    title: "Least sure",
    about: "Photos that were shown and not learnt. Those that it is least sure of come first: naming them helps most.",
    none: "No photos wait for a name.",
  },
  {
    call: "mistakes",
    of: (told) => told.mistakes,
    title: "Mistakes",
    about: "Left out once and told by all others, these photos were told wrong.",
    none: "No mistakes.",
    verdict: (one) => `Learnt as ${one.label}, told as ${one.said} (${percent(one.probability)}).`,
    other: (one) => one.said,
  },
  {
    call: "suspicious",
    of: (told) => told.suspicious,
    title: "Suspicious labels",
    about: "These photos look as if they had the wrong name. Some will be right.",
    none: "No name looks wrong.",
    verdict: (one) =>
      one.looks_like
        ? `Learnt as ${one.label}, looks like ${one.looks_like}.`
        : `Learnt as ${one.label}, looks like no other photo of it.`,
    other: (one) => one.looks_like ?? lists[1].find((wrong) => wrong.id === one.id)?.said,
  },
];

const asked = new Map(); // cards of photos that wait for a name, by id, so that they stay the same elements

function verdict(part, one) {
  const photo = photoOf(one);
  const act = (text, work, props = {}) =>
    button(text, (event) => doing(event.currentTarget, work), { key: `${part.call} ${one.id} ${text}`, ...props });
  const away = () => {
    settled.add(one.id);
    draw();
  };
  const remove = async () => {
    await change("/forget", { photos: [one.id] });
    notice("The photo is forgotten.", {
      action: "Undo",
      onaction: () => doing(null, () => change("/undo", { to: null })),
    });
  };
  const other = async () => {
    const name = await whatIsIt(photo.image, one.label);
    if (name) await teach([photo], name, true);
  };
  const looks = part.other(one);
  const acts = make(
    "div",
    { class: "acts" },
    looks && act(`It is ${looks}`, () => teach([photo], looks, true)),
    act(`It is ${one.label}`, away),
    act("Something else…", other, { class: "plain" }),
    act("Forget the photo", remove, { class: "risky" }),
  );
  const says = make("div", { class: "says" }, make("p", {}, part.verdict(one)), mayTeach() && acts);
  return make("li", { class: "card", tabindex: "-1" }, imageOf(photo), says);
}

function waitingCard(one) {
  const photo = asked.get(one.id) ?? photoOf(one);
  asked.set(one.id, photo);
  photo.answer = one;
  return drawCard(photo);
}

function drawPart(part, found) {
  const left = found.filter((one) => !settled.has(one.id));
  const cards = left.slice(0, SHOWN).map((one) => (part.verdict ? verdict(part, one) : waitingCard(one)));
  const number = left.length ? make("span", { class: "quiet count" }, ` ${left.length}`) : null;
  return [
    make("h3", {}, part.title, number),
    make("p", { class: "quiet" }, left.length ? part.about : part.none),
    cards.length > 0 && make("ul", { class: "cards" }, ...cards),
    left.length > SHOWN &&
      make("p", { class: "quiet" }, `and ${plural(left.length - SHOWN, "more photo")}, once these are settled`),
  ];
}

let lists = null;

function draw() {
  if (!lists) return;
  const place = byId("review-parts");
  const cards = () => [...place.querySelectorAll(".card")];
  const at = cards().findIndex((card) => card.contains(document.activeElement));
  swap(place, ...PARTS.flatMap((part, k) => drawPart(part, lists[k])));
  if (at >= 0 && !place.contains(document.activeElement)) (cards()[at] ?? byId("review-title")).focus(); // the next one
}

async function load() {
  const name = state.name;
  const found = [];
  for (const part of PARTS)
    found.push(part.of(await get(part.call === "next" ? asking("/next") : path(`/${part.call}`))));
  if (name !== state.name) return;
  lists = found;
  draw();
}

const visible = () => document.body.dataset.view === "review" && state.info?.exists;

export function enter() {
  if (!lists) byId("review-parts").replaceChildren(make("p", { class: "quiet" }, "Looking…"));
  return doing(null, load);
}

export function start() {
  onChange((different) => {
    if (!different) return;
    asked.clear();
    if (visible()) enter();
  });
}
