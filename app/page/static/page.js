// Keeps times and the list up to date. The page works without it.
"use strict";

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const offset = Number(document.body.dataset.now) - Date.now();

// Same format as duration() in shared.py.
function duration(millis) {
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
    time.textContent = `${duration(time.dataset.left - now)} left`;
  }
  for (const time of document.querySelectorAll("time[data-ago]")) {
    time.textContent = `${duration(now - time.dataset.ago)} ago`;
  }
}
setInterval(tick, 1000);

const CHANGE_TEXT = {
  blocked: "was blocked",
  merged: "had its block changed",
  narrowed: "had its block changed: a reason for it is gone",
  unblocked: "was unblocked",
  expired: "is free: its block has expired",
};

// The service sends a ping every 15 s.
const SILENCE_MS = 40000;

function watchList(live) {
  const text = live.querySelector("#live-text");
  const announcement = document.getElementById("announcement");
  let source, check, retry, heard, lost = false;

  function reloadList() {
    for (const id of ["list", "share", "timeline"]) {
      const part = document.getElementById(id);
      if (part) htmx.trigger(part, "changes");
    }
  }

  function show(state, words) {
    live.hidden = false;
    live.className = `live ${state}`;
    if (text.textContent !== words) text.textContent = words;
  }

  function stop() {
    source?.close();
    clearInterval(check);
    clearTimeout(retry);
  }

  function lose() {
    lost = true;
    show("off", "Connection lost; reconnecting");
  }

  function alive() {
    heard = Date.now();
    show("on", "Live");
    if (lost) reloadList();
    lost = false;
  }

  function open() {
    stop();
    heard = Date.now();
    source = new EventSource(live.dataset.watch);
    // A service that hangs, or a network that drops everything, closes no connection.
    check = setInterval(() => {
      if (Date.now() - heard >= SILENCE_MS) { lose(); open(); }
    }, 1000);
    source.onopen = alive;
    source.onerror = () => {
      lose();
      // Closed permanently: the response was an error. If the session has ended, reloading the list leads to the login page.
      if (source.readyState === EventSource.CLOSED) {
        stop();
        retry = setTimeout(() => { reloadList(); open(); }, 5000);
      }
    };
    source.addEventListener("ping", alive);
    source.addEventListener("snapshot", reloadList);
    for (const type of Object.keys(CHANGE_TEXT)) {
      source.addEventListener(type, (event) => {
        alive();
        live.dataset.watch = `${live.dataset.watch.split("?")[0]}?since=${event.lastEventId}`;
        const change = JSON.parse(event.data);
        const by = change.createdBy ? ` by ${change.createdBy}` : "";
        announcement.textContent = `${change.node.id} ${CHANGE_TEXT[type]}${by}.`;
        reloadList();
      });
    }
  }
  addEventListener("pagehide", stop);
  // The browser shows the page again as it was left.
  addEventListener("pageshow", (event) => { if (event.persisted) { lose(); open(); } });
  open();

  // TaskManagers that leave and listeners that catch up cause no change event, so poll as well; faster while any are expected.
  (function poll() {
    const list = document.getElementById("list");
    const unsettled = list && list.dataset.settled === "false";
    setTimeout(() => { if (!document.hidden) reloadList(); poll(); }, unsettled ? 2000 : 15000);
  })();
  document.addEventListener("visibilitychange", () => { if (!document.hidden) reloadList(); });
}

const live = document.getElementById("live");
if (live) watchList(live);

// A value that is typed is meant: check its choice. A date that is no longer meant is cleared, since the service rejects it.
for (const choice of document.querySelectorAll(".choice:has([name=ends])")) {
  const [radio, typed] = choice.querySelectorAll("input");
  const date = radio.form.elements.namedItem("until");
  function choose() {
    radio.checked = true;
    if (date && date !== typed) date.value = "";
  }
  typed?.addEventListener("input", choose);
  radio.addEventListener("change", choose);
}
