// What the page does by itself: keeps times up to date, and the list by the watch. All of it can be done without.
"use strict";

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const offset = Number(document.body.dataset.now) - Date.now();

// As words.span has it.
function span(millis) {
  const seconds = Math.round(Math.max(0, millis) / 1000);
  const place = UNITS.findIndex(([size]) => seconds >= size);
  if (place < 0) return "0 s";
  const [size, unit] = UNITS[place];
  const smaller = UNITS[place + 1];
  const rest = smaller ? Math.floor((seconds % size) / smaller[0]) : 0;
  const whole = Math.floor(seconds / size).toLocaleString("en-US");
  return rest ? `${whole} ${unit} ${rest} ${smaller[1]}` : `${whole} ${unit}`;
}

function tick() {
  const now = Date.now() + offset;
  for (const time of document.querySelectorAll("time[data-left]")) {
    time.textContent = `${span(time.dataset.left - now)} left`;
  }
  for (const time of document.querySelectorAll("time[data-ago]")) {
    time.textContent = `${span(now - time.dataset.ago)} ago`;
  }
}
setInterval(tick, 1000);

const SAID = { blocked: "was blocked", merged: "is blocked still, in another way", unblocked: "was unblocked", expired: "is free again" };

function follow(live) {
  const text = live.querySelector("#live-text");
  const news = document.getElementById("news");
  let retry;

  function changed() {
    const list = document.getElementById("list");
    if (list) htmx.trigger(list, "changes");
  }

  function show(state, words) {
    live.hidden = false;
    live.className = `live ${state}`;
    if (text.textContent !== words) text.textContent = words;
  }

  function open() {
    clearTimeout(retry);
    const source = new EventSource(live.dataset.watch);
    let lost = false;
    source.onopen = () => {
      show("on", "Live");
      if (lost) changed();
      lost = false;
    };
    source.onerror = () => {
      lost = true;
      show("off", "Connection lost; trying again");
      // Closed for good: the answer was an error. Perhaps the session has ended, which the list's answer will say.
      if (source.readyState === EventSource.CLOSED) {
        retry = setTimeout(() => { changed(); open(); }, 5000);
      }
    };
    for (const type of Object.keys(SAID)) {
      source.addEventListener(type, (event) => {
        const change = JSON.parse(event.data);
        const by = change.createdBy ? ` by ${change.createdBy}` : "";
        news.textContent = `${change.node.id} ${SAID[type]}${by}.`;
        changed();
      });
    }
    source.addEventListener("snapshot", changed);
    addEventListener("pagehide", () => source.close(), { once: true });
  }
  open();

  // TaskManagers that leave and listeners that catch up make no change: look more often while there are any.
  (function again() {
    const list = document.getElementById("list");
    const unsettled = list && list.dataset.settled === "false";
    setTimeout(() => { if (!document.hidden) changed(); again(); }, unsettled ? 2000 : 15000);
  })();
  document.addEventListener("visibilitychange", () => { if (!document.hidden) changed(); });
}

const live = document.getElementById("live");
if (live) follow(live);
