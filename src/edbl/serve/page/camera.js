// Photos from a camera, taken one by one. They are shown as if they had been chosen.

import { button, byId, make, plural, say } from "./dom.js";

let stream = null;
let facing = "environment";
let taken = 0;

function stop() {
  stream?.getTracks().forEach((track) => track.stop());
  stream = null;
}

export function closeCamera() {
  stop();
  byId("camera").hidden = true;
  byId("camera").replaceChildren();
  byId("use-camera").hidden = false;
  byId("use-camera").focus();
}

function problem(error) {
  if (!navigator.mediaDevices) return "A browser lends its camera only to pages on this machine or over https.";
  if (error.name === "NotAllowedError")
    return "The browser was not allowed to use the camera. Allow it beside the address, and try again.";
  if (error.name === "NotFoundError") return "No camera was found.";
  return "The camera could not be opened. Does another program use it?";
}

async function turnOn(video) {
  stop();
  if (!navigator.mediaDevices) throw new Error("no cameras");
  stream = await navigator.mediaDevices.getUserMedia({
    video: { facingMode: facing, width: { ideal: 1280 } },
    audio: false,
  });
  video.srcObject = stream;
  await video.play();
}

async function photo(video) {
  const canvas = make("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  taken += 1;
  return new File([blob], `camera ${taken}.jpg`, { type: "image/jpeg" });
}

export async function openCamera(onphoto) {
  const place = byId("camera");
  const video = make("video", { playsinline: true, muted: true, "aria-label": "What the camera sees" });
  video.muted = true;
  const take = button(
    "Take a photo",
    async () => {
      if (!video.videoWidth) return;
      const file = await photo(video);
      video.classList.remove("flash");
      requestAnimationFrame(() => video.classList.add("flash"));
      say(`${plural(taken, "photo")} taken.`);
      onphoto(file);
    },
    { class: "first" },
  );
  const failed = (error) => {
    stop();
    place.replaceChildren(make("p", { class: "wrong", role: "alert" }, problem(error)), button("Close", closeCamera));
  };
  const turn = button("Other camera", () => {
    facing = facing === "environment" ? "user" : "environment";
    turnOn(video).catch(failed);
  });
  place.hidden = false;
  byId("use-camera").hidden = true;
  place.replaceChildren(
    video,
    make("div", { class: "doors" }, take, turn, button("Close", closeCamera, { "aria-label": "Close the camera" })),
  );
  try {
    await turnOn(video);
    const cameras = (await navigator.mediaDevices.enumerateDevices()).filter((one) => one.kind === "videoinput");
    turn.hidden = cameras.length < 2;
    take.focus();
  } catch (error) {
    failed(error);
  }
}
