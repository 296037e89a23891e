// Check boxes of the list: ranges with Shift, all of the page, and a selection that survives updates of the list.
"use strict";

const chosen = new Set();
let anchor = null;

function boxes() {
  return [...document.querySelectorAll("#list input[name=node]")];
}

function showChosen() {
  const shown = boxes();
  const whole = document.querySelector("#selection [name=all]");
  const page = document.getElementById("choose-page");
  const output = document.getElementById("chosen");
  if (!page || !output) return;
  for (const box of shown) box.disabled = Boolean(whole?.checked);
  const count = shown.filter((box) => box.checked).length;
  page.checked = count > 0 && count === shown.length;
  page.indeterminate = count > 0 && count < shown.length;
  const text = whole?.checked ? "All selected" : count ? `${count} selected` : "";
  if (output.textContent !== text) output.textContent = text;
}

function remember(box) {
  if (box.checked) chosen.add(box.value);
  else chosen.delete(box.value);
}

function restore() {
  const shown = boxes();
  const values = new Set(shown.map((box) => box.value));
  for (const value of chosen) if (!values.has(value)) chosen.delete(value);
  for (const box of shown) box.checked = chosen.has(box.value);
  showChosen();
}

document.addEventListener("click", (event) => {
  const box = event.target.closest?.("#list input[name=node]");
  if (!box) return;
  const shown = boxes();
  const from = shown.findIndex((other) => other.value === anchor);
  const to = shown.indexOf(box);
  if (event.shiftKey && from >= 0) {
    for (const other of shown.slice(Math.min(from, to), Math.max(from, to) + 1)) {
      other.checked = box.checked;
      remember(other);
    }
  }
  anchor = box.value;
});

document.addEventListener("change", (event) => {
  if (event.target.id === "choose-page") {
    for (const box of boxes()) {
      box.checked = event.target.checked;
      remember(box);
    }
  } else if (event.target.matches?.("#list input[name=node]")) {
    remember(event.target);
  }
  showChosen();
});

document.addEventListener("htmx:after:swap", restore);
// The browser keeps what was checked when it goes back.
addEventListener("pageshow", () => {
  boxes().forEach(remember);
  showChosen();
});
