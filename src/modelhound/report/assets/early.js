(() => {
  let kept = null;
  try { kept = localStorage.getItem("modelhound-theme"); } catch { /* a page from a file may not keep anything */ }
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
