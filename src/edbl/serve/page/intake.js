// Ways in for photos: chosen, dropped (folders too, whose names are suggested), pasted, from the camera.

import { byId, notice } from "./dom.js";
import { closeCamera, openCamera } from "./camera.js";
import { show } from "./photos.js";
import { onChange, state } from "./state.js";

const PICTURE = /\.(jpe?g|png|webp|bmp|gif|tiff?|ppm|pgm|heic|heif)$/i;

const isPicture = (file) => file.type.startsWith("image/") || PICTURE.test(file.name);

function shown(groups, as = state.target) {
  const found = [...groups].map(([name, files]) => [name, files.filter(isPicture)]).filter(([, files]) => files.length);
  if (!state.info) return;
  if (!found.length) notice("None of these is a photo.", { wrong: true });
  for (const [folder, files] of found.reverse()) show(files, { folder, focus: found.length === 1, as });
}

const fileOf = (entry) => new Promise((resolve, reject) => entry.file(resolve, reject));

async function entriesOf(folder) {
  const reader = folder.createReader();
  const all = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!some.length) return all;
    all.push(...some);
  }
}

async function walk(entry, name, groups) {
  if (entry.isFile) groups.set(name, [...(groups.get(name) ?? []), await fileOf(entry)]);
  else for (const inner of await entriesOf(entry)) await walk(inner, entry.name, groups);
}

// Files by the folder that they lie in, which may be named after what they show.
export async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const groups = new Map();
  if (!entries.length) return new Map([["", [...transfer.files]]]);
  for (const entry of entries) await walk(entry, "", groups);
  return groups;
}

export const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

function drops() {
  const stage = byId("stage");
  const over = (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    stage.classList.add("over");
  };
  document.addEventListener("dragover", over);
  document.addEventListener("dragleave", (event) => event.relatedTarget === null && stage.classList.remove("over"));
  document.addEventListener("drop", async (event) => {
    stage.classList.remove("over");
    if (!hasFiles(event)) return;
    event.preventDefault();
    const name = event.target.closest?.("[data-class]")?.dataset.class;
    const groups = await dropped(event.dataTransfer);
    location.hash = "#photos";
    shown(groups, name ?? state.target);
  });
}

export function start() {
  const input = byId("files");
  byId("choose").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = "";
    if (files.length) shown(new Map([["", files]]));
  });
  let batch = null;
  let model = null;
  byId("use-camera").addEventListener("click", () => {
    batch = null;
    openCamera(async (file) => {
      const before = model === state.name ? batch : null;
      model = state.name;
      batch = (async () => show([file], { into: await before, focus: false }))();
    });
  });
  onChange(() => {
    if (!state.info && !byId("camera").hidden) closeCamera();
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length) shown(new Map([["", files]]));
  });
  drops();
}
