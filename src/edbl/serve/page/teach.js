// Teaching: photos that the server holds get a name; labels that look wrong are asked about before anything is learnt.

import { ask, make, notice, plural } from "./dom.js";
import { picture, send, upload } from "./server.js";
import { change, inTurn, path, portions, state, take, tell } from "./state.js";

const AT_ONCE = 200; // photos of one request

const nothing = () => ({ learnt: 0, staged: 0, known: 0, errors: [], suspicious: [] });

function added(told, more) {
  for (const key of ["learnt", "staged", "known"]) told[key] += more[key];
  told.errors.push(...more.errors);
  told.suspicious.push(...more.suspicious);
  told.info = more.info ?? told.info;
  return told;
}

// Send names of photos. One that the server does not hold any more is sent again, where the page still has its file.
async function sent(pairs, yes) {
  const told = nothing();
  for (const [call, part] of [
    ["/teach", pairs.filter(({ photo }) => !photo.taught)],
    ["/relabel", pairs.filter(({ photo }) => photo.taught)],
  ]) {
    if (!part.length) continue;
    const photos = part.map(({ photo, label }) => ({ id: photo.id, label }));
    const more = await send(path(call), call === "/teach" ? { photos, yes } : { photos });
    const gone = part.filter(({ photo }) => photo.file && more.errors.some((one) => one.file === photo.id));
    if (call === "/teach" && gone.length && !more.suspicious.length) {
      more.errors = more.errors.filter((one) => !gone.some(({ photo }) => photo.id === one.file));
      added(told, more);
      for (const some of portions(gone, ({ photo }) => photo.file)) {
        const [files, labels] = [some.map(({ photo }) => photo.file), some.map(({ label }) => label)];
        added(told, await upload(path(`/teach?yes=${yes}`), files, labels));
      }
    } else added(told, more);
  }
  return told;
}

// Ask about labels that look wrong. Resolves with a map from id to a label, or to null to leave it out.
function settle(suspicious) {
  const rows = suspicious.map((one, number) => {
    const choice = (value, text) => {
      const input = make("input", { type: "radio", name: `odd-${number}`, value, required: true });
      return make("label", { class: "radio" }, input, text);
    };
    const looks = one.looks_like ? `It looks more like ${one.looks_like}.` : "It looks like no other photo of it.";
    return make(
      "fieldset",
      { class: "odd" },
      make("legend", {}, `Given as ${one.label}. ${looks}`),
      picture(path(`/photos/${encodeURIComponent(one.id)}`), ""),
      make(
        "div",
        {},
        choice("given", `It is ${one.label}`),
        one.looks_like && choice("looks", `It is ${one.looks_like}`),
        choice("out", "Leave it out"),
      ),
    );
  });
  return ask({
    title: suspicious.length === 1 ? "Is this name right?" : `Are these ${suspicious.length} names right?`,
    body: [make("p", {}, "Nothing is learnt yet."), ...rows],
    agree: "Teach",
    value: () =>
      new Map(
        suspicious.map((one, number) => {
          const chosen = rows[number].querySelector("input:checked").value;
          return [one.id, { given: one.label, looks: one.looks_like, out: null }[chosen]];
        }),
      ),
  });
}

async function taught(photos, label, sure) {
  const all = { told: nothing(), done: [] };
  for (let start = 0; start < photos.length; start += AT_ONCE) {
    const some = await taughtSome(photos.slice(start, start + AT_ONCE), label, sure);
    if (!some) break;
    added(all.told, some.told);
    all.done.push(...some.done);
  }
  return all.told.info ? all : null;
}

async function taughtSome(photos, label, sure) {
  let pairs = photos.map((photo) => ({ photo, label }));
  let told = await sent(pairs, sure);
  if (told.suspicious.length) {
    const settled = await settle(told.suspicious);
    if (settled === null) return null;
    pairs = pairs.map(({ photo }) => ({ photo, label: settled.has(photo.id) ? settled.get(photo.id) : label }));
    pairs = pairs.filter((pair) => pair.label !== null);
    if (!pairs.length) return null;
    told = await sent(pairs, true);
  }
  const wrong = new Map(told.errors.map((one) => [one.id ?? one.file, one.error]));
  const done = [];
  for (const { photo, label: name } of pairs) {
    photo.error = wrong.get(photo.id) ?? null;
    if (photo.error) continue;
    done.push({ photo, before: photo.taught });
    photo.taught = name;
  }
  return { told, done };
}

function summary(told, photos, label) {
  if (told.staged) return `${plural(told.staged, "photo")} of ${label} put with those to learn.`;
  if (told.learnt) return `Learnt ${plural(told.learnt, "photo")} of ${label}.`;
  if (told.errors.length) return told.errors[0].error;
  return `${photos.length === 1 ? "This photo was" : "These photos were"} learnt before.`;
}

// Teach photos as one class, at once; `sure` is who saw the answer and said otherwise. Returns whether it was taken.
export const teach = (photos, label, sure = false) =>
  inTurn(async () => {
    const result = await taught(photos, label, sure);
    if (!result) return false;
    const { told, done } = result;
    const undo = async () => {
      try {
        await change("/undo", { to: null });
        done.forEach(({ photo, before }) => (photo.taught = before));
        tell(true);
        notice("Taken back.");
      } catch (error) {
        notice(error.message, { wrong: true });
      }
    };
    const undoable = told.learnt || (done.length && done[0].before);
    notice(summary(told, photos, label), { wrong: !done.length, action: undoable ? "Undo" : "", onaction: undo });
    if (told.info) take(told.info);
    else tell(true);
    return done.length > 0;
  });

// What a photo of the tray, of a mistake or of an answer is to the page.
export const photoOf = (one) => ({
  id: one.id,
  name: one.file ?? "",
  file: null,
  answer: one,
  taught: one.label ?? null,
});

export const learning = () => state.info?.learns === "by updates";
