// Check boxes of the list: ranges with Shift, all of the page, and a selection that survives updates of the list.
"use strict";

const chosen = new Set();
let anchor = null;
let wholeChosen = false;
let filter = selectionForm()?.elements.filter.value;

function selectionForm() {
  return document.getElementById("selection");
}

function boxes() {
  return [...document.querySelectorAll("#list input[name=node]:not([type=hidden])")];
}

// Nodes that newer blocks have moved to another page of the list.
function notShown() {
  const shown = new Set(boxes().map((box) => box.value));
  return [...chosen].filter((value) => !shown.has(value));
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
  const others = notShown();
  submitAlso(others);
  const all = count + others.length;
  const where = others.length ? `, ${others.length} of them on another page` : "";
  const text = whole?.checked ? "All selected" : all ? `${all} selected${where}` : "";
  if (output.textContent !== text) output.textContent = text;
}

// In one field: the service reads a limited number of them.
function submitAlso(names) {
  const form = selectionForm();
  form.querySelector("input[type=hidden][name=node]")?.remove();
  if (names.length === 0) return;
  const field = document.createElement("input");
  field.type = "hidden";
  field.name = "node";
  field.value = names.join(" ");
  form.append(field);
}

function remember(box) {
  if (box.checked) chosen.add(box.value);
  else chosen.delete(box.value);
}

function restore() {
  const form = selectionForm();
  const newFilter = form?.elements.filter.value;
  const shown = boxes();
  const whole = form?.elements.all;
  // All are on this page now: what is not shown is not in the list any more.
  const onePage = !document.querySelector("#list nav.pages");
  if (onePage || newFilter !== filter) for (const value of notShown()) chosen.delete(value);
  if (newFilter !== filter) wholeChosen = false;
  if (wholeChosen && !whole) for (const box of shown) chosen.add(box.value);
  wholeChosen = wholeChosen && Boolean(whole);
  filter = newFilter;
  if (whole) whole.checked = wholeChosen;
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
  if (event.target.name === "all") {
    wholeChosen = event.target.checked;
  } else if (event.target.id === "choose-page") {
    if (!event.target.checked) chosen.clear();
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
  wholeChosen = Boolean(selectionForm()?.elements.all?.checked);
  showChosen();
});
