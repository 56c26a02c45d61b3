"use strict";
// Asks for the fleet twice a second and puts in what has changed; pictures stay where they are.
const lost = document.getElementById("link");

function update(now, next) {
  if (now.isEqualNode(next)) return;
  const steady = [...next.children].every((child, i) => now.children[i]?.id && now.children[i].id === child.id);
  if (steady && next.children.length && next.children.length === now.children.length) {
    for (const attribute of next.attributes) now.setAttribute(attribute.name, attribute.value);
    [...next.children].forEach((child, i) => update(now.children[i], child));
    return;
  }
  for (const image of next.querySelectorAll("img")) {
    const old = now.querySelector(`img[data-camera="${CSS.escape(image.dataset.camera)}"]`);
    if (old) image.replaceWith(old);
  }
  now.replaceWith(next);
}

async function look(image) {
  const answer = await fetch(image.dataset.camera, { cache: "no-store" });
  if (answer.status !== 200) return image.classList.toggle("seen", false);
  const url = URL.createObjectURL(await answer.blob());
  image.onload = () => URL.revokeObjectURL(url);
  image.src = url;
  image.classList.add("seen");
}

function visible(image) {
  const at = image.closest("article").getBoundingClientRect();
  return at.bottom > 0 && at.top < innerHeight;
}

async function tick() {
  try {
    const answer = await fetch("fleet", { cache: "no-store" });
    if (answer.status === 503) throw new Error(await answer.text());
    if (!answer.ok) throw new Error("The dashboard does not answer.");
    const next = document.createElement("main");
    next.id = "fleet";
    next.innerHTML = await answer.text();
    update(document.getElementById("fleet"), next);
    await Promise.all([...document.querySelectorAll("img[data-camera]")].filter(visible).map(look));
    lost.hidden = true;
  } catch (error) {
    const said = error instanceof TypeError ? "The dashboard does not answer." : error.message;
    lost.textContent = `${said} What you see is old.`;
    lost.hidden = false;
  }
  setTimeout(tick, document.hidden ? 5000 : 500);
}
tick();
