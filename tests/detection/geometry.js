// Returns texts that are cut, outside of the window or of their picture, or on top of another text of the picture.
(() => {
  const found = [];
  const name = (element) => `${element.tagName} ${element.textContent.trim().slice(0, 40)}`;
  const inside = (inner, outer) =>
    inner.left >= outer.left - 0.5 && inner.right <= outer.right + 0.5 &&
    inner.top >= outer.top - 0.5 && inner.bottom <= outer.bottom + 0.5;
  const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || element.closest("title, desc, thead") || !element.checkVisibility()) continue;
    range.selectNodeContents(walker.currentNode);
    for (const box of range.getClientRects()) {
      if (box.left < -0.5 || box.right > innerWidth + 0.5) found.push(`outside of the window: ${name(element)}`);
    }
    for (let box = element; box && !box.closest("svg"); box = box.parentElement) {
      const cuts = getComputedStyle(box).overflowX !== "visible";
      if (cuts && (box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight)) found.push(`cut: ${name(box)}`);
    }
  }
  for (const cell of document.querySelectorAll("th, td, figcaption, dd")) {
    if (!cell.closest("thead") && cell.scrollWidth > cell.clientWidth + 1) found.push(`too wide: ${name(cell)}`);
  }
  for (const picture of document.querySelectorAll("svg[role=img]")) {
    const boxes = [...picture.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
    const frame = picture.getBoundingClientRect();
    boxes.forEach(([text, box], place) => {
      if (!inside(box, frame)) found.push(`outside of its picture: ${name(text)}`);
      for (const [other, its] of boxes.slice(place + 1)) {
        if (!apart(box, its)) found.push(`${name(text)} is on top of ${name(other)}`);
      }
    });
    if (boxes.some(([, box]) => box.height < 10)) found.push(`too small: ${name(picture)}`);
  }
  return [...new Set(found)];
})()
