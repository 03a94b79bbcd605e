// Sets the theme before anything is drawn: a plain script in the head, not a module.

(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const kept = () => {
    try {
      return localStorage.getItem("izwi-theme") ?? "system";
    } catch {
      return "system";
    }
  };
  const show = () => {
    const chosen = kept();
    const theme = chosen === "dark" || (chosen !== "light" && dark.matches) ? "dark" : "light";
    document.documentElement.dataset.theme = theme;
    document.querySelector('meta[name="theme-color"]')?.setAttribute("content", theme === "dark" ? "#121514" : "#f6f4ef");
    // Canvases are drawn in the colours of the theme.
    dispatchEvent(new Event("themechange"));
  };
  dark.addEventListener("change", show);
  addEventListener("DOMContentLoaded", () => {
    const select = document.getElementById("theme");
    select.value = kept();
    select.addEventListener("change", () => {
      try {
        localStorage.setItem("izwi-theme", select.value);
      } catch {
        // Without storage the theme is that of the system.
      }
      show();
    });
  });
  show();
})();
