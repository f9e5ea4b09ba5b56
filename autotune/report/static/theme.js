"use strict";
// Light or dark, on every page: as the button `theme` was last asked, else as the system says.

function followTheme(redraw) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  const remembered = () => {
    try {
      return localStorage.getItem("autotune-theme");
    } catch {
      return null; // a file that is opened without storage
    }
  };
  const theme = () => remembered() || (dark.matches ? "dark" : "light");
  const dress = (named) => {
    document.documentElement.dataset.theme = named;
    button.textContent = named === "dark" ? "Light" : "Dark";
    redraw();
  };
  const restore = () => dress(theme());
  button.addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("autotune-theme", next);
    } catch {
      // it holds until the page is left
    }
    dress(next);
  });
  dark.addEventListener("change", restore);
  window.addEventListener("afterprint", restore);
  return { dress, restore };
}
