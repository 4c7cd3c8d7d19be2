// Runs before the first paint, so that a chosen theme does not flash the other one.
(function () {
  "use strict";
  var order = ["automatic", "dark", "light"];
  var key = "flyball-theme";
  function stored() {
    try {
      var found = localStorage.getItem(key);
      return order.indexOf(found) > 0 ? found : "automatic";
    } catch (_error) {
      return "automatic"; // storage may be forbidden
    }
  }
  function apply(theme) {
    if (theme === "automatic") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    var button = document.getElementById("theme");
    if (button) button.textContent = "Theme: " + theme;
    document.dispatchEvent(new CustomEvent("themechange"));
  }
  var current = stored();
  apply(current);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", function () { apply(current); });
  window.flyballNextTheme = function () {
    current = order[(order.indexOf(current) + 1) % order.length];
    try { localStorage.setItem(key, current); } catch (_error) { /* kept for this page alone */ }
    apply(current);
  };
  document.addEventListener("DOMContentLoaded", function () {
    document.getElementById("theme").addEventListener("click", window.flyballNextTheme);
    apply(current);
  });
})();
