// Calls of the server: its errors as sentences, its token, its photos, what it tells while it learns.

import { ask, field, make } from "./dom.js";

const KEPT = "edbl token";
const MOST_PICTURES = 2000;

let token = sessionStorage.getItem(KEPT) ?? "";
let asking = null;

// The link that the server prints may carry the token behind the #, which no server is sent.
export function tokenFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!given) return;
  keep(given);
  history.replaceState(null, "", location.pathname + location.search);
}

function keep(given) {
  token = given;
  sessionStorage.setItem(KEPT, given);
}

async function askToken() {
  const { input, nodes } = field("Token", { type: "password", required: true, autofocus: true });
  const given = await ask({
    title: token ? "That token is not right" : "This server asks for a token",
    body: [
      make("p", {}, "Whoever started the server has it: it was printed, or is in the file named at the start."),
      make("div", { class: "line" }, nodes),
    ],
    agree: "Use it",
    value: () => input.value.trim() || null,
  });
  if (given) keep(given);
  return given;
}

export const hasToken = () => token !== "";

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function answered(path, options = {}) {
  const used = token;
  const headers = new Headers(options.headers);
  if (used) headers.set("Authorization", `Bearer ${used}`);
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch {
    throw new Refused("The server does not answer. Is it still running?", 0);
  }
  if (answer.ok) return answer;
  if (answer.status === 401) {
    if (used === token) {
      asking ??= askToken().finally(() => (asking = null));
      if (!(await asking)) throw new Refused("Without a token this server does not answer.", 401);
    }
    return answered(path, options);
  }
  const told = await answer.json().catch(() => null);
  throw new Refused(told?.error ?? `The server answered with error ${answer.status}.`, answer.status);
}

export const get = async (path) => (await answered(path)).json();

export async function send(path, value, method = "POST") {
  const headers = { "Content-Type": "application/json" };
  return (await answered(path, { method, headers, body: JSON.stringify(value) })).json();
}

export async function upload(path, files, labels = []) {
  const form = new FormData();
  for (const file of files) form.append("files", file, file.name);
  for (const label of labels) form.append("labels", label);
  return (await answered(path, { method: "POST", body: form })).json();
}

const fetched = new Map(); // addresses of pictures by path, the latest last

async function address(path) {
  if (!token) return path;
  if (!fetched.has(path)) fetched.set(path, URL.createObjectURL(await (await answered(path)).blob()));
  for (const [old, url] of fetched) {
    if (fetched.size <= MOST_PICTURES) break;
    URL.revokeObjectURL(url);
    fetched.delete(old);
  }
  return fetched.get(path);
}

// A picture that the server holds, in a frame. An <img> cannot send a token; where one is wanted the page fetches it.
export function picture(path, alt) {
  const image = make("img", { alt, loading: "lazy", decoding: "async" });
  const frame = make("span", { class: "picture" }, image);
  const missing = () => frame.replaceChildren(make("span", { class: "none" }, "no copy kept"));
  image.addEventListener("error", missing);
  address(path).then((url) => (image.src = url), missing);
  return frame;
}

export async function download(path, name) {
  const url = URL.createObjectURL(await (await answered(path)).blob());
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

// Server-sent events, read with fetch because EventSource cannot send a token. Yields { event, ...data }.
export async function* events(path) {
  const reader = (await answered(path)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const told = Object.fromEntries(part.split(/\r?\n/).map((line) => line.split(/:\s*(.*)/s, 2)));
        if (told.data) yield { event: told.event ?? "message", ...JSON.parse(told.data) };
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // who has heard enough does not keep the server telling
  }
}
