// What the page shows: the models of this server, one of them, and who wants to hear when it changes.

import { get, send } from "./server.js";

export const state = { models: [], writable: false, several: false, name: null, info: null, target: null };

const limits = { files: 64, file_mb: 24, request_mb: 96 }; // what the server takes, unless it says otherwise
const PORTION = 16; // photos that are sent at once, so that progress shows

const listeners = [];

export const onChange = (listener) => listeners.push(listener);

export const tell = (different = false) => listeners.forEach((listener) => listener(different));

export const path = (rest = "") => `/v1/models/${encodeURIComponent(state.name)}${rest}`;

// Photos are called unknown that are less sure than 5% of those learnt; than all of them, where there are fewer than 19.
export function asking(call) {
  const known = state.info?.accuracy?.of ?? 0;
  const share = Math.min(0.25, Math.max(0.05, 1.001 / (known + 1)));
  return path(`${call}?unknown=${share.toFixed(5)}`);
}

export const mayTeach = () => state.writable && state.info !== null && state.info.learns !== "never";

export const names = () => state.info?.classes.map((one) => one.name) ?? [];

// One class cannot be told from another: until there are two, photos are named, not asked about.
export const tells = () => names().length > 1;

// An answer for a model that was left in the meantime changes nothing here; `chosen` is another model.
export function take(info, chosen = false) {
  if (!chosen && state.name !== null && info.name !== state.name) return;
  const same = state.info && info.version === state.info.version && info.name === state.info.name;
  state.info = info;
  state.name = info.name;
  if (state.target && !mayTeach()) state.target = null;
  tell(!same);
}

export const refresh = async () => take(await get(path()));

export async function readModels(wanted = null) {
  const found = await get("/v1/models");
  Object.assign(state, { models: found.models, writable: found.writable, several: found.several });
  Object.assign(limits, found.limits);
  const info = found.models.find((one) => one.name === (wanted ?? state.name)) ?? found.models[0] ?? null;
  if (info) take(info, true);
  else tell(true);
}

export const tooLarge = (file) =>
  file.size > limits.file_mb * 2 ** 20 && `This file is larger than ${limits.file_mb} MB.`;

// Things with a file each, in portions that the server takes at once.
export function portions(things, fileOf) {
  const made = [];
  let bytes = 0;
  for (const thing of things) {
    const { size } = fileOf(thing);
    const full = made.at(-1)?.length >= Math.min(PORTION, limits.files) || bytes + size > limits.request_mb * 1e6;
    if (!made.length || full) {
      made.push([]);
      bytes = 0;
    }
    made.at(-1).push(thing);
    bytes += size;
  }
  return made;
}

export function setTarget(name) {
  state.target = name;
  tell();
}

// Changes are sent one after the other: each is made to what the one before it left.
let last = Promise.resolve();
export function inTurn(work) {
  const mine = last.then(work, work);
  last = mine.catch(() => {});
  return mine;
}

// A change whose answer is the model as it is then.
export const change = (rest, value, method = "POST") => inTurn(async () => take(await send(path(rest), value, method)));
