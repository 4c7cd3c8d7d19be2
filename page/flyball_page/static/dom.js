// Small helpers over the document. Text goes in as text, never as markup: names and messages come from other people.

export const byId = (id) => document.getElementById(id);

/** An element with attributes (null and false leave one out) and children (strings become text). */
export function element(tag, attributes = {}, ...children) {
  const made = tag.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", tag.slice(4))
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Set text only where it differs: a browser that has nothing to change lays nothing out anew. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Keep `parent`'s children in step with `items`, each by its key, so that focus, selection and scrolling stay. */
export function reconcile(parent, items, keyOf, make, update) {
  const known = new Map();
  for (const child of [...parent.children]) known.set(child.dataset.key, child);
  let position = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = known.get(key);
    if (child) known.delete(key);
    else {
      child = make(item);
      child.dataset.key = key;
    }
    update(child, item);
    if (child === position) position = position.nextElementSibling;
    else parent.insertBefore(child, position);
  }
  for (const child of known.values()) child.remove();
}

/** Colours of the theme, as the style sheet has them. */
export function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Size a canvas to its box and the screen's pixels; returns its context and size in CSS pixels, null where it is hidden. */
export function prepareCanvas(canvas, width, height) {
  if (width < 1 || height < 1) return null;
  const scale = window.devicePixelRatio || 1;
  const [pixelsWide, pixelsHigh] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== pixelsWide || canvas.height !== pixelsHigh) {
    canvas.width = pixelsWide;
    canvas.height = pixelsHigh;
    canvas.style.height = `${height}px`;
    canvas.style.width = `${width}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}
