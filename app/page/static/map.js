// Keeps the map up to date cell by cell, and moves between its cells with arrow keys.
"use strict";

const THROTTLE_MS = 1000;
const words = {};
let cells = [];
let widths = [1];
let current = 0;
let waiting = false;
let again = false;

function map() {
  return document.getElementById("list");
}

function nameOf(cell) {
  return cell.textContent.slice(0, cell.textContent.indexOf(","));
}

// After the page or its rows have been loaded.
function read() {
  const list = map();
  for (const item of list.querySelectorAll(".legend li")) words[item.dataset.code] = item.querySelector(".word").textContent;
  cells = [...list.querySelectorAll(".racks .cell")];
  list.dataset.size = cells.length > 4000 ? "s" : cells.length > 800 ? "m" : "l";
  current = Math.min(current, Math.max(0, cells.length - 1));
  if (cells.length && cells[0].href) cells[current].tabIndex = 0;
  align();
  fit();
}

// The racks are in columns: all names are as wide as the longest one. A column has room for the longest rack, but not for
// one that is much longer than the others, which continues on the next line.
function align() {
  const list = map();
  const names = [...list.querySelectorAll(".rack .name")];
  if (!names.length) return;
  const lengths = [...list.querySelectorAll(".rack .cells")].map((rack) => rack.childElementCount).sort((a, b) => a - b);
  const median = lengths[lengths.length >> 1];
  const width = Math.min(lengths.at(-1), Math.max(2 * median, 12));
  widths = [...new Set([width, ...[0.9, 0.75, 0.5].map((share) => lengths[Math.floor(share * (lengths.length - 1))])])]
    .filter((hosts) => hosts <= width);
  list.style.setProperty("--hosts", width);
  list.style.setProperty("--name", "max-content");
  const widest = Math.max(...names.map((name) => name.getBoundingClientRect().width));
  list.style.setProperty("--name", `${Math.ceil(widest)}px`);
}

// The largest cells with which a wall display needs no scrolling, in columns of any of these widths.
function fit() {
  const list = map();
  if (!document.body.classList.contains("wall")) return;
  list.style.removeProperty("--cell");
  const racks = list.querySelector(".racks");
  if (!racks || matchMedia("(max-width: 60rem)").matches) return;
  let best = 0, width = 0;
  // Each width takes some layouts of the whole map.
  for (const hosts of cells.length > 2000 ? widths.slice(0, 1) : widths) {
    list.style.setProperty("--hosts", hosts);
    const size = largest(list, racks);
    if (size > best) [best, width] = [size, hosts];
  }
  list.style.setProperty("--hosts", width);
  list.style.setProperty("--cell", `${best}px`);
}

function largest(list, racks) {
  // Each try takes a layout of the whole map: begin below the size with which the cells alone would fill it.
  const full = Math.ceil(Math.sqrt((racks.clientWidth * racks.clientHeight) / cells.length));
  let low = 4, high = Math.max(low, Math.min(64, full));
  while (low < high) {
    const size = Math.ceil((low + high) / 2);
    list.style.setProperty("--cell", `${size}px`);
    if (racks.scrollHeight <= racks.clientHeight + 1) low = size;
    else high = size - 1;
  }
  return low;
}

function set(cell, code) {
  const name = nameOf(cell);
  cell.className = `cell ${code}`;
  cell.textContent = `${name}, ${words[code]}`;
  if (cell.href) cell.href = (code === "f" || code === "n" ? map().dataset.cellPath : map().dataset.nodePath) + name;
}

async function update() {
  const list = map();
  if (!cells.length) {
    htmx.trigger(list, "layout");
    return;
  }
  const response = await fetch(list.dataset.statesPath, { headers: { "HX-Request": "true" } });
  if (response.status === 401) {
    const login = response.headers.get("HX-Redirect");
    location.href = `${login}?next=${encodeURIComponent(location.pathname + location.search)}`;
    return;
  }
  if (!response.ok) return;
  const change = await response.json();
  list.dataset.settled = change.settled;
  if (change.layout !== list.dataset.layout) {
    htmx.trigger(list, "layout");
  } else {
    const before = list.dataset.states;
    list.dataset.states = change.states;
    for (let place = 0; place < cells.length; place++) if (change.states[place] !== before[place]) set(cells[place], change.states[place]);
    for (const item of list.querySelectorAll(".legend li")) {
      const text = change.counts[item.dataset.code].toLocaleString("en-US");
      const count = item.querySelector("strong");
      if (count.textContent !== text) count.textContent = text;
    }
  }
  again ||= change.behind;
}

// At most one update in THROTTLE_MS, and one after the last event.
async function changed() {
  if (waiting) {
    again = true;
    return;
  }
  waiting = true;
  again = false;
  try {
    await update();
  } catch {
    // The service is out of reach: page.js says so, and updates again once it is back.
  }
  setTimeout(() => {
    waiting = false;
    if (again) changed();
  }, THROTTLE_MS);
}

function focus(place) {
  if (!cells[place]) return;
  cells[current].tabIndex = -1;
  current = place;
  cells[current].tabIndex = 0;
  cells[current].focus();
}

// The cell in the line above or below that is nearest to this one.
function beside(cell, direction) {
  const box = cell.getBoundingClientRect();
  let best = -1, distance = Infinity, line = null;
  for (let place = current + direction; cells[place]; place += direction) {
    const other = cells[place].getBoundingClientRect();
    if (Math.abs(other.top - box.top) < 2) continue;
    line ??= other.top;
    if (Math.abs(other.top - line) > 2) break;
    if (Math.abs(other.left - box.left) < distance) {
      distance = Math.abs(other.left - box.left);
      best = place;
    }
  }
  return best;
}

function show(text) {
  const hint = document.getElementById("host");
  if (!hint) return;
  hint.textContent = text;
  hint.parentElement.classList.add("shown");
}

document.addEventListener("changes", (event) => { if (event.target.id === "list") changed(); });
let focused = null;
document.addEventListener("focusin", (event) => {
  const cell = event.target.closest?.(".racks .cell");
  focused = cell ? nameOf(cell) : null;
  if (cell) show(cell.textContent);
});
// All rows have been loaded: the host that had the focus has it again, if it is still there.
document.addEventListener("htmx:after:swap", () => {
  if (!map() || cells[0]?.isConnected) return;
  const name = focused;
  read();
  const place = name === null ? -1 : cells.findIndex((cell) => nameOf(cell) === name);
  if (place >= 0) focus(place);
});
document.addEventListener("mouseover", (event) => {
  const cell = event.target.closest?.(".racks .cell");
  if (!cell) return;
  cell.title = cell.textContent;
  show(cell.textContent);
});
document.addEventListener("keydown", (event) => {
  const cell = event.target.closest?.(".racks a.cell");
  if (!cell || event.ctrlKey || event.altKey || event.metaKey) return;
  current = cells.indexOf(cell);
  const places = {
    ArrowRight: current + 1,
    ArrowLeft: current - 1,
    Home: 0,
    End: cells.length - 1,
    ArrowDown: () => beside(cell, 1),
    ArrowUp: () => beside(cell, -1),
  };
  const place = places[event.key];
  if (place === undefined) return;
  event.preventDefault();
  focus(typeof place === "function" ? place() : place);
});
addEventListener("resize", fit);
read();
