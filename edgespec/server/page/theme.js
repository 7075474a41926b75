// Loaded before anything is drawn, so that the page does not flash in the other theme.
"use strict";

const THEMES = ["auto", "light", "dark"];

function currentTheme() {
  try {
    const stored = localStorage.getItem("edgespec.theme");
    return THEMES.includes(stored) ? stored : THEMES[0];
  } catch {
    return THEMES[0]; // storage is switched off
  }
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem("edgespec.theme", name);
  } catch {
    // It holds for this page then.
  }
}

setTheme(currentTheme());
