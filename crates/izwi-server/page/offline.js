// Registers the service worker, and keeps the files of the page that were loaded before it was there.

export async function keepForOffline() {
  // Browsers have none on plain HTTP from another machine.
  if (!navigator.serviceWorker || !globalThis.caches) return;
  try {
    await navigator.serviceWorker.register("/page/worker.js", { scope: "/" });
    await navigator.serviceWorker.ready;
    const loaded = performance.getEntriesByType("resource").map(({ name }) => new URL(name));
    const files = loaded.filter(({ origin, pathname }) => origin === location.origin && pathname.startsWith("/page/"));
    const names = new Set(["/", "/page/icon.svg", "/page/app.webmanifest", ...files.map(({ pathname }) => pathname)]);
    const shell = await caches.open("izwi-shell");
    const known = new Set((await shell.keys()).map(({ url }) => new URL(url).pathname));
    await shell.addAll([...names].filter((name) => !known.has(name)));
  } catch {
    // A browser that forbids it: the page works all the same, with the server alone.
  }
}
