// Runs before the page is painted: the chosen theme must be known by then.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("quire-theme");
  } catch {
    // A browser may refuse storage. The theme is then that of the system.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
